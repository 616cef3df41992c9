"""Meshes and placements."""

from typing import Any

import jax
import pytest
import torch

from calque import sharding as sh
from calque.sharding import P


def test_a_mesh_has_the_devices_and_the_axes_that_are_asked_for() -> None:
    assert dict(sh.mesh(dp=4, tp=2).shape) == {"dp": 4, "tp": 2}
    assert dict(sh.mesh(dp=-1, tp=2).shape) == {"dp": 4, "tp": 2}
    assert sh.mesh(dp=2, devices=jax.devices()[:2]).size == 2


@pytest.mark.parametrize("axes", [{"dp": 3}, {"dp": 16}, {"dp": -1, "tp": 3}, {"dp": 0}, {}])
def test_a_mesh_that_does_not_fit_the_devices_is_refused(axes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="mesh"):
        sh.mesh(**axes)


def test_a_tensor_is_spread_in_place_and_stays_what_it_was() -> None:
    mesh = sh.mesh(dp=4, tp=2)
    x = torch.arange(64.0).reshape(8, 8).to("jax")
    alias = x.detach()
    assert sh.shard(x, P("dp", "tp"), mesh) is x
    assert type(x) is torch.Tensor
    found = sh.placement(alias)
    assert found is not None
    assert found.spec == P("dp", "tp")
    assert found.local_shape == (2, 4)
    assert x.tolist() == torch.arange(64.0).reshape(8, 8).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.bool])
def test_a_tensor_of_the_host_is_copied_to_the_mesh(dtype: torch.dtype) -> None:
    sh.mesh(dp=8)
    host = torch.arange(32).reshape(8, 4).to(dtype)
    x = sh.shard(host, P("dp"))
    assert x.device.type == "jax"
    assert x.dtype is dtype
    host.zero_()
    assert x.cpu().equal(torch.arange(32).reshape(8, 4).to(dtype))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (P("dp", "tp", None), "3 dimensions"),
        (P("cp"), "no axis 'cp'"),
        (P("dp", "dp"), "over one axis"),
        (P(None, ("dp", "tp")), "evenly"),
        ("dp", "'dp' is no spec"),
        (("dp", None), "is no spec"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused(spec: Any, said: str) -> None:
    sh.mesh(dp=4, tp=2)
    with pytest.raises(ValueError, match=said):
        sh.shard(torch.zeros(8, 4, device="jax"), spec)


def test_a_view_has_no_placement_of_its_own() -> None:
    sh.mesh(dp=8)
    x = torch.zeros(8, 4, device="jax")
    with pytest.raises(ValueError, match="view of another one"):
        sh.shard(x[:, :2], P("dp"))


def test_along_takes_the_first_dimension_that_can_be_split() -> None:
    mesh = sh.mesh(dp=4, tp=2)
    assert sh.along("dp")((3, 8), mesh) == P(None, "dp")
    assert sh.along("dp", "tp")((4, 16), mesh) == P(None, ("dp", "tp"))
    assert sh.along("dp")((3, 5), mesh) == P()
