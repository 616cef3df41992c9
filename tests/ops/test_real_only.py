"""Operators of real numbers refuse complex ones, as PyTorch's CPU does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

_REAL_ONLY: dict[str, Callable[[torch.Tensor], Any]] = {
    "adaptive_max_pool1d": lambda z: F.adaptive_max_pool1d(z, 2),
    "bernoulli_": lambda z: z.bernoulli_(0.5),
    "bucketize": lambda z: torch.bucketize(z, z[0]),
    "cdist": lambda z: torch.cdist(z, z),
    "dropout": lambda z: F.dropout(z, 0.5),
    "exponential_": lambda z: z.exponential_(),
    "histogram": lambda z: torch.histogram(z, 3),
    "multinomial": lambda z: torch.multinomial(z, 1),
    "polygamma": lambda z: torch.polygamma(1, z),
    "prelu": lambda z: F.prelu(z, z[0, :1]),
    "scatter_reduce": lambda z: z.scatter_reduce(
        0, torch.zeros(1, 4, dtype=torch.int64, device=z.device), z, "amax"
    ),
    "searchsorted of real bounds": lambda z: torch.searchsorted(z.real[0].contiguous(), z),
    "topk": lambda z: torch.topk(z, 2),
    "unique": lambda z: torch.unique(z),
    "unique of rows": lambda z: torch.unique(z, dim=0),
}


@pytest.mark.parametrize("function", _REAL_ONLY.values(), ids=list(_REAL_ONLY))
def test_complex_numbers_are_refused_as_on_the_cpu(function: Callable[..., Any]) -> None:
    z = torch.complex(torch.arange(8.0).reshape(2, 4), torch.ones(2, 4))
    try:
        function(z.clone())
    except (RuntimeError, TypeError) as error:
        with pytest.raises(type(error)):
            function(z.to("jax"))
    else:
        pytest.skip("this PyTorch computes it")


def test_distances_of_two_dtypes_are_refused() -> None:
    x = torch.ones(2, 3, device="jax")
    with pytest.raises(RuntimeError, match="Float but found Double"):
        torch.cdist(x, x.double())
