"""Types from dtypes, arrays, pytrees, dataclasses and modules, and back."""

import collections
import copy
import dataclasses
import enum
import pickle
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from calque.errors import FederatedTypeError
from calque.federated.types import (
    Struct,
    at_clients,
    at_server,
    parse_type,
    rebuild,
    to_shapes,
    to_type,
    type_of_value,
)


@dataclasses.dataclass
class Point:
    x: float
    y: "float32[2]"


class Pair(NamedTuple):
    first: object
    second: object


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


def test_the_order_of_bytes_is_no_part_of_a_type() -> None:
    assert to_type(np.dtype(">i4")) == to_type("int32")
    assert to_type(np.zeros((2, 3), ">f4")) == to_type("float32[2,3]")


def test_a_member_of_an_enumeration_of_integers_is_a_number() -> None:
    assert type_of_value({"level": Level.HIGH}) == parse_type("<level=int32>")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (np.int32, "int32"),
        (np.dtype("float64"), "float64"),
        (jnp.float32, "float32"),
        (jnp.bfloat16, "bfloat16"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (torch.float16, "float16"),
        (torch.int64, "int64"),
        (bool, "bool"),
        (int, "int32"),
        (float, "float32"),
        (complex, "complex64"),
        ("float32[3]", "float32[3]"),
        ((np.int32, [2, None]), "int32[2,?]"),
        ((torch.float32, (3,)), "float32[3]"),
        ((np.int32, np.float32), "<int32,float32>"),
        ([int, float], "<int32,float32>"),
        ({"a": int, "b": [float]}, "<a=int32,b=<float32>>"),
        (Pair(int, float), "<first=int32,second=float32>"),
        (jax.ShapeDtypeStruct((2,), jnp.int8), "int8[2]"),
        (np.zeros((2, 3), np.float32), "float32[2,3]"),
        (torch.zeros(2), "float32[2]"),
        (jnp.zeros((4,)), "float32[4]"),
        ((), "<>"),
        (
            torch.nn.BatchNorm1d(2),
            (
                "<weight=float32[2],bias=float32[2],running_mean=float32[2],"
                "running_var=float32[2],num_batches_tracked=int64>"
            ),
        ),
        (torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False)), "<'0.weight'=float32[1,1]>"),
    ],
    ids=str,
)
def test_to_type(spec: object, expected: str) -> None:
    assert str(to_type(spec)) == expected


def test_a_dataclass_is_a_struct_of_its_annotations() -> None:
    assert str(to_type(Point)) == "<x=float32,y=float32[2]>"


def test_an_instance_of_a_dataclass_is_a_struct_of_its_values() -> None:
    point = Point(np.float16(1), np.zeros(3, np.int8))  # type: ignore[arg-type]
    assert str(to_type(point)) == "<x=float16,y=int8[3]>"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Point(1, (2, [0.5])), "<x=int32,y=<int32,<float32>>>"),  # type: ignore[arg-type]
        (Pair(True, {"a": 1.0, "b": np.zeros(2)}), "<first=bool,second=<a=float32,b=float64[2]>>"),
        (Pair("int32*", (np.int8, [2])), "<first=int32*,second=int8[2]>"),
        (tuple[int, tuple[float, bool]], "<int32,<float32,bool>>"),
    ],
    ids=str,
)
def test_numbers_of_instances_and_tuples_of_types_are_structs(spec: object, expected: str) -> None:
    assert str(to_type(spec)) == expected


@pytest.mark.parametrize("spec", [3, None, object(), lambda: 1, {"a": None}, np.dtype("U3")])
def test_what_describes_no_type_is_refused(spec: object) -> None:
    with pytest.raises(FederatedTypeError):
        to_type(spec)


