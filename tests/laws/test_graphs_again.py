"""A graph that is recorded again, or printed and read again, is the graph that it was."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx import GraphModule

import calque
from calque.comparing.naming import called
from tests.laws.programs import PROGRAMS
from tests.laws.test_generated_programs import Step, program_of, steps
from tests.tracing.record.traps import TRAPS

pytestmark = pytest.mark.usefixtures("few_objects")  # for programs that collect garbage

GRAPHS: dict[str, Callable[..., GraphModule]] = {
    "functions": lambda program, *args: calque.record(program, *args).graph(),
    "layers": lambda program, *args: calque.record(program, *args).graph("module"),
    "operators": lambda program, *args: calque.record(program, *args).graph("aten"),
    "traced": calque.trace,
}
CORPUS: dict[str, Callable[[], tuple[Any, Callable[[], tuple[Any, ...]]]]] = dict(PROGRAMS)
CORPUS |= {
    f"trap {name}": (lambda trap=trap: (trap.make(), trap.draw))
    for name, trap in TRAPS.items()
    if trap.verdict == "right"
}


KINDS = ["functions", *(pytest.param(k, marks=pytest.mark.conformance) for k in [*GRAPHS][1:])]


def graph_of(kind: str, program: Any, args: tuple[Any, ...]) -> GraphModule:
    try:
        return GRAPHS[kind](program, *copy.deepcopy(args))
    except (calque.TraceError, RuntimeError, NotImplementedError) as error:
        if kind in ("operators", "traced"):
            pytest.skip(f"no such graph: {str(error).splitlines()[0]}")
        raise


def recorded_again(graph: GraphModule, args: tuple[Any, ...]) -> GraphModule:
    """The graph of a run of a graph, as deep as that."""
    leaves = {str(node.target) for node in graph.graph.find_nodes(op="call_module")}
    recording = calque.record(graph, *copy.deepcopy(args))
    return recording.graph(leaf=lambda module, path: path in leaves)


def assert_same(found: GraphModule, graph: GraphModule) -> None:
    differences = calque.diff(graph, found)
    assert not differences, differences


def outcome(graph: GraphModule, args: tuple[Any, ...], seed: int) -> list[torch.Tensor]:
    """What a copy of a graph gives, and what it makes of its arguments and buffers."""
    graph, args = copy.deepcopy((graph, args))
    torch.manual_seed(seed)
    result = graph(*args)
    leaves = torch.utils._pytree.tree_leaves((result, args, dict(graph.named_buffers())))
    return [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]


# Equivalent forms: a block starts with a check, a fresh constant is a clone, and an object is
# created by calling its class.
REWRITTEN = {"is_grad_enabled", "fresh", "rebuilt"}


@pytest.mark.sampled(40)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CORPUS)
def test_recording_a_replay_gives_the_graph(name: str, kind: str) -> None:
    program, draw = CORPUS[name]()
    args = draw()
    graph = graph_of(kind, program, args)
    again = recorded_again(graph, args)
    for each in (args, draw()):
        try:
            expected = outcome(graph, each, 1)
        except calque.TraceError:  # operators that depend on values read by the program
            assert kind == "operators"
            assert each is not args
            with pytest.raises(calque.TraceError, match="when this was recorded"):
                outcome(again, each, 1)
            continue
        torch.testing.assert_close(outcome(again, each, 1), expected, equal_nan=True)
    if kind == "traced" or REWRITTEN & set(map(called, graph.graph.nodes)):
        graph, again = again, recorded_again(again, args)
    assert_same(again, graph)


def read_again(graph: GraphModule) -> Callable[..., Any]:
    """The function that the printed code defines."""
    printed = graph.graph.python_code("self")
    names = dict(printed.globals)
    exec(compile(printed.src, "<printed>", "exec"), names)
    return lambda *args: names["forward"](graph, *args)


@pytest.mark.sampled(40)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CORPUS)
def test_printed_code_computes_what_the_graph_does(name: str, kind: str) -> None:
    program, draw = CORPUS[name]()
    args = draw()
    graph = graph_of(kind, program, args)
    twin = copy.deepcopy(graph)
    twin.forward = read_again(twin)  # type: ignore[method-assign]
    given, same = copy.deepcopy(args), copy.deepcopy(args)
    torch.manual_seed(1)
    expected = graph(*given)
    torch.manual_seed(1)
    found = twin.forward(*same)
    leaves = torch.utils._pytree.tree_leaves
    torch.testing.assert_close(_tensors(leaves(found)), _tensors(leaves(expected)), equal_nan=True)
    torch.testing.assert_close(_tensors(leaves(same)), _tensors(leaves(given)), equal_nan=True)


def _tensors(values: list[Any]) -> list[torch.Tensor]:
    return [v.detach() for v in values if isinstance(v, torch.Tensor)]


@pytest.mark.parametrize("kind", ["functions", "layers", "traced"])
@settings(max_examples=10, deadline=None)
@given(plan=st.lists(steps, min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_generated_programs_are_recorded_and_printed_again(
    kind: str, plan: list[Step], seed: int
) -> None:
    torch.manual_seed(seed)
    args = torch.randn(4), torch.randn(2, 2)
    graph = GRAPHS[kind](program_of(plan), *copy.deepcopy(args))
    again = recorded_again(graph, args)
    assert_same(recorded_again(again, args), again)
    found = read_again(graph)(*copy.deepcopy(args))
    torch.testing.assert_close(found, graph(*copy.deepcopy(args)))


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda width: nn.Linear(width, width),
    "relu in place": lambda width: nn.Sequential(nn.ReLU(inplace=True)),
    "norm": nn.LayerNorm,
    "gru": lambda width: _First(nn.GRU(width, width, batch_first=True)),
    "attention": lambda width: _Attention(width),
    "convolution": lambda width: nn.Conv1d(3, 3, 3, padding=1),
}


class _First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0]


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("kind", GRAPHS)
@settings(max_examples=5, deadline=None)
@given(plan=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=5))
def test_generated_models_agree_with_every_graph(kind: str, plan: list[str]) -> None:
    model = nn.Sequential(*(LAYERS[name](4) for name in plan))
    graph = GRAPHS[kind](model, torch.randn(2, 3, 4))
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(graph(x.clone()), model(x.clone()))
    again = recorded_again(graph, (x.clone(),))
    assert_same(recorded_again(again, (x.clone(),)), again)
