"""Resized images, signals and volumes, by a scale that is not the ratio of the sizes."""

import pytest
import torch
from torch.nn import functional as F

MODES = {
    1: ("nearest", "linear"),
    2: ("nearest", "bilinear", "bicubic"),
    3: ("nearest", "trilinear"),
}


@pytest.mark.parametrize("scale", [1.2, 2.2, 1.01, 0.7])
@pytest.mark.parametrize(("ndim", "mode"), [(n, m) for n, modes in MODES.items() for m in modes])
def test_a_scale_is_followed_where_it_gives_equal_or_doubled_sizes(
    ndim: int, mode: str, scale: float
) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, *[3] * ndim)
    found = []
    for device in ("cpu", "jax"):
        given = x.to(device, copy=True).requires_grad_()
        resized = F.interpolate(given, scale_factor=scale, mode=mode)
        resized.sin().sum().backward()
        assert given.grad is not None
        found.append((resized.detach().cpu(), given.grad.cpu()))
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][1], found[0][1])