def test_keys_are_refused_with_a_remedy() -> None:
    with pytest.raises(FederatedTypeError, match="key_data"):
        to_type(jax.random.key(0))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, "int32"),
        (True, "bool"),
        (1.0, "float32"),
        (1j, "complex64"),
        (np.int8(3), "int8"),
        ({"a": 1, "b": (2.0, False)}, "<a=int32,b=<float32,bool>>"),
        (Point(1.0, 2.0), "<x=float32,y=float32>"),  # type: ignore[arg-type]
        (Pair(1, 2), "<first=int32,second=int32>"),
    ],
    ids=str,
)
def test_type_of_value(value: object, expected: str) -> None:
    assert str(type_of_value(value)) == expected


@pytest.mark.parametrize("value", ["text", None, 2**40, object()])
def test_values_without_a_type_are_refused(value: object) -> None:
    with pytest.raises(FederatedTypeError):
        type_of_value(value)


def test_shapes_follow_the_container() -> None:
    spec = {"a": (np.float32, [2]), "b": (np.int32, np.int8)}
    shapes = to_shapes(to_type(spec))
    assert shapes == {
        "a": jax.ShapeDtypeStruct((2,), np.float32),
        "b": (jax.ShapeDtypeStruct((), np.int32), jax.ShapeDtypeStruct((), np.int8)),
    }
    assert to_type(shapes) == to_type(spec)


@pytest.mark.parametrize("text", ["float32[?]", "int32*", "int32@SERVER", "( -> int32)"])
def test_what_has_no_shapes_is_refused(text: str) -> None:
    with pytest.raises(FederatedTypeError):
        to_shapes(parse_type(text))


@pytest.mark.parametrize(
    ("value", "text"),
    [({"a": 1}, "<a=int32>"), ((1, 2), "<int32,int32>"), ([1], "<int32>"), (Pair(1, 2), None)],
)
def test_containers_come_back(value: object, text: str | None) -> None:
    kind = type_of_value(value)
    assert text is None or str(kind) == text
    again = rebuild(kind, list(value.values() if isinstance(value, dict) else value))  # type: ignore[arg-type]
    assert again == value
    assert type(again) is type(value)


def test_fields_with_and_without_names_make_a_struct() -> None:
    made = rebuild(parse_type("<a=int32,int32>"), [1, 2])  # type: ignore[arg-type]
    assert isinstance(made, Struct)
    assert (made.a, made[1], made["a"]) == (1, 2, 1)
    doubled = jax.tree.map(lambda v: 2 * v, made)
    assert (doubled.a, doubled[1]) == (2, 4)
    assert not hasattr(made, "b")


class Annotated(NamedTuple):
    first: int
    second: "float32[2]"


class Inherited(Annotated):
    pass


def test_named_tuples_describe_types_by_their_annotations() -> None:
    kind = to_type(Annotated)
    assert str(kind) == "<first=int32,second=float32[2]>"
    assert rebuild(kind, [1, 2]) == Annotated(1, 2)
    assert str(to_type(Inherited)) == str(kind)
    bare = collections.namedtuple("bare", "a b")
    with pytest.raises(FederatedTypeError, match="'a' of bare has no annotation"):
        to_type(bare)


class Nested(NamedTuple):
    point: "Point"
    variable: "Unknown"  # type: ignore[name-defined]


def test_an_annotation_as_text_names_a_class_before_a_variable() -> None:
    assert str(to_type(Nested)) == "<point=<x=float32,y=float32[2]>,variable=Unknown>"


def test_placed_types_are_made_of_what_describes_types() -> None:
    assert str(at_clients(np.float32)) == "{float32}@CLIENTS"
    assert str(at_server({"a": (int, [2])})) == "<a=int32[2]>@SERVER"


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda struct: pickle.loads(pickle.dumps(struct))]
)
def test_a_struct_is_copied_and_pickled_with_its_names(copied: Any) -> None:
    found = copied(Struct([("x", 1), (None, [2])]))
    assert (found, found.names, found.x) == ((1, [2]), ("x", None), 1)
    with pytest.raises(KeyError, match="no field 'y'"):
        found["y"]
