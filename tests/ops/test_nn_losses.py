"""Losses and attention where PyTorch's rules are special."""

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import calque


def _both(function, *tensors):
    """Results and gradients of the floating tensors, on the CPU and on the device."""
    outcomes = []
    for device in ("cpu", "jax"):
        moved = [
            t.detach().clone().to(device).requires_grad_(t.is_floating_point()) for t in tensors
        ]
        out = function(*moved)
        out.sum().backward()
        grads = [t.grad.cpu() for t in moved if t.grad is not None]
        outcomes.append([out.detach().cpu(), *grads])
    return outcomes


def assert_same(function, *tensors) -> None:
    want, got = _both(function, *tensors)
    for a, b in zip(want, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy_with_weights_and_ignored_labels(reduction: str) -> None:
    target = torch.tensor([1, -100, 3, 0])
    weight = torch.rand(4)

    def loss(x):
        w, y = weight.to(x.device), target.to(x.device)
        return F.cross_entropy(x, y, weight=w, reduction=reduction, label_smoothing=0.1)

    assert_same(loss, torch.randn(4, 4))


def test_cross_entropy_over_pixels() -> None:
    target = torch.randint(0, 3, (2, 4, 5))
    assert_same(lambda x: F.cross_entropy(x, target.to(x.device)), torch.randn(2, 3, 4, 5))


@pytest.mark.parametrize("label", [7, -1])
def test_a_label_that_is_no_class_gives_nan_in_a_program(label: int) -> None:
    x = torch.randn(2, 4).to("jax")
    loss = calque.jit(F.cross_entropy)(x, torch.tensor([1, label]).to("jax"), reduction="none")
    assert loss.cpu().isnan().tolist() == [False, True]


@pytest.mark.parametrize("packed", [False, True])
def test_ctc_loss(packed: bool) -> None:
    targets = torch.tensor([[1, 2, 2], [3, 1, 0]])
    lengths = [3, 2]
    if packed:
        targets = torch.tensor([1, 2, 2, 3, 1])

    def loss(x):
        return F.ctc_loss(x.log_softmax(2), targets.to(x.device), [7, 6], lengths)

    assert_same(loss, torch.randn(7, 2, 5))


def test_ctc_loss_takes_lengths_on_the_cpu_under_jit() -> None:
    scores = torch.randn(7, 2, 5)
    targets = torch.tensor([[1, 2, 2], [3, 1, 0]])

    def step(scores, targets, lengths):
        x = scores.detach().requires_grad_()
        loss = F.ctc_loss(x.log_softmax(2), targets, torch.tensor([7, 6]), lengths)
        loss.backward()
        return loss.detach(), x.grad

    jitted = calque.jit(step)
    for lengths in (torch.tensor([3, 2]), torch.tensor([1, 2]), torch.tensor([2, 2])):
        found = jitted(scores.to("jax"), targets.to("jax"), lengths)
        for one, other in zip(found, step(scores, targets, lengths)):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)
    assert len(jitted.history) == 1


def _qkv(heads: int = 2, key_heads: int = 2, queries: int = 5, keys: int = 5):
    return (
        torch.randn(2, heads, queries, 4),
        torch.randn(2, key_heads, keys, 4),
        torch.randn(2, key_heads, keys, 6),
    )


ATTENTION = [
    ({}, {}),
    ({"is_causal": True}, {}),
    ({"is_causal": True}, {"queries": 3}),
    ({"scale": 0.3}, {"keys": 7}),
    ({"enable_gqa": True}, {"heads": 4}),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("options", "sizes"), ATTENTION)
def test_attention(options, sizes) -> None:
    assert_same(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), *_qkv(**sizes))


@pytest.mark.parametrize("shape", [(5, 5), (2, 1, 5, 5), (1, 2, 5, 5), (2, 2, 5, 5)])
def test_attention_with_an_additive_mask_that_needs_a_gradient(shape) -> None:
    assert_same(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *_qkv(), torch.randn(shape)
    )


def test_attention_of_a_fully_masked_row_is_zero() -> None:
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    mask[2] = False

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, mask.to(q.device))

    assert_same(attend, *_qkv())
    out = attend(*(t.to("jax") for t in _qkv()))
    assert out[:, :, 2].abs().sum().item() == 0


def test_attention_drops_the_same_weights_in_the_gradient() -> None:
    q, k, _ = (t.to("jax") for t in _qkv())
    v = torch.randn(2, 2, 5, 6).to("jax").requires_grad_()
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    g = torch.randn(2, 2, 5, 6).to("jax")
    out.backward(g)
    # The output is linear in v, so <out, g> = <v, gradient> only if both use the same mask.
    torch.testing.assert_close(
        (out * g).sum().cpu(), (v * v.grad).sum().cpu(), rtol=1e-4, atol=1e-4
    )
    assert not torch.equal(out, F.scaled_dot_product_attention(q, k, v, dropout_p=0.5))


def test_matrix_products_that_do_not_fit_raise_as_pytorch() -> None:
    x = torch.ones(2, 3).to("jax")
    with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied \(2x3 and 2x3\)"):
        x @ x
    with pytest.raises(RuntimeError, match="same dtype"):
        x @ torch.ones(3, 2, device="jax", dtype=torch.float64)
    beta_zero = torch.addmm(torch.full((2, 2), float("nan"), device="jax"), x, x.t(), beta=0)
    assert beta_zero.cpu().tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3)])
def test_a_class_label_out_of_range_raises_as_on_the_cpu(shape):
    scores = torch.zeros(shape)
    target = torch.zeros((2, *shape[2:]), dtype=torch.int64)
    target.view(-1)[1] = 9
    for device in ("cpu", "jax"):
        with pytest.raises(IndexError, match="Target 9 is out of bounds"):
            F.cross_entropy(scores.to(device), target.to(device))
    ignored = F.cross_entropy(scores.to("jax"), target.to("jax"), ignore_index=9)
    torch.testing.assert_close(ignored.cpu(), F.cross_entropy(scores, target, ignore_index=9))


@pytest.mark.parametrize(
    "loss", [F.soft_margin_loss, F.huber_loss, F.binary_cross_entropy_with_logits]
)
def test_a_loss_of_two_dtypes_has_that_of_the_cpu(loss: Callable[..., torch.Tensor]) -> None:
    def found(device: str, first: torch.dtype, second: torch.dtype) -> list[torch.dtype]:
        x = torch.ones(3, dtype=first, device=device).requires_grad_()
        y = loss(x, torch.ones(3, dtype=second, device=device))
        if loss is F.huber_loss and first != second:
            return [y.dtype]  # the CPU has no gradient
        return [y.dtype, torch.autograd.grad(y, x)[0].dtype]

    pairs = itertools.permutations((torch.float16, torch.float32, torch.float64), 2)
    for first, second in [*pairs, (torch.float32, torch.float32)]:
        assert found("jax", first, second) == found("cpu", first, second)


@pytest.mark.parametrize("loss", [F.soft_margin_loss, F.huber_loss])
def test_a_loss_is_not_cast_to_integers(loss: Callable[..., torch.Tensor]) -> None:
    for device in ("cpu", "jax"):
        x = torch.ones(3, dtype=torch.int64, device=device)
        with pytest.raises(RuntimeError, match="result type Float can't be cast"):
            loss(x, x.float())
