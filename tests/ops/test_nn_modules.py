"""Layers on the device: outputs, gradients and running statistics are those of the CPU."""

import copy
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

import calque  # noqa: F401  (registers the device)
from calque.ops.nn import normalization

Call = Callable[[nn.Module, torch.Tensor], Any]


def _call(module: nn.Module, x: torch.Tensor) -> Any:
    return module(x)


def _leaves(result: Any) -> list[torch.Tensor]:
    leaves = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
    return [t for t in leaves if t.is_floating_point()]


def assert_same(module: nn.Module, x: torch.Tensor, call: Call = _call, steps: int = 2) -> None:
    """Outputs, gradients of inputs and parameters, and buffers agree after each of some steps."""
    module, twin = copy.deepcopy(module), copy.deepcopy(module).to("jax")
    for _ in range(steps):
        ours = x.clone().to("jax").requires_grad_(x.is_floating_point())
        theirs = x.clone().requires_grad_(x.is_floating_point())
        want, got = _leaves(call(module, theirs)), _leaves(call(twin, ours))
        assert len(want) == len(got)
        for a, b in zip(want, got, strict=True):
            assert b.device.type == "jax"
            torch.testing.assert_close(b.detach().cpu(), a.detach(), rtol=2e-4, atol=2e-4)
        if want[0].requires_grad:
            sum((o * o).sum() + o.sum() for o in want).backward()
            sum((o * o).sum() + o.sum() for o in got).backward()
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-3)
        for (name, p), q in zip(module.named_parameters(), twin.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name
            if p.grad is not None:
                torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-3, atol=1e-3)
        for a, b in zip(module.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(b.cpu(), a, rtol=2e-4, atol=2e-4)


CONVOLUTIONS = [
    (nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    (nn.Conv1d(4, 6, 2, stride=2, dilation=2, bias=False), (4, 9)),
    (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9, 8)),
    (nn.Conv2d(4, 4, 3, padding="same", groups=4, dilation=2), (2, 4, 7, 7)),
    (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), (2, 4, 7, 7)),
    (nn.Conv3d(2, 4, 3, padding=1), (1, 2, 4, 5, 4)),
    (nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1), (2, 4, 5)),
    (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, dilation=2), (2, 4, 5, 4)),
    (nn.ConvTranspose3d(2, 4, 2, stride=2), (1, 2, 3, 3, 3)),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("module", "shape"), CONVOLUTIONS, ids=lambda v: str(v)[:60])
def test_convolution(module: nn.Module, shape: tuple[int, ...]) -> None:
    assert_same(module, torch.randn(shape), steps=1)


BATCH_NORMS = [
    nn.BatchNorm2d(3),
    nn.BatchNorm2d(3, momentum=None),
    nn.BatchNorm2d(3, affine=False),
    nn.BatchNorm2d(3, track_running_stats=False),
    nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
]


@pytest.mark.parametrize("module", BATCH_NORMS, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_keeps_running_statistics(module: nn.Module, training: bool) -> None:
    module = copy.deepcopy(module).train(training)
    assert_same(module, torch.randn(4, 3, 5, 6) * 2 + 1)


def test_batch_norm_trains_then_evaluates() -> None:
    module, x = nn.BatchNorm1d(4), torch.randn(8, 4) * 3 + 2
    twin = copy.deepcopy(module).to("jax")
    for _ in range(3):
        module(x), twin(x.to("jax"))
    module.eval(), twin.eval()
    torch.testing.assert_close(twin(x.to("jax")).cpu(), module(x), rtol=1e-4, atol=1e-4)


NORMS = [
    (nn.LayerNorm(6), (2, 3, 6)),
    (nn.LayerNorm((3, 6), elementwise_affine=False), (2, 3, 6)),
    (nn.LayerNorm(6, bias=False), (2, 3, 6)),
    (nn.GroupNorm(2, 6), (2, 6, 4, 3)),
    (nn.GroupNorm(3, 6, affine=False), (2, 6, 5)),
    (nn.RMSNorm(6), (2, 3, 6)),
    (nn.LocalResponseNorm(2), (2, 6, 4, 3)),
]


@pytest.mark.parametrize(("module", "shape"), NORMS, ids=lambda v: str(v)[:60])
def test_normalization(module: nn.Module, shape: tuple[int, ...]) -> None:
    assert_same(module, torch.randn(shape), steps=1)


RECURRENT = [
    nn.RNN(3, 4, 2, nonlinearity="relu"),
    nn.RNN(3, 4, bidirectional=True),
    nn.LSTM(3, 4, 2, bidirectional=True),
    nn.LSTM(3, 4, bias=False, batch_first=True),
    nn.LSTM(3, 4, proj_size=2),
    nn.GRU(3, 4, 2, bidirectional=True),
    nn.GRU(3, 4, bias=False),
]


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("module", RECURRENT, ids=str)
def test_recurrent_layer(module: nn.Module) -> None:
    assert_same(module, torch.randn(5, 2, 3), steps=1)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layer_takes_packed_sequences(kind: Any) -> None:
    def call(module: nn.Module, x: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, torch.tensor([2, 5, 3]), enforce_sorted=False)
        out, state = module(packed)
        return pad_packed_sequence(out)[0], state

    assert_same(kind(3, 4, bidirectional=True), torch.randn(5, 3, 3), call, steps=1)


@pytest.mark.parametrize("module", [nn.LSTMCell(3, 4), nn.GRUCell(3, 4), nn.RNNCell(3, 4)], ids=str)
def test_recurrent_cell(module: nn.Module) -> None:
    assert_same(module, torch.randn(2, 3), steps=1)


@pytest.mark.parametrize("training", [True, False])
def test_multihead_attention(training: bool) -> None:
    module = nn.MultiheadAttention(8, 2, batch_first=True).train(training)
    mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])

    def call(m: nn.Module, x: torch.Tensor) -> Any:
        return (
            m(x, x, x, need_weights=False)[0],
            m(x, x, x, attn_mask=mask.to(x.device), key_padding_mask=padding.to(x.device)),
        )

    assert_same(module, torch.randn(2, 5, 8), call, steps=1)


