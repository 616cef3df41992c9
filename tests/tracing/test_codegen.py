"""The code of a graph computes what its nodes say, whatever literals stand in them."""

import copy
import enum
import functools
import math
import operator
import pickle
from collections import namedtuple
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Interpreter, Transformer

import calque
from calque import TraceError
from calque.tracing.graph.purity import TracedGraph

X = torch.tensor([-1.5, 0.0, 2.0])


class Color(enum.Enum):
    RED = "red"
    SCARLET = "red"  # noqa: PIE796
    NONE = None


class Flags(enum.Flag):
    A = 1
    B = 2


class Meters(float):
    pass


Pair = namedtuple("Pair", "left right")
SEEN: list[Any] = []


def show(x: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A leaf function, which sees what the graph gives it."""
    SEEN.append((args, kwargs))
    return x * 1


calque.tracing.wrap("show")

NUMBERS = st.one_of(
    st.integers(-9, 9),
    st.integers(),
    st.booleans(),
    st.floats(width=32),
    st.complex_numbers(),
    st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, 1e300]),
    st.builds(complex, *2 * [st.sampled_from([0.0, -0.0, 1.0, -math.inf, math.nan])]),
)
LITERALS = st.one_of(
    NUMBERS,
    st.none(),
    st.just(...),
    st.text(max_size=4),
    st.binary(max_size=3),
    st.sampled_from([torch.float16, torch.strided, torch.channels_last, torch.device("meta", 1)]),
    st.sampled_from([*Color, *Flags, Flags.A | Flags.B, float, torch.nn.Linear, len, Meters(2)]),
    st.sampled_from([np.float64(-2), np.float32("nan"), np.int8(-3), np.bool_(True), np.str_("s")]),
    st.sampled_from([np.complex64(complex("-infj")), torch.ops.aten.add.Tensor, frozenset((1, 2))]),
)
NAMES = st.sampled_from(["from", "is it", "x y", "dim", "inf"])
KEYS = NAMES | st.text("ab \n0", max_size=2)
ARGUMENTS = st.recursive(
    LITERALS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS | st.integers(), inner, max_size=2),
        st.builds(slice, inner, inner, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=6,
)


def described(value: Any) -> Any:
    """A value and its types, so that equal ones are told apart."""
    if isinstance(value, torch.Tensor):
        return value.dtype, str(value.tolist())
    if isinstance(value, slice):
        return slice, described([value.start, value.stop, value.step])
    if isinstance(value, dict):
        return dict, [(described(k), described(v)) for k, v in value.items()]
    if isinstance(value, (tuple, list)):
        kind = type(value) if hasattr(value, "_fields") else list if isinstance(value, list) else 0
        return kind, [described(part) for part in value]
    if isinstance(value, (float, np.floating)) and math.isnan(value):
        return type(value), "nan", math.copysign(1, value)
    return type(value), repr(value)


def calls(run: Any) -> tuple[Any, Any]:
    SEEN.clear()
    result = run()
    return described(result), described([list(call) for call in SEEN])


@settings(max_examples=50, deadline=None)
@given(st.lists(ARGUMENTS, max_size=3), st.dictionaries(KEYS, ARGUMENTS, max_size=2))
def test_a_leaf_function_is_given_what_the_program_gives_it(args: list, kwargs: dict) -> None:
    def f(x: torch.Tensor, inf: int = 1, device: None = None, slice: None = None) -> Any:
        return show(x, *args, **kwargs)

    graph = calque.trace(f, X)
    expected = calls(lambda: f(X))
    assert calls(lambda: graph(X)) == expected
    assert calls(lambda: Interpreter(graph).run(X, 1, None, None)) == expected


UNARY = [operator.neg, operator.pos, operator.abs]
BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.mod,
          operator.floordiv, operator.lt, operator.eq, operator.ne]  # fmt: skip
PLAIN = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([-2.0, -0.0, 0.5, math.inf, -math.inf, math.nan]),
    st.sampled_from([np.float64(-2.0), np.float32(-0.5), np.int64(-3)]),
)
EXPRESSIONS = st.recursive(
    st.one_of(st.just("x"), st.just("n"), PLAIN),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(UNARY), inner), st.tuples(st.sampled_from(BINARY), inner, inner)
    ),
    max_leaves=8,
)


def value_of(tree: Any, x: Any, n: Any) -> Any:
    if not isinstance(tree, tuple):
        return {"x": x, "n": n}.get(tree, tree) if isinstance(tree, str) else tree
    return tree[0](*(value_of(part, x, n) for part in tree[1:]))


@settings(max_examples=50, deadline=None)
@given(EXPRESSIONS, st.booleans())
def test_an_expression_is_computed_as_python_computes_it(tree: Any, known: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        return x * 0 + value_of(tree, x, x.sum())

    with np.errstate(all="ignore"):
        try:
            expected = f(X)
        except (ZeroDivisionError, OverflowError, RuntimeError, TypeError, ValueError):
            return
        graph = calque.trace(f, X) if known else calque.symbolic_trace(f)
    for run in (graph, Interpreter(graph).run):
        torch.testing.assert_close(run(X), expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("base", [-2.0, -2, -0.5, -math.inf, np.float64(-3.0)])
def test_a_power_of_a_negative_number_is_no_negative_power(base: float) -> None:
    graph = calque.trace(lambda x: base**x, X)
    torch.testing.assert_close(graph(X), base**X, equal_nan=True)
    # torch.fx's own code generation, which transforms use, would write -2.0 ** x
    again = Transformer(graph).transform()
    torch.testing.assert_close(again(X), base**X, equal_nan=True)


def test_a_parameter_may_have_the_name_of_what_a_literal_is_written_with() -> None:
    def f(x, inf, nan=1.0, device=None, slice=2, complex=3, float=4, getattr=5):
        y = x.to(torch.device("cpu")) * math.inf + inf
        return y[:slice] + nan, x * 1j, x + math.nan, float, getattr

    graph = calque.trace(f, X, 2.0)
    for each in (graph, pickle.loads(pickle.dumps(graph))):
        torch.testing.assert_close(each(X, 2.0), f(X, 2.0), equal_nan=True)


def test_a_parameter_that_is_called_torch_is_refused() -> None:
    def f(x, torch):
        return x + torch

    with pytest.raises(TraceError, match="a parameter is named torch"):
        calque.trace(f, X, 1)


def test_a_matrix_product_in_place_makes_a_new_tensor_as_in_python() -> None:
    def f(x, w):
        y = x
        y @= w
        return x + y

    x, w = torch.eye(2), torch.full((2, 2), 3.0)
    torch.testing.assert_close(calque.trace(f, x, w)(x, w), f(x, w))


def test_keywords_of_python_are_names_of_arguments() -> None:
    def f(x):
        return x.clone().random_(**{"from": 3, "to": 4})

    assert calque.trace(f, X)(X).tolist() == [3, 3, 3]


@functools.wraps(torch.relu)
def relu(x):
    return -x


def nothing(x, kept):
    return x + 1


partial = functools.partial(nothing, kept=3)
calque.tracing.wrap("relu")
calque.tracing.wrap("partial")
calque.tracing.wrap("nothing")


def test_a_leaf_function_that_says_it_is_another_is_called_itself() -> None:
    torch.testing.assert_close(calque.trace(lambda x: relu(x), X)(X), -X)
    torch.testing.assert_close(calque.trace(lambda x: partial(x), X)(X), X + 1)


@pytest.mark.parametrize("known", [True, False])
def test_what_no_graph_can_hold_is_refused_with_its_line(known: bool) -> None:
    outside = object()
    for strange in (outside, {1, 2}, np.ones(2)):
        with pytest.raises(TraceError, match=r"test_codegen.py:\d+ in .*nothing gets a value"):
            calque.trace(lambda x, s=strange: nothing(x, s), *[X] * known)
    with pytest.raises(TraceError, match="<class 'function'>"):
        calque.trace(lambda x: nothing(x, lambda y: y + x), X)


def test_a_tensor_is_made_of_elements_of_others() -> None:
    def f(x):
        return (
            torch.tensor([x[0], x[1]]),
            torch.tensor([[x[0], 2], [1j, True]]),
            torch.as_tensor([x[0].double(), 3]),
            x.new_tensor([x[0], x[1].int()]),
            torch.asarray((x.sum().half(),)),
            torch.tensor([x.int().sum(), 1.5], dtype=torch.float64),
        )

    graph = calque.trace(lambda x: [t.reshape(-1, t.shape[0]) for t in f(x)], X)
    expected = [t.reshape(-1, t.shape[0]) for t in f(-X)]
    torch.testing.assert_close(graph(-X), expected)
    assert [t.dtype for t in graph(-X)] == [t.dtype for t in expected]


CLOSING = 'x"), 1 / 0, ("'
NOT_NAMES = ["class", CLOSING, "a'\"b\n", "1", "a b"]


class OddNames(torch.nn.Module):
    """Names that a checkpoint or a configuration may bring along."""

    def __init__(self) -> None:
        super().__init__()
        layers = {name: torch.nn.Linear(3, 3) for name in NOT_NAMES}
        self.layers = torch.nn.ModuleDict({**layers, "a": torch.nn.Sequential(torch.nn.Tanh())})
        scales = {name: torch.nn.Parameter(torch.rand(3)) for name in NOT_NAMES}
        self.scales = torch.nn.ParameterDict(scales)
        for name in NOT_NAMES:
            self.register_buffer(name, torch.rand(3))

    def forward(self, x):
        for name in NOT_NAMES:
            x = self.layers[name](x) * self.scales[name] + getattr(self, name)
        return self.layers["a"](x)


@pytest.mark.parametrize(
    "make",
    [
        lambda model: calque.trace(model, X),
        lambda model: calque.symbolic_trace(model),
        lambda model: calque.record(model, X).graph("module"),
        lambda model: calque.record(model, X).graph(),
        lambda model: calque.record(model, X).graph("aten"),
    ],
)
def test_names_of_members_are_data(make: Any) -> None:
    model = OddNames()
    graph = make(model)
    again = pickle.loads(pickle.dumps(graph))
    for each in (graph, copy.deepcopy(graph), again):
        torch.testing.assert_close(each(X), model(X))
    assert len(again.graph.nodes) == len(graph.graph.nodes)

    graph = TracedGraph()
    x = graph.placeholder("x")
    called = graph.call_method(CLOSING, (x,))
    got = graph.call_function(getattr, (x, "class"))
    graph.output((called, got))
    code = graph.python_code("self").src
    assert f"getattr(x, {CLOSING!r}).__call__()" in code
    assert "getattr(x, 'class')" in code
    compile(code, "code", "exec")


class Bomb(str):
    def __repr__(self) -> str:
        return "SEEN.append(1)"


def test_a_literal_is_not_what_its_class_says_it_is() -> None:
    SEEN.clear()
    graph = calque.trace(lambda x: show(x, Bomb("s"), {Bomb("key"): 1}), X)
    graph(X)
    assert [call for call in SEEN if isinstance(call, tuple)] == [(("s", {"key": 1}), {})]
    assert 1 not in SEEN


def test_a_parameter_whose_name_is_code_is_refused() -> None:
    graph = TracedGraph()
    graph.output(graph.placeholder("x=SEEN.append(1)"))
    with pytest.raises(TraceError, match="not a Python identifier"):
        graph.python_code("self")


def _of_functions(x: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Any:
    return x * 2 if fn is None else fn(x)


def _of_lists(x: Annotated[torch.Tensor, ["any", "metadata"]]) -> Any:
    return x * 2


@pytest.mark.parametrize("program", [_of_functions, _of_lists])
def test_annotations_that_hold_lists(program: Any) -> None:
    for graph in (
        calque.symbolic_trace(program),
        calque.trace(program, X),
        calque.record(program, X).graph("function"),
        calque.record(program, X).graph("aten"),
    ):
        assert torch.equal(graph(X), X * 2)
