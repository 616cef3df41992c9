"""Passes of torch.fx take calque's graphs as they take torch.fx's own."""

import copy
from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.normalize import NormalizeArgs, NormalizeOperators
from torch.fx.experimental.optimization import fuse
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional as F

import calque


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        y = torch.sigmoid(F.relu(self.norm(self.conv(x)))) * scale
        if x.shape[0] > 1:
            y = y - y.mean(0, keepdim=True)
        return F.log_softmax(self.head(y.mean((2, 3))), dim=1)


def _shapes(graph: fx.GraphModule, x: torch.Tensor) -> fx.GraphModule:
    ShapeProp(graph).propagate(x)
    return graph


PASSES: dict[str, Callable[[fx.GraphModule, torch.Tensor], fx.GraphModule]] = {
    "fuse": lambda graph, _: cast(fx.GraphModule, fuse(graph)),
    "shapes": _shapes,
    "named arguments": lambda graph, _: NormalizeArgs(graph).transform(),
    "operators": lambda graph, _: NormalizeOperators(graph).transform(),
    "identity": lambda graph, _: fx.Transformer(graph).transform(),
}


@pytest.mark.parametrize("capture", ["trace", "record"])
@pytest.mark.parametrize("name", PASSES)
def test_a_pass_keeps_what_the_graph_computes(name: str, capture: str) -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(3, 1, 6, 6)
    model(x)
    model.eval()
    graph = calque.trace(model, x) if capture == "trace" else calque.record(model, x).graph()
    changed = PASSES[name](copy.deepcopy(graph), x)
    torch.testing.assert_close(changed(x), model(x))
    with pytest.raises(calque.TraceError, match="scale"):
        changed(x, 3.0)
