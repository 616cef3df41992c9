"""Arguments are bound as Python binds them, and packed into one."""

import functools
import inspect
import operator
from typing import Any

import jax
import numpy as np
import pytest
import torch

from calque import federated as fed
from calque.errors import FederatedTypeError


def none() -> Any:
    return 1


def one(x: Any) -> Any:
    return x


def two(x: Any, y: Any) -> Any:
    return x * 10 + y


def defaulted(x: Any, y: Any = 7) -> Any:
    return x * 10 + y


def only_positional(x: Any, y: Any, /) -> Any:
    return x * 10 + y


def only_keyword(x: Any, *, y: Any) -> Any:
    return x * 10 + y


def many(*args: Any) -> Any:
    return args[0] * 10 + args[1]


def keywords(**kwargs: Any) -> Any:
    return kwargs["x"] * 10 + kwargs["y"]


@pytest.mark.parametrize(
    ("function", "types", "named", "expected"),
    [
        (none, (), {}, "( -> int32)"),
        (one, ("int32",), {}, "(int32 -> int32)"),
        (one, ("<a=int32,b=bool>",), {}, "(<a=int32,b=bool> -> <a=int32,b=bool>)"),
        (one, (), {"x": "int32"}, "(<x=int32> -> <x=int32>)"),
        (two, ("int32", "int32"), {}, "(<x=int32,y=int32> -> int32)"),
        (two, ("<x=int32,y=int32>",), {}, "(<x=int32,y=int32> -> int32)"),
        (two, ("<int32,int32>",), {}, "(<x=int32,y=int32> -> int32)"),
        (two, ("int32",), {"y": "int32"}, "(<x=int32,y=int32> -> int32)"),
        (two, (), {"y": "int32", "x": "int8"}, "(<x=int8,y=int32> -> int32)"),
        (defaulted, ("int32",), {}, "(int32 -> int32)"),
        (defaulted, ("int32", "int32"), {}, "(<x=int32,y=int32> -> int32)"),
        (only_positional, ("int32", "int32"), {}, "(<int32,int32> -> int32)"),
        (only_keyword, ("int32",), {"y": "int32"}, "(<x=int32,y=int32> -> int32)"),
        (many, ("int32", "int32"), {}, "(<int32,int32> -> int32)"),
        (keywords, (), {"x": "int32", "y": "int32"}, "(<x=int32,y=int32> -> int32)"),
    ],
)
def test_the_type_of_the_packed_argument(
    function: Any, types: Any, named: Any, expected: str
) -> None:
    comp = fed.computation(*types, **named)(function)
    if function is one and named:
        expected = "(<x=int32> -> int32)"
    assert str(comp.type_signature) == expected


@pytest.mark.parametrize(
    ("function", "types", "args", "kwargs", "expected"),
    [
        (none, (), (), {}, 1),
        (one, ("int32",), (3,), {}, 3),
        (one, ("int32",), (), {"x": 3}, 3),
        (two, ("int32", "int32"), (1, 2), {}, 12),
        (two, ("int32", "int32"), (1,), {"y": 2}, 12),
        (two, ("int32", "int32"), (), {"y": 2, "x": 1}, 12),
        (defaulted, ("int32",), (1,), {}, 17),
        (only_positional, ("int32", "int32"), (1, 2), {}, 12),
        (many, ("int32", "int32"), (1, 2), {}, 12),
    ],
)
def test_calls_bind_as_in_python(
    function: Any, types: Any, args: Any, kwargs: Any, expected: int
) -> None:
    assert int(fed.computation(*types)(function)(*args, **kwargs)) == expected
    local = fed.local(*types, framework="jax")(function)
    assert int(local(*args, **kwargs)) == expected


def test_keyword_only_parameters() -> None:
    comp = fed.computation("int32", y="int32")(only_keyword)
    assert int(comp(1, y=2)) == 12
    comp = fed.computation(y="int32", x="int32")(keywords)
    assert int(comp(x=1, y=2)) == 12
    assert int(comp(y=2, x=1)) == 12


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1,), {}, "missing a required argument: 'y'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1, 2), {"y": 3}, "multiple values for argument 'y'"),
        ((1, 2), {"z": 3}, "unexpected keyword argument 'z'"),
        ((), {}, "missing a required argument: 'x'"),
    ],
)
def test_calls_that_python_would_refuse_are_refused_in_its_words(
    args: Any, kwargs: Any, message: str
) -> None:
    comp = fed.computation("int32", "int32")(two)
    with pytest.raises(TypeError, match=message) as caught:
        comp(*args, **kwargs)
    assert "test_packing.py" in str(caught.value)


def test_types_that_do_not_fit_the_parameters_are_refused() -> None:
    with pytest.raises(FederatedTypeError, match="too many positional"):
        fed.computation("int32", "int32")(one)
    with pytest.raises(FederatedTypeError, match="missing a required argument: 'y'"):
        fed.computation("int32")(two)


