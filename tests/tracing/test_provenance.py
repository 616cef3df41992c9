"""Each node knows the line of the program that made it."""

import copy
import inspect

import torch

import calque
from calque.tracing import fx
from calque.tracing.core.origins import NodeOrigin, origin_of

X = torch.ones(2, 3)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.block(x))


LINE = inspect.getsourcelines(Block.forward)[1] + 1


def origins(graph: torch.fx.Graph, name: str) -> list[NodeOrigin | None]:
    return [origin_of(node) for node in graph.nodes if name in str(node.target)]


def test_a_node_has_file_line_function_module_and_call() -> None:
    for trace in (calque.symbolic_trace, fx.symbolic_trace, lambda m: calque.trace(m, X)):
        first, second = origins(trace(Model()).graph, "relu")
        assert first == NodeOrigin(__file__, LINE, "forward", "block", 0)
        assert second == NodeOrigin(__file__, LINE, "forward", "block", 1)
        assert first.text == "return self.linear(x).relu()"


def test_inputs_come_from_the_definition() -> None:
    graph = calque.symbolic_trace(Model()).graph
    (origin,) = origins(graph, "x")
    assert origin is not None
    assert origin.line == inspect.getsourcelines(Model.forward)[1]


def test_the_conventions_of_torch_are_kept() -> None:
    graph = calque.symbolic_trace(Model()).graph
    node = next(node for node in graph.nodes if node.target == "relu")
    assert node.meta["nn_module_stack"] == {"block": ("block", Block)}
    assert f'File "{__file__}", line {LINE}' in node.stack_trace


def test_the_origin_survives_copies_and_transforms() -> None:
    traced = calque.symbolic_trace(Model())
    copied = torch.fx.Graph()
    copied.graph_copy(traced.graph, {})
    results = {
        "deepcopy": copy.deepcopy(traced).graph,
        "graph_copy": copied,
        "torch's transformer": torch.fx.Transformer(traced).transform().graph,
        "our transformer": fx.Transformer(traced).transform().graph,
    }
    for how, graph in results.items():
        found = origins(graph, "relu")
        assert [(o.file, o.line, o.module, o.call) for o in found if o] == [
            (__file__, LINE, "block", 0),
            (__file__, LINE, "block", 1),
        ], how
