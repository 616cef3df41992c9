"""Autocast chooses the dtypes that it chooses on CUDA."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import calque  # noqa: F401

Tensor = torch.Tensor
LOWER: dict[str, Callable[[Tensor], Tensor]] = {
    "mm": lambda x: torch.mm(x, x),
    "matmul": lambda x: x @ x,
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "addmm": lambda x: torch.addmm(x, x, x),
    "linear": lambda x: F.linear(x, x),
    "conv1d": lambda x: F.conv1d(x[None], x[:, :, None]),
    "conv2d": lambda x: F.conv2d(x[None, :, :, None], x[:, :, None, None]),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
}
FLOAT32: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "pow": lambda x: x**2,
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "sum": torch.sum,
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "cumsum": lambda x: x.cumsum(0),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_run_in_low_precision(dtype: torch.dtype) -> None:
    x = torch.ones(4, 4, device="jax")
    with torch.autocast("jax", dtype=dtype):
        assert {name: f(x).dtype for name, f in LOWER.items()} == dict.fromkeys(LOWER, dtype)


def test_sensitive_functions_run_in_float32() -> None:
    x = torch.ones(4, 4, device="jax", dtype=torch.bfloat16)
    with torch.autocast("jax", dtype=torch.bfloat16):
        dtypes = {name: f(x).dtype for name, f in FLOAT32.items()}
    assert dtypes == dict.fromkeys(FLOAT32, torch.float32)


def test_mixed_operands_take_the_widest_dtype_and_others_are_let_through() -> None:
    x, low = torch.ones(4, device="jax"), torch.ones(4, device="jax", dtype=torch.bfloat16)
    with torch.autocast("jax", dtype=torch.bfloat16):
        assert torch.cat([x, low]).dtype == torch.float32
        assert torch.stack([low, low]).dtype == torch.bfloat16
        assert (low + low).dtype == torch.bfloat16
        assert torch.relu(low).dtype == torch.bfloat16
        assert (x.double()[None] @ x.double()[:, None]).dtype == torch.float64
        with torch.autocast("jax", enabled=False):
            assert (x[None] @ x[:, None]).dtype == torch.float32


def test_gradients_keep_the_dtype_of_the_parameters() -> None:
    layer = nn.Linear(4, 2).to("jax")
    with torch.autocast("jax", dtype=torch.bfloat16):
        loss = F.cross_entropy(
            layer(torch.ones(3, 4, device="jax")), torch.zeros(3, dtype=torch.int64, device="jax")
        )
    loss.backward()
    assert (loss.dtype, layer.weight.grad.dtype) == (torch.float32, torch.float32)


def test_unsafe_losses_are_refused() -> None:
    x = torch.full((2,), 0.5, device="jax")
    with torch.autocast("jax"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x, x)


def test_the_cpu_keeps_its_own_autocast() -> None:
    x = torch.ones(4, 4)
    with torch.autocast("jax", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        assert (x.to("jax") @ x.to("jax")).dtype == torch.float32