def test_a_parameter_that_kept_its_default_cannot_be_passed() -> None:
    comp = fed.computation("int32")(defaulted)
    with pytest.raises(TypeError, match="too many positional"):
        comp(1, 2)


def test_types_from_annotations() -> None:
    @fed.computation
    def mean(values: "{float32}@CLIENTS", scale: float = 2.0) -> Any:
        return fed.federated_mean(values) * scale

    assert str(mean.type_signature) == (
        "(<values={float32}@CLIENTS,scale=float32> -> float32@SERVER)"
    )
    assert float(mean([1.0, 3.0], 10.0)) == 20
    assert float(mean([1.0, 3.0])) == 4


def test_a_typed_parameter_that_is_not_passed_has_its_default() -> None:
    assert int(fed.computation("int32", "int32")(defaulted)(1)) == 17
    assert int(fed.computation("int32", "int32")(defaulted)(1, y=2)) == 12


def test_an_annotation_of_any_array_leaves_the_type_open() -> None:
    @fed.local
    def add(x: torch.Tensor, y: "torch.Tensor") -> torch.Tensor:
        return x + y

    assert add(np.ones(2, np.float32), torch.ones(2)).tolist() == [2, 2]
    assert int(add(1, 2)) == 3
    layer = torch.nn.Linear(3, 2)
    x = torch.ones(3)
    np.testing.assert_allclose(fed.local(layer)(x), layer(x).detach(), rtol=1e-6)


def test_an_annotation_of_any_leaves_the_type_open() -> None:
    @fed.computation
    def double(x: Any, y: Any = 1) -> Any:
        return x * 2 + y

    assert float(double(1.5)) == 4
    assert float(double(1, y=2.5)) == 4.5


def test_an_annotation_that_describes_no_type_is_refused() -> None:
    def double(x: "flot32") -> Any:  # type: ignore[name-defined]
        return x

    with pytest.raises(FederatedTypeError, match="did you mean float32"):
        fed.computation(double)


def test_polymorphic_computations_are_traced_once_for_each_type() -> None:
    traced = []

    def double(x):  # type: ignore[no-untyped-def]
        traced.append(fed.type_of(x))
        return x * 2

    comp = fed.computation(double)
    assert int(comp(3)) == 6
    assert float(comp(1.5)) == 3
    assert int(comp(4)) == 8
    assert comp(np.float32([1, 2])).tolist() == [2, 4]
    assert [str(t) for t in traced] == ["int32", "float32", "float32[2]"]
    mapped = fed.computation(lambda v: fed.federated_map(comp, v), "{int8}@CLIENTS")
    assert str(mapped.type_signature) == "({int8}@CLIENTS -> {int8}@CLIENTS)"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2.5, "is float32, but int32 is expected"),
        (np.zeros(2, np.int32), "is int32[2], but int32 is expected"),
        ("text", "a value of class str, but int32 is expected"),
        (2**31, "is 2147483648, which int32 cannot hold"),
        ({"a": 1}, "is <a=int32>, but int32 is expected"),
        (np.int8(1), "is int8, but int32 is expected"),
        (np.array([2**40]), "has numbers that int32 cannot hold"),
    ],
)
def test_arguments_of_another_type_are_refused_with_both(value: Any, shown: str) -> None:
    comp = fed.computation("int32")(one)
    with pytest.raises(FederatedTypeError) as caught:
        comp(value)
    assert shown in str(caught.value)
    assert "test_packing.py" in str(caught.value)


def test_a_function_of_c_that_tells_no_signature_takes_arguments_by_position() -> None:
    with pytest.raises(ValueError, match="no signature"):
        inspect.signature(torch.maximum)
    greater = fed.local("int32", "int32")(torch.maximum)
    assert str(greater.type_signature) == "(<int32,int32> -> int32)"
    assert int(greater(2, 5)) == 5


class Scaled:
    """What can be called, and is no function."""

    def __call__(self, x: Any) -> Any:
        return x * 3.0


@pytest.mark.parametrize(
    "function",
    [functools.partial(operator.mul, 3.0), Scaled(), operator.methodcaller("__mul__", 3.0)],
)
def test_what_can_be_called_needs_no_decorator(function: Any) -> None:
    assert float(fed.computation(function)(np.float32(2))) == 6
    assert float(fed.computation(function, "float32")(2.0)) == 6
    assert float(fed.local(function, "float32")(2.0)) == 6


def test_a_function_that_jax_has_jitted_is_a_local_function() -> None:
    assert float(fed.local(jax.jit(lambda x: x * 3), "float32", framework="jax")(2.0)) == 6


def test_what_cannot_be_called_is_refused() -> None:
    of_a_pair = fed.computation(tuple[int, int])(lambda pair: pair[0])
    assert str(of_a_pair.type_signature) == "(<int32,int32> -> int32)"
    with pytest.raises(fed.FederatedTypeError, match="5 cannot be called"):
        fed.computation("float32")(5)
