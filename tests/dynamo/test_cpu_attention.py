"""Attention of models on the CPU, which becomes matrix products and a softmax."""

import pytest
import torch
from torch.nn import functional as F

from calque.dynamo.graphs.graph import CompiledGraph

SEED = 3
LAYOUTS = {
    "packed": lambda packed: packed.transpose(1, 2),  # (batch, rows, heads, width) in memory
    "contiguous": lambda packed: packed.transpose(1, 2).contiguous(),
}
MASKS = {
    "none": dict,
    "causal": lambda: {"is_causal": True},
    "bool": lambda: {"attn_mask": torch.rand(5, 7) > 0.5},
    "bool by batch": lambda: {"attn_mask": torch.rand(2, 1, 5, 7) > 0.3},
    "a row of nothing": lambda: {"attn_mask": torch.arange(5)[:, None] != torch.full((7,), 2)},
    "added": lambda: {"attn_mask": torch.randn(5, 7, dtype=torch.float64), "scale": 0.3},
}


def operands(dtype):
    torch.manual_seed(SEED)
    return [torch.randn(2, n, 3, 4).to(dtype).requires_grad_() for n in (5, 7, 7)]


def attention(q, k, v, layout, options):
    return F.scaled_dot_product_attention(layout(q), layout(k), layout(v), **options)


def attended(run, layout, packed, options):
    out = run(*packed, LAYOUTS[layout], options)
    weights = torch.arange(out.numel(), dtype=out.dtype).reshape(out.shape) / out.numel()
    return out, torch.autograd.grad((out * weights).sum(), packed)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mask", MASKS)
def test_values_gradients_and_layouts_are_those_of_the_fused_operator(layout, mask):
    torch._dynamo.reset()
    packed, options = operands(torch.float64), MASKS[mask]()
    compiled = torch.compile(attention, backend="calque", fullgraph=True)
    expected, gradients = attended(attention, layout, packed, options)
    out, found = attended(compiled, layout, packed, options)
    torch.testing.assert_close(out, expected)
    assert out.stride() == expected.stride()
    torch.testing.assert_close(found, gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_as_before(dtype):
    torch._dynamo.reset()
    packed = operands(dtype)
    compiled = torch.compile(attention, backend="calque", fullgraph=True)
    expected, gradients = attended(attention, "packed", packed, {"is_causal": True})
    out, found = attended(compiled, "packed", packed, {"is_causal": True})
    torch.testing.assert_close(out, expected, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(found, gradients, atol=3e-2, rtol=3e-2)


def test_the_view_that_the_fused_operators_layout_allows_is_a_view():
    torch._dynamo.reset()
    packed = operands(torch.float32)

    def joined(q, k, v, layout, options):
        return attention(q, k, v, layout, options).transpose(1, 2).view(2, 5, 12)

    compiled = torch.compile(joined, backend="calque", fullgraph=True)
    expected, gradients = attended(joined, "packed", packed, {})
    out, found = attended(compiled, "packed", packed, {})
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(found, gradients)


def test_the_partitioner_sees_products_and_a_softmax(monkeypatch):
    torch._dynamo.reset()
    graphs = []
    start = CompiledGraph.__init__

    def seen(self, graph, *arguments):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        start(self, graph, *arguments)

    monkeypatch.setattr(CompiledGraph, "__init__", seen)
    compiled = torch.compile(attention, backend="calque", fullgraph=True)
    attended(compiled, "packed", operands(torch.float32), {})
    forward, backward = graphs
    assert not any("attention" in name for name in forward + backward)
    assert forward.count("aten.bmm.default") == 2
    assert backward.count("aten.bmm.default") < 6  # PyTorch 2.15 finds the scores again
