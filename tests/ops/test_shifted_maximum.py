"""Maxima of windows by shifted images are PyTorch's: values, positions and gradients."""

import pytest
import torch
from torch.nn import functional as F

POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
# size, kernel, stride, padding, dilation, ceil_mode
CASES = [
    ((7, 6), (3, 3), 2, 1, 1, False),
    ((7, 6), (3, 2), (2, 1), (1, 0), 1, True),
    ((9, 8), (3, 3), 1, 1, 2, False),
    ((9,), (3,), 2, 1, 1, True),
    ((5, 4, 6), (2, 3, 1), 2, (1, 1, 0), 1, True),
    ((11, 12), (2, 2), 3, 1, 1, False),
    ((13, 11), (3, 2), (2, 3), 1, (2, 3), False),
    ((20, 20), (2, 3), 8, 0, 1, False),  # stride too large for the gradient
    ((16, 16), (8, 8), 1, 0, 1, False),  # too many positions, so XLA's operator is used
]


def _results(case: tuple, x: torch.Tensor, device: str) -> list[torch.Tensor]:
    pool, arguments = POOL[len(case[0])], case[1:]
    x = x.clone().to(device).requires_grad_()
    y, positions = pool(x, *arguments, return_indices=True)
    plain = pool(x, *arguments)
    plain.backward(torch.arange(y.numel(), dtype=x.dtype).reshape(y.shape).to(device))
    assert x.grad is not None
    return [one.detach().cpu() for one in (y, positions, plain, x.grad)]


@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, torch.float32) for case in CASES), (CASES[0], torch.bfloat16)]
)
def test_of_equal_values_the_first_gets_the_gradient(case: tuple, dtype: torch.dtype) -> None:
    x = torch.randint(-2, 3, (2, 3, *case[0])).to(dtype)
    rtol = 1e-6 if dtype is torch.float32 else 0.05  # PyTorch accumulates in this dtype
    for got, want in zip(_results(case, x, "jax"), _results(case, x, "cpu"), strict=True):
        torch.testing.assert_close(got, want, rtol=rtol, atol=0)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("case", CASES[1:5:2], ids=str)
def test_windows_of_no_number_and_of_the_lowest(case: tuple, value: float) -> None:
    x = torch.randn(2, 3, *case[0])
    x[torch.rand(x.shape) < 0.6] = value
    for got, want in zip(_results(case, x, "jax"), _results(case, x, "cpu"), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


def test_integers() -> None:
    x = torch.randint(-100, 100, (1, 2, 6, 6), dtype=torch.int32)
    assert torch.equal(F.max_pool2d(x.to("jax"), 3, 2, 1).cpu(), F.max_pool2d(x, 3, 2, 1))
