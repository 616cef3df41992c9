"""Histograms."""

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
@pytest.mark.parametrize("bins", [2, 7, 64])
def test_histc_counts_integers_as_it_counts_floats(dtype, bins):
    x = torch.randint(0, bins, (200,))
    got = torch.histc(x.to(dtype).to("jax"), bins, 0, bins - 1)
    # Not supported for integers on the CPU, but on PyTorch's accelerators.
    assert got.dtype == dtype
    assert got.tolist() == torch.bincount(x, minlength=bins).tolist()
