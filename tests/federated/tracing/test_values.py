"""What a traced function can do with values, and the AST that it leaves."""

import copy
import math
import pickle
import re
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from calque import federated as fed
from calque.errors import FederatedTypeError, TraceError
from calque.federated import building_blocks as bb


def spelled(comp: Any) -> str:
    """The AST on one line, names numbered in order of appearance."""
    seen: dict[str, str] = {}
    text = bb.compact(comp.building_block)
    return re.sub(r"(arg|call)_\d+", lambda m: seen.setdefault(m[0], f"{m[1][0]}{len(seen)}"), text)


TRACED = {
    "the argument itself": (lambda x: x, "int32", "(a0 -> a0)"),
    "an item": (lambda x: x[0], "<int32,bool>", "(a0 -> a0[0])"),
    "a named item": (lambda x: x["a"], "<a=int32>", "(a0 -> a0.a)"),
    "an attribute": (lambda x: x.a, "<a=int32>", "(a0 -> a0.a)"),
    "the last item": (lambda x: x[-1], "<int32,a=bool>", "(a0 -> a0.a)"),
    "a slice": (lambda x: x[1:], "<int32,bool,int8>", "(a0 -> <a0[1],a0[2]>)"),
    "unpacking": (lambda x: [*x], "<int32,bool>", "(a0 -> <a0[0],a0[1]>)"),
    "a dict": (lambda x: {"b": x}, "int32", "(a0 -> <b=a0>)"),
    "a literal": (lambda x: (x, 1, 2.5), "int32", "(a0 -> <a0,1,2.5>)"),
    "arithmetic": (
        lambda x: x + x,
        "int32",
        "(a0 -> (let c1=comp#add(<a0,a0>) in c1))",
    ),
    "a number at the left": (
        lambda x: 1 - x,
        "int32",
        "(a0 -> (let c1=comp#sub_1(a0) in c1))",
    ),
    "a unary operator": (lambda x: -x, "int32", "(a0 -> (let c1=comp#neg(a0) in c1))"),
    "a call": (lambda f: f(1), "(int32 -> bool)", "(a0 -> (let c1=a0(1) in c1))"),
    "a call without arguments": (lambda f: f(), "( -> bool)", "(a0 -> (let c1=a0() in c1))"),
    "a call with several arguments": (
        lambda f: f(1, b=True),
        "(<int32,b=bool> -> bool)",
        "(a0 -> (let c1=a0(<1,b=True>) in c1))",
    ),
    "a field of what clients hold": (
        lambda x: x.a,
        "{<a=int32>}@CLIENTS",
        "(a0 -> (let c1=federated_map(<(a2 -> a2.a),a0>) in c1))",
    ),
    "a field of what the server holds": (
        lambda x: x[0],
        "<int32>@SERVER",
        "(a0 -> (let c1=federated_apply(<(a2 -> a2[0]),a0>) in c1))",
    ),
    "a field of what all clients hold": (
        lambda x: x[0],
        "<int32>@CLIENTS",
        "(a0 -> (let c1=federated_map_all_equal(<(a2 -> a2[0]),a0>) in c1))",
    ),
    "arithmetic on the clients": (
        lambda x: x * 2,
        "{int32}@CLIENTS",
        "(a0 -> (let c1=federated_map(<(a2 -> comp#mul_2(a2)),a0>) in c1))",
    ),
    "arithmetic on two values of the server": (
        lambda x: x[0] + x[1],
        "<int32@SERVER,int32@SERVER>",
        (
            "(a0 -> (let c1=federated_apply(<(a2 -> comp#add(<a2[0],a2[1]>)),"
            "federated_zip(<a0[0],a0[1]>)>) in c1))"
        ),
    ),
    "a sum": (
        lambda x: fed.federated_sum(x),
        "{int32}@CLIENTS",
        "(a0 -> (let c1=federated_sum(a0) in c1))",
    ),
    "a lambda that is mapped": (
        lambda x: fed.federated_map(lambda v: (v, v), x),
        "{int32}@CLIENTS",
        "(a0 -> (let c1=federated_map(<(a2 -> <a2,a2>),a0>) in c1))",
    ),
}


@pytest.mark.parametrize("name", TRACED)
def test_the_ast_of(name: str) -> None:
    function, kind, expected = TRACED[name]
    assert spelled(fed.computation(lambda x: function(x), kind)) == expected


