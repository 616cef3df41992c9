"""Attention by cuDNN, with operators in its place that have no gradients but cuDNN's."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import mlir
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import calque
from calque.ops.nn import flash_attention, softmax_attention

SHAPE = (2, 4, 16, 8)


def plain(*operands: Array) -> tuple[Array, Array]:
    q, k, v = operands
    return softmax_attention.attend(q, k, v, None, True, None, None, 0.0)


def plain_gradients(*operands: Array) -> tuple[Array, ...]:
    return jax.vjp(lambda *qkv: plain(*qkv)[0], *operands[:3])[1](operands[3])


def opaque(name: str, function: Any, results: Any) -> Any:
    """An operator without rules for differentiation."""
    made = Primitive(name)
    made.multiple_results = True
    made.def_abstract_eval(results)
    mlir.register_lowering(made, mlir.lower_fun(function, multiple_results=True))
    return made.bind


def shapes(q: Any, k: Any, v: Any) -> list[Any]:
    return [q, q.update(shape=q.shape[:-1], dtype=np.dtype(np.float32))]


FORWARD = opaque("flash", plain, shapes)
BACKWARD = opaque("flash_gradients", plain_gradients, lambda q, k, v, g: [q, k, v])


@jax.custom_vjp
def of_cudnn(q: Array, k: Array, v: Array) -> Any:
    return tuple(FORWARD(q, k, v))


of_cudnn.defvjp(
    lambda *operands: (tuple(FORWARD(*operands)), operands),
    lambda operands, incoming: tuple(BACKWARD(*operands, incoming[0])),
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The device is one with cuDNN; yields a list that the calls of it are added to."""
    found: list[Any] = []

    def counted(q: Array, k: Array, v: Array, is_causal: bool, scale: float | None) -> Any:
        assert is_causal
        found.append(q.shape)
        return of_cudnn(q, k, v)

    monkeypatch.setattr(flash_attention, "_exists", lambda: True)
    monkeypatch.setattr(flash_attention, "_of_cudnn", counted)
    jax.clear_caches()
    yield found
    jax.clear_caches()


def difference(ours: Tensor, wanted: Tensor) -> float:
    wide = wanted.detach().double()
    return float((ours.detach().cpu().double() - wide).norm() / wide.norm())


def derivatives(*qkv: Tensor) -> tuple[Tensor, ...]:
    """The output, its gradients, and gradients of something of both."""
    out = F.scaled_dot_product_attention(*qkv, is_causal=True)
    first = torch.autograd.grad(out.double().square().sum(), qkv, create_graph=True)
    squares = torch.stack([g.double().square().sum() for g in first]).sum()
    both = squares + (out.double() ** 3).sum() * first[0].sum()
    return out, *first, *torch.autograd.grad(both, qkv)


@pytest.mark.parametrize("way", ["eager", "jit"])
def test_gradients_of_gradients(calls: list[Any], way: str) -> None:
    torch.manual_seed(0)
    qkv = [torch.randn(SHAPE, dtype=torch.bfloat16) for _ in range(3)]
    with sdpa_kernel(SDPBackend.MATH):
        wanted = derivatives(*(t.double().requires_grad_() for t in qkv))
    run = calque.jit(derivatives) if way == "jit" else derivatives
    found = run(*(t.to("jax").requires_grad_() for t in qkv))
    assert calls
    assert all(difference(a, b) < 0.01 for a, b in zip(found, wanted, strict=True))


def test_a_training_step_calls_it_once(calls: list[Any]) -> None:
    def step(*qkv: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(*qkv, is_causal=True)
        out.float().sum().backward()
        return out.detach()

    shape = (3, 2, 24, 8)  # of no other test: a trace adds known calls without applying the rule
    qkv = [torch.randn(shape, dtype=torch.bfloat16).to("jax").requires_grad_() for _ in range(3)]
    calque.jit(step)(*qkv)
    assert len(calls) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"dtype": torch.float32},
        {"attn_mask": torch.ones(16, 16, dtype=torch.bool)},
        {"dropout_p": 0.5},
        {"width": 12},
        {"width": 136},
    ],
    ids=str,
)
def test_other_calls_are_as_ever(calls: list[Any], given: dict[str, Any]) -> None:
    dtype, width = given.pop("dtype", torch.bfloat16), given.pop("width", 8)
    given = {n: v.to("jax") if isinstance(v, Tensor) else v for n, v in given.items()}
    q = torch.randn(2, 4, 16, width, dtype=dtype).to("jax").requires_grad_()
    F.scaled_dot_product_attention(q, q, q, **given).float().sum().backward()
    assert not calls
    assert q.grad is not None
    assert torch.isfinite(q.grad).all()
