"""Whatever node of a graph gives something else, its line is named."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.node import Node

import calque
from calque.comparing.naming import writes
from calque.tracing.core.origins import origin_of
from tests.comparing.test_diff import GRAPHS
from tests.laws.programs import PROGRAMS


def changeable(graph: torch.fx.GraphModule) -> Iterator[Node]:
    """The nodes of floating-point tensors that no node writes to."""
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        is_float = isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 0
        if node.op.startswith("call") and is_float and node.users:
            if not (writes(node) or any(map(writes, node.users))):
                yield node


def changed(graph: torch.fx.GraphModule, name: str, add: Any) -> torch.fx.GraphModule:
    """A copy in which what a node gives is one more."""
    made = copy.deepcopy(graph)
    node = next(each for each in made.graph.nodes if each.name == name)
    with made.graph.inserting_after(node):
        more = made.graph.call_function(add, (node, 1.0))
    more.meta = dict(node.meta)
    node.replace_all_uses_with(more, delete_user_cb=lambda user: user is not more)
    made.recompile()
    return made


@pytest.mark.sampled(12)
@pytest.mark.parametrize("level", ["symbolic", "recorded", "layers", "operators"])
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "Counter"])
def test_the_line_of_a_changed_node_is_named(name: str, level: str) -> None:
    program, draw = PROGRAMS[name]()
    try:
        graph = GRAPHS[level](program, *draw())
    except calque.TraceError:
        pytest.skip("there is no such graph")
    add = torch.ops.aten.add.Tensor if level == "operators" else torch.add
    for node in [*changeable(graph)][:3]:
        first = calque.diff(graph, changed(graph, node.name, add), *draw()).first
        assert first is not None and first.origin is not None, node
        origin = origin_of(node)
        assert origin is not None and first.origin[:2] == origin[:2], (node, first)


class Several(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        more = x + 1
        return {"first": x.exp(), "second": more}


@pytest.mark.parametrize("level", ["recorded", "operators"])
def test_the_line_of_a_result_is_named_though_no_node_is_compared(level: str) -> None:
    x = torch.randn(3)
    graph = calque.record(Several(), x).graph("aten")
    node = next(node for node in graph.graph.nodes if "exp.default" in str(node.target))
    other = changed(graph, node.name, torch.ops.aten.add.Tensor)
    first = calque.diff(GRAPHS[level](Several(), x), other, x).of("values")[0]
    assert (
        first.origin is not None
        and first.origin.text == 'return {"first": x.exp(), "second": more}'
    )
