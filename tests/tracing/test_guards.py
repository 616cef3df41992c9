"""What a graph checks of its inputs: classes, orders of keys, and which tensors are one."""

import collections
import dataclasses
from typing import Any

import jax
import pytest
import torch

import calque
from calque.graph import JaxInterpreter

Pair = collections.namedtuple("Pair", "a b")
X, Y = torch.ones(2), torch.zeros(2)
P = torch.nn.Parameter(torch.ones(2))


@dataclasses.dataclass
class Both:
    a: Any
    b: Any


@dataclasses.dataclass
class Other(Both):
    pass


def by_kind(pair: Any) -> Any:
    return pair[0] * 2 + pair[1] if isinstance(pair, list) else pair[0]


def by_order(named: Any) -> Any:
    return torch.stack(list(named.values()))


def by_field(both: Any) -> Any:
    return both.a * 2 + both.b if type(both) is Both else both.a


def by_identity(a: Any, b: Any) -> Any:
    return a * 2 if a is b else a * 3


def by_class(a: Any) -> Any:
    return a * 2 if type(a) is torch.nn.Parameter else a * 3


def by_instance(a: Any) -> Any:
    return a * 2 if isinstance(a, torch.nn.Parameter) else a * 3


CASES = [
    (by_kind, ([X, Y],), ((X, Y),)),
    (by_kind, (Pair(X, Y),), ((X, Y),)),
    (by_kind, ((X, Y),), (torch.Size([1, 2]),)),
    (by_order, ({"a": X, "b": Y},), ({"b": X, "a": Y},)),
    (by_order, ({"a": X, "b": Y},), (collections.OrderedDict(a=X, b=Y),)),
    (by_field, (Both(X, Y),), (Other(X, Y),)),
    (by_identity, (X, Y), (X, X)),
    (by_class, (X,), (P,)),
    (by_class, (P,), (X,)),
    (by_instance, (X,), (P,)),
    (by_instance, (P,), (X,)),
]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("level", ["trace", "function", "aten"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_graph_follows_the_inputs_that_it_was_made_with(case: int, level: str) -> None:
    program, given, other = CASES[case]
    if level == "aten" and program is by_field:
        return  # graphs of operators do not accept data classes
    if level == "trace":
        graph = calque.trace(program, *given)
    else:
        graph = calque.record(program, *given).graph(level)  # type: ignore[arg-type]
    torch.testing.assert_close(graph(*given), program(*given))
    with pytest.raises(calque.TraceError, match="(?i)(record|trace)(d)? "):
        graph(*other)


def test_one_tensor_in_two_places_is_one_again() -> None:
    graph = calque.record(by_identity, X, X).graph()
    torch.testing.assert_close(graph(Y, Y), by_identity(Y, Y))
    with pytest.raises(calque.TraceError, match="one tensor"):
        graph(X, Y)


def test_a_program_that_does_not_ask_takes_one_tensor_for_two() -> None:
    graph = calque.trace(lambda a, b: a * 3 + b, X, Y)
    torch.testing.assert_close(graph(X, X), X * 4)


def test_the_order_of_keywords_counts() -> None:
    def f(**named):
        return torch.stack(list(named.values()))

    graph = calque.record(f, a=X, b=Y).graph()
    torch.testing.assert_close(graph(a=Y, b=X), f(a=Y, b=X))
    with pytest.raises(calque.TraceError, match="in this order"):
        graph(b=X, a=Y)


@pytest.mark.parametrize("case", [0, 3, 6, 7])
def test_guards_are_part_of_compiled_programs(case: int) -> None:
    program, given, _ = CASES[case]
    graph = calque.trace(program, *given)
    compiled = torch.compile(graph, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*given), program(*given))


def test_jax_may_sort_the_keys_of_an_argument() -> None:
    named = {"b": X, "a": Y}
    graph = calque.lower(calque.trace(by_order, named), named)
    function = JaxInterpreter(graph)
    arrays = {key: jax.numpy.asarray(value.numpy()) for key, value in named.items()}
    for run in (function, jax.jit(function)):
        assert run(arrays).tolist() == by_order(named).tolist()


def test_an_interpreter_of_torch_fx_may_run_a_graph_with_starred_parameters() -> None:
    def program(x: Any, *rest: Any, scale: int = 2, **named: Any) -> Any:
        return sum(rest, x) * scale

    x = torch.ones(3)
    for rest in ((), (x,), (x, x * 2)):
        graph = calque.trace(program, x, *rest)
        assert torch.equal(torch.fx.Interpreter(graph).run(x, *rest), program(x, *rest))
        with pytest.raises(calque.TraceError, match=r"parts in \*rest"):
            torch.fx.Interpreter(graph).run(x, *rest, x)
