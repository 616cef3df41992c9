"""What makes tensors of its own does so on the CPU, whatever the default device is."""

import pytest
import torch
from torch import nn

import calque
from calque.tracing.lowering.composites import _fills_in_order_of_memory


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2)).eval()


def test_graphs_are_made_under_a_default_device(model: nn.Module) -> None:
    _fills_in_order_of_memory.cache_clear()
    with torch.device("jax"):
        x = torch.randn(3, 4)
        own = model.to("jax")
        expected = own(x)
        traced = calque.trace(own, x)
        recorded = calque.record(own, x)
        for graph in (traced, calque.lower(traced, x), recorded.graph(), recorded.graph("aten")):
            torch.testing.assert_close(graph(x), expected)
