"""`flex_attention` on the device, compiled and eager, against attention written out on the CPU."""

import math

import jax
import jax.numpy as jnp
import pytest
import torch
import torch._dynamo
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from calque.dynamo.graphs import graph
from calque.graph.flex import _scatter

B, H, L, S, E = 2, 4, 12, 20, 8


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def written_out(q, k, v, score_mod, mask_mod):
    """Attention as `flex_attention` defines it, with whole matrices of positions."""
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    at = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    scores = score_mod(scores, *at)
    scores = scores.masked_fill(~mask_mod(*at), -math.inf)
    weights = scores.softmax(-1).nan_to_num(0)  # a fully masked row
    return weights @ v, scores.logsumexp(-1)


SCORES = {
    "none": (lambda s, b, h, q, k, table, factor: s),
    "a table": (lambda s, b, h, q, k, table, factor: s + table[h, q - k + S]),
    "a factor": (lambda s, b, h, q, k, table, factor: torch.tanh(s * factor) + h * 0.1),
    "detached": (lambda s, b, h, q, k, table, factor: s * s.detach()),
}
MASKS = {
    "none": lambda b, h, q, k: q >= -1,
    "causal": lambda b, h, q, k: q >= k,
    "no key for some": lambda b, h, q, k: (q > 2) & (q - k < 5),
}


def inputs(kv_heads=H):
    q = torch.randn(B, H, L, E)
    k, v = (torch.randn(B, kv_heads, S, E) for _ in range(2))
    return [t.requires_grad_() for t in (q, k, v, torch.randn(H, L + S), torch.tensor(0.5))]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("score", "mask"),
    [
        ("none", "causal"),
        ("a table", "none"),
        ("a table", "no key for some"),
        ("a factor", "causal"),
        ("detached", "no key for some"),
    ],
)
def test_compiled_forward_and_backward(score, mask):
    score_mod, mask_mod = SCORES[score], MASKS[mask]
    leaves = inputs()

    def reference(q, k, v, table, factor):
        return written_out(q, k, v, lambda s, *at: score_mod(s, *at, table, factor), mask_mod)[0]

    def flex(q, k, v, table, factor):
        block_mask = create_block_mask(mask_mod, None, None, L, S, device="jax")
        return flex_attention(q, k, v, lambda s, *at: score_mod(s, *at, table, factor), block_mask)

    check(torch.compile(flex, backend="calque"), reference, leaves)


def check(got, want, leaves):
    ours = [leaf.detach().to("jax").requires_grad_() for leaf in leaves]
    results = got(*ours), want(*leaves)
    weights = torch.randn(results[1].shape)
    torch.testing.assert_close(results[0].cpu(), results[1], rtol=1e-4, atol=1e-5)
    (results[0] * weights.to("jax")).sum().backward()
    (results[1] * weights).sum().backward()
    for mine, leaf in zip(ours, leaves, strict=True):
        expected = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        found = torch.zeros_like(leaf) if mine.grad is None else mine.grad.cpu()
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("compiled", [False, True])
def test_shared_heads_and_the_logarithm_of_the_sum(compiled):
    leaves = inputs(kv_heads=2)[:3]

    def flex(q, k, v):
        out, aux = flex_attention(q, k, v, enable_gqa=True, return_aux=AuxRequest(lse=True))
        return out.sum(-1) + aux.lse

    def reference(q, k, v):
        out, lse = written_out(q, k, v, lambda s, *at: s, MASKS["none"])
        return out.sum(-1) + lse

    check(torch.compile(flex, backend="calque") if compiled else flex, reference, leaves)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_eager_with_a_score_and_a_mask():
    leaves = inputs()[:3]
    block_mask = create_block_mask(MASKS["causal"], None, None, L, S, device="jax")

    def score_mod(s, b, h, q, k):
        return s + (q - k) * 0.1

    def flex(q, k, v):
        return flex_attention(q, k, v, score_mod, block_mask)

    check(flex, lambda *a: written_out(*a, score_mod, MASKS["causal"])[0], leaves)


def test_the_gradient_of_a_table_needs_no_table_for_each_score(monkeypatch):
    """The compiled backward holds no array of scores times entries of the table."""
    length = 64

    def flex(q, table):
        return flex_attention(q, q, q, lambda s, b, h, q, k: s + table[q - k + length])

    q = torch.randn(1, 1, length, E, device="jax", requires_grad=True)
    table = torch.zeros(2 * length, device="jax", requires_grad=True)
    sizes = []
    original = graph.materialized

    def watched(closed):
        sizes.extend(v.aval.size for e in closed.jaxpr.eqns for v in e.outvars)
        return original(closed)

    monkeypatch.setattr(graph, "materialized", watched)
    torch.compile(flex, backend="calque")(q, table).sum().backward()
    assert table.grad.shape == table.shape
    assert max(sizes) < 4 * length * length


def test_values_without_indices_are_summed_into_a_number():
    values = jnp.arange(6.0).reshape(2, 3)
    every = jax.vmap(jax.vmap(lambda v: _scatter((), [], v), out_axes=None), out_axes=None)
    assert float(every(values)) == 15
    rows = jax.vmap(lambda v: _scatter((3,), [], v), out_axes=None)
    assert rows(values).tolist() == [3, 5, 7]