@pytest.mark.parametrize("training", [True, False])
def test_transformer_encoder(training: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    assert_same(module, torch.randn(2, 5, 8), steps=1)


def test_transformer() -> None:
    module = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
    assert_same(module, torch.randn(2, 5, 8), lambda m, x: m(x, x[:, :3]), steps=1)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode: str) -> None:
    module = nn.EmbeddingBag(7, 3, mode=mode, padding_idx=2)
    x = torch.tensor([[1, 2, 4], [4, 3, 4], [2, 2, 2]])
    assert_same(module, x, steps=1)
    offsets = torch.tensor([0, 2, 2, 5])
    flat = torch.tensor([1, 2, 4, 5, 4, 3, 2, 6])
    assert_same(module, flat, lambda m, i: m(i, offsets.to(i.device)), steps=1)


@pytest.mark.parametrize("bag", [[0, 1, 2], [1, 0, 2], [2, 1], [1, 1], [1], []])
def test_the_largest_of_a_bag_is_nan_where_nan_comes_first(bag: list[int]) -> None:
    def largest(device: str) -> list[torch.Tensor]:
        nan = float("nan")
        weight = torch.tensor([[1.0, nan], [nan, 2.0], [3.0, 0.0]], device=device).requires_grad_()
        indices = torch.tensor(bag, dtype=torch.int64, device=device)
        out = F.embedding_bag(
            indices, weight, torch.tensor([0, len(bag)], device=device), mode="max"
        )
        out.sum().backward()
        assert weight.grad is not None
        return [out.detach().cpu(), weight.grad.cpu()]

    for ours, theirs in zip(largest("jax"), largest("cpu"), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_embedding_options() -> None:
    x = torch.tensor([[1, 2, 4], [4, 3, 4]])
    assert_same(nn.Embedding(7, 3, padding_idx=2), x, steps=1)
    assert_same(nn.Embedding(7, 3, scale_grad_by_freq=True), x, steps=1)
    assert_same(nn.Embedding(7, 3, max_norm=1.0), x, steps=1)


POOLS = [
    (nn.MaxPool1d(3, 2, padding=1), (2, 3, 9)),
    (nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), (2, 3, 8, 9)),
    (nn.MaxPool2d(2, dilation=2), (2, 3, 8, 9)),
    (nn.MaxPool3d(2), (1, 2, 4, 4, 5)),
    (nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), (2, 3, 8, 8)),
    (nn.AvgPool3d(2, divisor_override=3), (1, 2, 4, 4, 5)),
    (nn.AdaptiveAvgPool2d((3, 1)), (2, 3, 7, 5)),
    (nn.AdaptiveAvgPool2d((2, 4)), (2, 3, 4, 8)),
    (nn.AdaptiveMaxPool2d((3, 2)), (2, 3, 7, 5)),
    (nn.LPPool2d(2, 3), (2, 3, 7, 6)),
    (nn.Upsample(scale_factor=1.7, mode="bilinear"), (2, 3, 4, 5)),
    (nn.Upsample(scale_factor=2), (2, 3, 4, 5)),
    (nn.Upsample(size=(7, 9), mode="bicubic", align_corners=True), (2, 3, 4, 5)),
    (nn.Unfold(2, dilation=2, padding=1), (2, 3, 5, 6)),
    (nn.Fold((4, 5), 2), (2, 12, 12)),
    (nn.PixelShuffle(2), (2, 8, 3, 3)),
    (nn.ReflectionPad2d((1, 2, 0, 1)), (2, 3, 4, 5)),
    (nn.ReplicationPad3d(1), (1, 2, 3, 4, 3)),
    (nn.ConstantPad2d((1, -1, 2, 0), 3.5), (2, 3, 4, 5)),
    (nn.CircularPad2d(1), (2, 3, 4, 5)),
]


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("module", "shape"), POOLS, ids=lambda v: str(v)[:60])
def test_pooling_and_shape_layer(module: nn.Module, shape: tuple[int, ...]) -> None:
    assert_same(module, torch.randn(shape), steps=1)