TYPED = {
    "{int32}@CLIENTS / 2": (lambda x: x / 2, "{float32}@CLIENTS"),
    "int32@SERVER > 1.5": (lambda x: x > 1.5, "bool@SERVER"),
    "float32[2,3]": (lambda x: x @ np.ones((3, 4), np.float32), "float32[2,4]"),
    "float32[?,3]": (lambda x: x + x[0], "float32[?,3]"),
    "float32[4]": (lambda x: x[1:3], "float32[2]"),
    "float16": (lambda x: 2 * x, "float16"),
    "int8": (lambda x: x == 3, "bool"),
    "<a=float32,b=<int32>>": (lambda x: x * 2, "<a=float32,b=<int32>>"),
    "<a=float32[2]>": (lambda x: x + x, "<a=float32[2]>"),
    "bool": (lambda x: ~x | True, "bool"),
    "uint8": (lambda x: (x << 1) ^ 3, "uint8"),
    "float32": (lambda x: abs(x) ** 2 % 3 // 1, "float32"),
    "{<x=float32,y=float32>}@CLIENTS": (lambda p: p.x - p.y, "{float32}@CLIENTS"),
    "complex64": (lambda x: x * 1j, "complex64"),
}


@pytest.mark.parametrize("text", TYPED)
def test_operators_have_the_types_that_jax_gives(text: str) -> None:
    function, expected = TYPED[text]
    kind = text.split(" ")[0]
    comp = fed.computation(lambda x: function(x), kind)
    assert str(comp.type_signature) == f"({kind} -> {expected})"


def test_operators_compute_what_numpy_does() -> None:
    x, y = np.float32([[1, 2], [3, 4]]), np.float32([5, 6])

    @fed.computation("float32[2,2]", "float32[2]")
    def everything(x: Any, y: Any) -> Any:
        return [x + y, x - 1, 2 - x, x * y, x / y, 7 // y, x % 2, x**2, x @ y, -x, x[0], x[:, 1]]

    expected = [x + y, x - 1, 2 - x, x * y, x / y, 7 // y, x % 2, x**2, x @ y, -x, x[0], x[:, 1]]
    for got, wanted in zip(everything(x, y), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_structs_are_added_field_by_field() -> None:
    @fed.computation("{<a=float32,b=<int32>>}@CLIENTS", "float32@SERVER")
    def shifted(x: Any, by: Any) -> Any:
        return x + fed.federated_broadcast(by) * 1.0, x + x

    first, second = shifted([{"a": 1.0, "b": (2,)}, {"a": 3.0, "b": (4,)}], 10.0)
    assert first["a"].tolist() == [11, 13]
    assert first["b"][0].tolist() == [12, 14]
    assert second["b"][0].tolist() == [4, 8]


def test_a_value_that_is_used_often_is_computed_once() -> None:
    @fed.computation("int32")
    def power(x: Any) -> Any:
        for _ in range(200):
            x = x + x
        return x

    assert len(spelled(power)) < 20_000
    assert int(power(np.int32(0))) == 0


def test_python_loops_and_conditions_happen_while_tracing() -> None:
    @fed.computation("{<float32,float32,float32>}@CLIENTS")
    def totals(x: Any) -> Any:
        return [fed.federated_sum(part) for part in x if len(x) == 3]

    assert [float(v) for v in totals([(1.0, 2.0, 3.0), (4.0, 5.0, 6.0)])] == [5, 7, 9]


def test_a_mapped_function_may_use_values_that_live_nowhere() -> None:
    @fed.computation("{int32}@CLIENTS", "int32")
    def scaled(x: Any, factor: Any) -> Any:
        return fed.federated_map(lambda v: v * factor, x)

    assert scaled([1, 2], 10).tolist() == [10, 20]


def test_computations_call_each_other() -> None:
    @fed.computation("{int32}@CLIENTS")
    def total(x: Any) -> Any:
        return fed.federated_sum(x)

    @fed.computation("{int32}@CLIENTS", "{int32}@CLIENTS")
    def both(a: Any, b: Any) -> Any:
        return total(a) + total(b)

    assert int(both([1, 2], [3, 4])) == 10


def test_a_computation_defined_inside_another_is_its_own() -> None:
    @fed.computation("int32")
    def outer(x: Any) -> Any:
        @fed.computation("int32")
        def inner(y: Any) -> Any:
            return y + 1

        return inner(x) * 2

    assert int(outer(3)) == 8


def test_torch_and_numpy_arrays_stand_at_either_side() -> None:
    one = np.float32([1, 2])
    comp = fed.computation(lambda x: [x + one, one + x, np.float32(2) * x], "float32[2]")
    assert [v.tolist() for v in comp(one)] == [[2, 4], [2, 4], [2, 4]]


MISTAKES = {
    "no such field": ("<a=int32>", lambda x: x.b, "has no field 'b'", "It has 'a'."),
    "no such index": ("int32", lambda x: x.b, "has no field 'b'", "structs only"),
    "called": (
        "int32",
        lambda x: x(1),
        "a value of type int32 is not a function",
        "functions only",
    ),
    "wrong argument": (
        "(int32 -> int32)",
        lambda f: f(2.5),
        "takes int32 is called with float32",
        "Pass an argument",
    ),
    "two places": (
        "<{int32}@CLIENTS,int32@SERVER>",
        lambda x: x[0] + x[1],
        "different placements: {int32}@CLIENTS and int32@SERVER",
        "federated_broadcast",
    ),
    "shapes": (
        "<float32[2],float32[3]>",
        lambda x: x[0] + x[1],
        "'add' cannot be applied to float32[2] and float32[3]",
        "whose shapes broadcast",
    ),
    "shapes on the clients": (
        "<{float32[2]}@CLIENTS,{float32[3]}@CLIENTS>",
        lambda x: x[0] * x[1],
        "'mul' cannot be applied to float32[2] and float32[3]",
        "whose shapes broadcast",
    ),
    "structs of other fields": (
        "<<a=int32>,<b=int32>>",
        lambda x: x[0] + x[1],
        "'add' cannot be applied to <a=int32> and <b=int32>",
        "the same fields",
    ),
    "sequences": ("int32*", lambda x: x + 1, "cannot be applied to int32* and 1", "tensors"),
    "length of a sequence": ("int32*", len, "the length of int32* is not known", "sequence_reduce"),
    "elements of a number": ("int32", list, "int32 has no length", "Compute with the value itself"),
    "items of a sequence": ("int32*", lambda x: x[0], "int32* cannot be indexed", "structs"),
    "nothing returned": ("int32", lambda x: None, "returns None", "Return its result"),
    "nothing in a struct": ("int32", lambda x: (x, None), "None is used as a value", "Return"),
    "something else returned": (
        "int32",
        lambda x: object(),
        "cannot be a value",
        "arrays, numbers",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_types_are_refused_with_both_types_and_a_remedy(name: str) -> None:
    kind, function, what, remedy = MISTAKES[name]
    with pytest.raises(FederatedTypeError) as caught:
        fed.computation(lambda x: function(x), kind)
    for part in (what, remedy, "test_values.py:"):
        assert part in str(caught.value)


REFUSED = {
    "if": (lambda x: 1 if x > 0 else 2, "is used as a condition"),
    "float": (lambda x: float(x), "is converted to a number"),
    "range": (lambda x: range(x), "is converted to a number"),
    "round": (lambda x: round(x, 1), "is converted to a number"),
    "trunc": (lambda x: math.trunc(x), "is converted to a number"),
    "pickle": (lambda x: pickle.dumps(x), "is pickled"),
    "a power with a modulus": (lambda x: pow(x, 2, 3), r"Write \(x \*\* y\) % z"),
    "set": (lambda x: {x}, "is used as a key"),
    "dict key": (lambda x: {x: 1}, "is used as a key"),
    "attribute": (lambda x: setattr(x, "a", 1), "cannot be assigned the field 'a'"),
    "item": (lambda x: x.__setitem__(0, 1), "cannot be assigned an item"),
    "deleted item": (lambda x: x.__delitem__(0), "cannot have an item deleted"),
    "in": (lambda x: 3 in x, "is used with `in`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_the_number_itself_is_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(TraceError, match=message) as caught:
        fed.computation(lambda x: function(x), "int32")
    assert "test_values.py:" in str(caught.value)


def test_hasattr_is_true_for_fields_only() -> None:
    seen = []

    @fed.computation("<a=int32>")
    def look(x: Any) -> Any:
        seen.extend([hasattr(x, "a"), hasattr(x, "bananas"), hasattr(x.a, "a")])
        return x

    assert seen == [True, False, False]


def test_a_value_cannot_leave_the_function_that_made_it() -> None:
    kept = []

    @fed.computation("{int32}@CLIENTS")
    def leak(x: Any) -> Any:
        fed.federated_map(lambda v: kept.append(v + 1) or v, x)
        return x

    with pytest.raises(FederatedTypeError, match="outside the function that created it"):
        fed.computation(lambda x: x + kept[0], "int32")
    with pytest.raises(FederatedTypeError, match="outside the function that created it"):
        kept[0] + 1


def test_a_failed_trace_leaves_no_scope_behind() -> None:
    with pytest.raises(ZeroDivisionError):
        fed.computation(lambda x: 1 / 0, "int32")
    with pytest.raises(FederatedTypeError, match="called outside"):
        fed.federated_sum([1])


def test_type_of() -> None:
    seen = []
    comp = fed.computation(lambda x: seen.append(fed.type_of(x)) or x, "{int32}@CLIENTS")
    assert [str(t) for t in seen] == ["{int32}@CLIENTS"]
    assert fed.type_of(comp) == comp.type_signature
    assert str(fed.type_of(np.zeros(2, np.int8))) == "int8[2]"


def test_repr_shows_the_block_and_the_type() -> None:
    seen = []
    fed.computation(lambda x: seen.append(repr(x.a)) or x, "<a=int32>")
    assert re.fullmatch(r"<Value arg_\d+\.a of type int32>", seen[0])


@pytest.mark.parametrize(
    "mapped",
    [
        lambda x, k: fed.federated_map(lambda v: v * k, x),
        lambda x, k: fed.federated_map(lambda v: (v, k), x),
        lambda x, k: fed.federated_map(lambda v: fed.federated_sum(x), x),
    ],
)
def test_a_mapped_function_cannot_use_what_lives_elsewhere(mapped: Any) -> None:
    with pytest.raises(FederatedTypeError, match="it uses a value that is placed") as caught:
        fed.computation(lambda x, k: mapped(x, k), "{float32}@CLIENTS", "float32@SERVER")
    assert "float32@SERVER" in str(caught.value)


def test_numbers_that_are_equal_and_not_the_same_are_kept_apart() -> None:
    @fed.computation("float32")
    def signs(x: Any) -> Any:
        return x * 0.0, x * -0.0, x + 1, x + 1.0

    @fed.computation("int32")
    def kinds(x: Any) -> Any:
        return x + 1, x + 1.0, x + True

    assert [str(np.asarray(v)) for v in signs(2.0)] == ["0.0", "-0.0", "3.0", "3.0"]
    assert [v.dtype.name for v in kinds(2)] == ["int32", "float32", "int32"]


def test_tensors_are_indexed_as_numpy_does() -> None:
    @fed.computation("float32[3,2]@SERVER")
    def items(x: Any) -> Any:
        return x[[0, 2]], x[torch.tensor([2, 0])], x[-1], x[1:, 0], x[np.array([True, False, True])]

    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    for got, wanted in zip(items(x), (x[[0, 2]], x[[2, 0]], x[-1], x[1:, 0], x[[0, 2]])):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("index", [3, -4, (0, 2), [0, 3]], ids=str)
def test_an_index_out_of_bounds_is_refused(index: Any) -> None:
    with pytest.raises(FederatedTypeError, match="out of bounds"):
        fed.computation("{float32[3,2]}@CLIENTS")(lambda x: x[index])


def test_an_index_that_is_a_value_is_refused_with_a_remedy() -> None:
    with pytest.raises(FederatedTypeError, match="local function that takes both"):
        fed.computation("float32[3]@SERVER", "int32@SERVER")(lambda x, i: x[i])


@pytest.mark.parametrize(
    "function",
    [
        *(np.mean, np.sum, np.max, np.asarray, np.ones_like, np.shape, lambda x: np.stack([x, x])),
        *(np.sin, np.exp, np.add.reduce, lambda x: np.maximum(x, 0.0), lambda x: np.add(x, 1, x)),
    ],
)
def test_a_function_of_numpy_is_refused(function: Any) -> None:
    """Without that, numpy takes a value for a single object: `np.mean(x)` would be `x`."""
    with pytest.raises(TraceError, match="numpy|array"):
        fed.computation("{float32}@CLIENTS")(lambda x: function(x))


def test_functions_of_numpy_that_are_operators_are_those() -> None:
    two = np.full(2, 2.0, np.float32)
    functions = [
        lambda x: (np.add(x, 1), np.subtract(two, x), np.power(two, x), np.negative(x)),
        lambda x: (two - x, two < x, two >= x, two % x, two == x, np.float32(3) ** x),
        lambda x: (np.less(two, x), np.floor_divide(two, x), np.absolute(-x)),
    ]
    given = np.array([0.5, 3.0], np.float32)
    for function in functions:
        found = fed.computation("float32[2]@SERVER")(function)(given)
        for got, wanted in zip(found, function(given), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "function", [torch.sin, torch.nn.functional.relu, lambda x: torch.stack([x, x])]
)
def test_a_function_of_torch_is_refused(function: Any) -> None:
    with pytest.raises(FederatedTypeError, match="passed to torch's"):
        fed.computation("{float32}@CLIENTS")(lambda x: function(x))


def test_a_value_is_printed_and_not_formatted_as_a_number() -> None:
    with pytest.raises(TraceError, match="formatted with '.2f'"):
        fed.computation("float32")(lambda x: f"{x:.2f}")
    fed.computation("float32")(lambda x: (x, f"{x}")[0])


def test_a_copy_of_a_value_is_the_value() -> None:
    @fed.computation("<a=int32>@SERVER")
    def copied(x: Any) -> Any:
        return copy.deepcopy([x, copy.copy(x)])

    assert str(copied.type_signature.result) == "<<a=int32>@SERVER,<a=int32>@SERVER>"


def test_a_field_cannot_be_named_by_a_number() -> None:
    with pytest.raises(FederatedTypeError, match="1 is not a valid name of a field"):
        fed.computation("int32")(lambda x: {1: x})
    with pytest.raises(FederatedTypeError, match="1 is not a valid name of a field"):
        fed.type_of({1: 2.0})


def test_a_number_that_the_dtype_cannot_hold_is_an_error_that_shows_both() -> None:
    with pytest.raises(FederatedTypeError, match="int32 and 2147483648"):
        fed.computation("int32")(lambda x: x + 2**31)


@pytest.mark.parametrize(
    "operator",
    [lambda x: x + 300, lambda x: 300 - x, lambda x: x * -1, lambda x: x < 300, lambda x: x == -1],
)
@pytest.mark.parametrize("kind", ["uint8", "{uint8[2]}@CLIENTS", "<a=float32,b=uint8>@SERVER"])
def test_a_number_is_not_wrapped_around(operator: Any, kind: str) -> None:
    with pytest.raises(FederatedTypeError, match="uint8.*\n.*cannot hold that number"):
        fed.computation(kind)(lambda x: operator(x))


def test_a_division_takes_any_number() -> None:
    quotient = fed.computation("uint8")(lambda x: x / 300)
    np.testing.assert_allclose(quotient(np.uint8(3)), 0.01, rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        jnp.sin,
        jnp.sum,
        lambda x: jnp.where(x > 0, x, 0),
        lambda x: jnp.stack([x, x]),
        jax.lax.exp,
        jax.jit(lambda x: x),
        jax.vmap(lambda x: x),
        jax.grad(lambda x: x),
    ],
)
def test_a_function_of_jax_is_refused_at_the_line(function: Any) -> None:
    for called in (lambda x: function(x), lambda x: fed.federated_map(lambda y: function(y), x)):
        with pytest.raises(FederatedTypeError, match="passed to a function of array") as caught:
            fed.computation("{float32[2]}@CLIENTS")(called)
        error = caught.value
        assert str(error).startswith(f"{__file__}:") and "federated.local" in str(error)
        assert error.__cause__ is None and error.__context__ is None
        assert {f.filename for f in traceback.extract_tb(error.__traceback__)} == {__file__}


def test_sizes_that_do_not_fit_at_run_time_name_the_line_of_the_operator() -> None:
    @fed.computation("{float32[?]}@CLIENTS", "{float32[?]}@CLIENTS")
    def product(a: Any, b: Any) -> Any:
        return fed.federated_sum(a * b)

    line = product.__wrapped__.__code__.co_firstlineno + 2
    said = rf"{__file__}:{line} in product: the operator 'mul' .* float32\[3\] and float32\[4\]"
    with pytest.raises(fed.FederatedTypeError, match=said):
        product(np.ones((2, 3), np.float32), np.ones((2, 4), np.float32))


def test_the_values_of_clients_are_not_summed_by_python() -> None:
    with pytest.raises(FederatedTypeError, match="no length.*\n.*federated_sum"):
        fed.computation("{float32}@CLIENTS")(lambda value: sum(value))
