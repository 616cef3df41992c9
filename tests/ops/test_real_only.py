"""Operators refuse the dtypes for which PyTorch's CPU has no kernel."""

import re
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


_LACKING: dict[str, Callable[[Any], Any]] = {
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 1),
    "cauchy_": lambda x: x.clone().cauchy_(),
    "div rounded down": lambda x: torch.div(x, x, rounding_mode="floor"),
    "embedding_bag": lambda x: F.embedding_bag(_zeros(x, 1, 2), x[0], mode="sum"),
    "fold": lambda x: F.fold(x.reshape(1, 4, 1).expand(1, 4, 9), (4, 4), 2),
    "index_reduce": lambda x: x[0].index_reduce(0, _zeros(x, 1), x[0, :1], "amax"),
    "kthvalue": lambda x: torch.kthvalue(x, 1),
    "max_unpool2d": lambda x: F.max_unpool2d(x, _zeros(x, *x.shape), 1),
    "median": torch.median,
    "median of rows": lambda x: torch.nanmedian(x, 1),
    "multi_margin": lambda x: F.multi_margin_loss(x[0], _zeros(x, 2)),
    "multilabel_margin": lambda x: F.multilabel_margin_loss(x[0], _zeros(x, 2, 2)),
    "mvlgamma": lambda x: torch.mvlgamma(x, 1),
    "normal": lambda x: torch.normal(x, 1.0).shape,
    "normal of a spread": lambda x: torch.normal(1.0, x).shape,
    "scatter_reduce": lambda x: x[0, 0].scatter_reduce(0, _zeros(x, 2), x[0, 1], "mean"),
    "searchsorted": lambda x: torch.searchsorted(x, x),
    "topk": lambda x: torch.topk(x, 1),
    "trace": lambda x: torch.trace(x[0]),
    "unfold": lambda x: F.unfold(x[None], 1),
    "vdot": lambda x: torch.vdot(x[0, 0], x[0, 1]),
}


def _zeros(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=x.device)


@pytest.mark.sampled(12)
@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta")
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64], ids=str)
@pytest.mark.parametrize("function", _LACKING.values(), ids=list(_LACKING))
def test_booleans_and_integers_are_refused_where_the_cpu_has_no_kernel(
    function: Callable[[Any], Any], dtype: torch.dtype
) -> None:
    x = torch.ones(1, 2, 2, dtype=dtype)
    try:
        want = function(x.clone())
    except (RuntimeError, TypeError) as error:
        with pytest.raises(type(error), match=re.escape(str(error)[:20])):
            function(x.to("jax"))
    else:
        torch.testing.assert_close(function(x.to("jax")), want, check_device=False)


def test_distances_of_two_dtypes_are_refused() -> None:
    x = torch.ones(2, 3, device="jax")
    with pytest.raises(RuntimeError, match="Float but found Double"):
        torch.cdist(x, x.double())
