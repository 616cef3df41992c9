"""The compact notation: what it prints, what it reads, and that both are one law."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calque.device.runtime.dtypes import TO_NUMPY
from calque.errors import FederatedTypeError
from calque.federated.types import (
    CLIENTS,
    DTYPES,
    SERVER,
    AbstractType,
    FederatedType,
    FunctionType,
    PlacementType,
    SequenceType,
    StructType,
    TensorType,
    Type,
    parse_type,
    walk,
)

INT32 = TensorType(DTYPES["int32"])
FLOAT32 = TensorType(DTYPES["float32"])

SPELLED = {
    "int32": INT32,
    "bool": TensorType(DTYPES["bool"]),
    "bfloat16[4]": TensorType(DTYPES["bfloat16"], (4,)),
    "float32[2,?]": TensorType(DTYPES["float32"], (2, None)),
    "float32[0]": TensorType(DTYPES["float32"], (0,)),
    "<>": StructType(()),
    "<int32>": StructType(((None, INT32),)),
    "<a=int32,float32>": StructType((("a", INT32), (None, FLOAT32))),
    "<'0.weight'=float32>": StructType((("0.weight", FLOAT32),)),
    "<int32=float32>": StructType((("int32", FLOAT32),)),
    r"<'it\'s'=float32>": StructType((("it's", FLOAT32),)),
    "int32*": SequenceType(INT32),
    "<a=int32>*": SequenceType(StructType((("a", INT32),))),
    "(int32 -> bool)": FunctionType(INT32, TensorType(DTYPES["bool"])),
    "( -> int32)": FunctionType(None, INT32),
    "((int32 -> int32) -> int32)": FunctionType(FunctionType(INT32, INT32), INT32),
    "{float32}@CLIENTS": FederatedType(FLOAT32, CLIENTS),
    "float32@CLIENTS": FederatedType(FLOAT32, CLIENTS, True),
    "float32@SERVER": FederatedType(FLOAT32, SERVER),
    "{int32*}@CLIENTS": FederatedType(SequenceType(INT32), CLIENTS),
    "int32*@SERVER": FederatedType(SequenceType(INT32), SERVER),
    "placement": PlacementType(),
    "T": AbstractType("T"),
    "(<(T -> U),{T}@CLIENTS> -> {U}@CLIENTS)": FunctionType(
        StructType(
            (
                (None, FunctionType(AbstractType("T"), AbstractType("U"))),
                (None, FederatedType(AbstractType("T"), CLIENTS)),
            )
        ),
        FederatedType(AbstractType("U"), CLIENTS),
    ),
}


@pytest.mark.parametrize("text", SPELLED)
def test_a_type_prints_as_its_notation(text: str) -> None:
    assert str(SPELLED[text]) == text


@pytest.mark.parametrize("text", SPELLED)
def test_the_notation_is_read_as_its_type(text: str) -> None:
    assert parse_type(text) == SPELLED[text]


@pytest.mark.parametrize(
    ("loose", "compact"),
    [
        (" < a = int32 , float32 > ", "<a=int32,float32>"),
        ("(->int32)", "( -> int32)"),
        ("(int32->int32)", "(int32 -> int32)"),
        ("{ float32 } @ CLIENTS", "{float32}@CLIENTS"),
        ("float32[ 2 , ? ]", "float32[2,?]"),
        ("<\n  a=int32\n>", "<a=int32>"),
        ("float32[]", "float32"),
    ],
)
def test_spaces_do_not_matter(loose: str, compact: str) -> None:
    assert str(parse_type(loose)) == compact


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("", "a type is missing", 0),
        ("flot32", "did you mean float32", 0),
        ("int32 int32", "does not belong to the type", 6),
        ("<a=int32", "',' is missing", 8),
        ("{float32}", "'@' is missing", 9),
        ("{float32}@WORKERS", "CLIENTS or SERVER", 10),
        ("float32[2,-1]", "not part of a type", 10),
        ("(int32)", "'->' is missing", 6),
        ("float32[a]", "a size", 8),
        ("<a=>", "a type is missing", 3),
        ("int32 $", "not part of a type", 6),
        ("CLIENTS", "not a dtype", 0),
    ],
)
def test_what_is_no_type_is_shown_with_its_place(text: str, message: str, column: int) -> None:
    with pytest.raises(FederatedTypeError, match=message) as caught:
        parse_type(text)
    lines = str(caught.value).split("\n")
    assert lines[1] == f"  {text}"
    assert lines[2] == " " * (2 + column) + "^"
    assert "test_notation.py" in lines[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{float32}@SERVER",
            r"\{float32\}@SERVER says that the values differ.*\nWrite float32@SERVER",
        ),
        ("{float32@SERVER}@CLIENTS", "cannot hold float32@SERVER"),
        ("{(int32 -> int32)}@CLIENTS", "cannot hold"),
        ("int32**", "cannot hold the sequence"),
        ("{<>*}@CLIENTS", "cannot hold <>, whose elements cannot be counted"),
        ("<a=int32,a=int32>", "two fields have the name 'a'"),
        ("(int32 -> int32)*", "cannot hold"),
    ],
)
def test_types_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(FederatedTypeError, match=message):
        parse_type(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TensorType(np.dtype("float32"), (True,)),
        lambda: FunctionType("int32", parse_type("bool")),  # type: ignore[arg-type]
        lambda: FunctionType(None, "bool"),  # type: ignore[arg-type]
        lambda: FederatedType(parse_type("bool"), "CLIENTS"),  # type: ignore[arg-type]
    ],
)
def test_types_are_made_of_types_sizes_and_placements(make: Any) -> None:
    with pytest.raises(FederatedTypeError, match="not a valid size|not a type|not a placement"):
        make()


tensors = st.builds(
    TensorType,
    st.sampled_from(list(DTYPES.values())),
    st.lists(st.none() | st.integers(0, 99), max_size=3).map(tuple),
)
names = st.none() | st.text(min_size=1, max_size=4)


def structs(of: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
    pairs = st.lists(
        st.tuples(names, of), max_size=3, unique_by=lambda p: object() if p[0] is None else p[0]
    )
    return pairs.map(lambda elements: StructType(tuple(elements)))


flat = st.recursive(tensors | st.sampled_from("TUV").map(AbstractType), structs, max_leaves=4)
counted = flat.filter(lambda kind: any(not isinstance(t, StructType) for t in walk(kind)))
members = flat | counted.map(SequenceType)
placed = st.builds(FederatedType, members, st.just(CLIENTS), st.booleans()) | st.builds(
    FederatedType, members, st.just(SERVER)
)
types = st.recursive(
    members | placed | st.just(PlacementType()),
    lambda inner: structs(inner) | st.builds(FunctionType, st.none() | inner, inner),
    max_leaves=6,
)


@given(types)
def test_parsing_what_was_printed_gives_the_type_back(kind: Type) -> None:
    assert parse_type(str(kind)) == kind


@given(types)
def test_equal_types_have_equal_hashes(kind: Type) -> None:
    assert hash(parse_type(str(kind))) == hash(kind)


def test_every_dtype_of_the_device_is_a_dtype_of_tensors() -> None:
    assert set(DTYPES.values()) == set(TO_NUMPY.values())