def test_max_unpool_inverts_max_pool() -> None:
    pool, unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
    assert_same(pool, torch.randn(1, 2, 4, 6), lambda m, x: unpool(*m(x)), steps=1)


@pytest.mark.parametrize("dims", [2, 3])
def test_fractional_max_pool(dims: int) -> None:
    kind = nn.FractionalMaxPool2d if dims == 2 else nn.FractionalMaxPool3d
    samples = torch.rand(2, 3, dims)
    size = (7, 9) if dims == 2 else (5, 7, 6)

    def call(module: nn.Module, x: torch.Tensor) -> Any:
        module._random_samples = samples.to(x.device)
        return module(x)

    assert_same(kind(2, output_ratio=0.6), torch.randn(2, 3, *size), call, steps=1)


def test_samples_of_a_fractional_pool_are_checked() -> None:
    x = torch.randn(2, 3, 6, 6)
    good = torch.rand(3, 3, 2)  # more than the images need

    def pooled(device: str, samples: torch.Tensor) -> torch.Tensor:
        samples = samples.to(device)
        return F.fractional_max_pool2d(x.to(device), 2, 3, _random_samples=samples).cpu()

    assert torch.equal(pooled("jax", good), pooled("cpu", good))
    for samples in (good.double(), good[0], good[:1], good[:, :2], torch.rand(2, 3, 3)):
        with pytest.raises(RuntimeError) as expected:
            pooled("cpu", samples)
        with pytest.raises(RuntimeError) as actual:
            pooled("jax", samples)
        assert str(actual.value) == str(expected.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.adaptive_max_pool2d(x[:, :0], 2),
        lambda x: F.adaptive_avg_pool3d(x[:, :0, None], 2),
        lambda x: F.fractional_max_pool2d(x[:, :0], 2, 2),
        lambda x: F.max_unpool2d(x[:, :0], torch.zeros_like(x[:, :0]).long(), 2),
        lambda x: F.adaptive_avg_pool2d(x, (2, 0)).sum().backward(),
        lambda x: F.adaptive_max_pool2d(x, 0).sum().backward(),
        lambda x: torch.embedding_bag(x[0], x.long(), torch.zeros(1, device=x.device).long()),
        lambda x: torch.embedding_bag(x[0, 0], x[0, 0, 0].sum().long(), x[0, 0, 0].long()),
        lambda x: torch.embedding_bag(x[0, 0], x[0, 0, 0].long(), x[0, 0].long()),
        lambda x: torch.embedding_bag(x[0], x[0, 0, 0].long(), x[0, 0, 0].long()),
    ],
)
def test_shapes_are_refused_as_on_the_cpu(call: Callable[[torch.Tensor], object]) -> None:
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError, match=r"non-zero size|has to be a"):
            call(torch.zeros(2, 3, 4, 4, device=device, requires_grad=True))


def test_embedding_bag_with_offsets_refuses_bags_of_equal_size() -> None:
    """PyTorch's operator reads beyond such indices; its function makes offsets of them."""
    weight, bags = torch.randn(10, 3, device="jax"), torch.tensor([[1, 2, 4], [4, 3, 9]])
    with pytest.raises(RuntimeError, match=r"functional.embedding_bag\(input, weight\)"):
        torch.embedding_bag(weight, bags.to("jax"), torch.tensor([0, 1], device="jax"))
    found = F.embedding_bag(bags.to("jax"), weight)
    torch.testing.assert_close(found.cpu(), F.embedding_bag(bags, weight.cpu()))


@pytest.mark.parametrize("outlier", [None, 0, 17])
@pytest.mark.parametrize("count", [1, 2, 5, 64])
def test_moments_of_an_input_that_is_read_once(count: int, outlier: int | None) -> None:
    x = np.random.default_rng(count).normal(100, 3, (count, 4, 6, 5)).astype(np.float32)
    if outlier is not None:
        x[:, 1].flat[outlier] = 1e6
    axes, wide = (0, 2, 3), x.astype(np.float64)
    mean, variance = normalization._moments_at_once(jnp.asarray(x), axes)
    np.testing.assert_allclose(np.squeeze(mean, axes), wide.mean(axes), rtol=1e-5)
    np.testing.assert_allclose(np.squeeze(variance, axes), wide.var(axes), rtol=1e-4)
