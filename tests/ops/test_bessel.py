"""Bessel functions and Ai against 30 digits: CPU PyTorch itself is off by up to 1e-6."""

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch

import calque  # noqa: F401

EXACT: dict[str, Callable] = {
    "bessel_j0": lambda x: mpmath.besselj(0, x),
    "bessel_j1": lambda x: mpmath.besselj(1, x),
    "bessel_y0": lambda x: mpmath.bessely(0, x),
    "bessel_y1": lambda x: mpmath.bessely(1, x),
    "modified_bessel_k0": lambda x: mpmath.besselk(0, x),
    "modified_bessel_k1": lambda x: mpmath.besselk(1, x),
    "scaled_modified_bessel_k0": lambda x: mpmath.besselk(0, x) * mpmath.exp(x),
    "scaled_modified_bessel_k1": lambda x: mpmath.besselk(1, x) * mpmath.exp(x),
    "airy_ai": mpmath.airyai,
}
EVEN_OR_ODD = ("bessel_j0", "bessel_j1", "airy_ai")
SEAMS = [2.0, 2.0000001, 5.0, 5.0000001, 8.0, 8.0000001]


def arguments(name: str) -> torch.Tensor:
    positive = torch.cat(
        [
            torch.logspace(-8, 1.9, 60, dtype=torch.float64),
            torch.linspace(0.01, 30, 60, dtype=torch.float64),
            torch.tensor(SEAMS, dtype=torch.float64),
        ]
    )
    return torch.cat([positive, -positive]) if name in EVEN_OR_ODD else positive


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", EXACT)
def test_values(name: str, dtype: torch.dtype, tolerance: float) -> None:
    x = arguments(name).to(dtype)
    with mpmath.workdps(30):
        exact = np.array([float(EXACT[name](mpmath.mpf(v))) for v in x.tolist()])
    found = getattr(torch.special, name)(x.to("jax")).cpu().double().numpy()
    off = np.abs(found - exact) / np.maximum(1, np.abs(exact))
    assert off.max() < tolerance, x[off.argmax()]


@pytest.mark.parametrize("name", EXACT)
def test_where_they_end(name: str) -> None:
    x = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-300], dtype=torch.float64)
    function = getattr(torch.special, name)
    torch.testing.assert_close(function(x.to("jax")).cpu(), function(x), equal_nan=True)
