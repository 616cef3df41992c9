"""Meshes and placements."""

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch import nn

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
        (P("dp", "dp"), "over the same mesh axis"),
        (P(None, ("dp", "tp")), "evenly"),
        ("dp", "'dp' is not a spec"),
        (("dp", None), "is not a spec"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused(spec: Any, said: str) -> None:
    sh.mesh(dp=4, tp=2)
    with pytest.raises(ValueError, match=said):
        sh.shard(torch.zeros(8, 4, device="jax"), spec)


def layer(device: str = "jax") -> nn.Module:
    return nn.Linear(8, 8, device=device)


def x() -> torch.Tensor:
    return torch.zeros(8, device="jax")


ARGUMENTS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: sh.mesh(dp="8"), TypeError, "size of axis 'dp' must be an int, or -1, not '8' .str."),
    (lambda: sh.mesh(dp=8.0), TypeError, "not 8.0 .float."),
    (lambda: sh.mesh(dp=True), TypeError, "not True"),
    (lambda: sh.mesh(dp=8, devices=8), TypeError, "devices= must be a sequence of JAX devices"),
    (lambda: sh.mesh(dp=2, devices=[jax.devices()[0]] * 2), ValueError, "a device twice"),
    (lambda: sh.along(8), TypeError, "the name of a mesh axis must be a str, not 8"),
    (sh.along, ValueError, "along expects the names"),
    (lambda: sh.shard([1], P()), TypeError, r"shard expects a tensor, not \[1\] .list."),
    (lambda: sh.shard(layer(), P()), TypeError, "Linear: use shard_module for a module"),
    (lambda: sh.shard(torch.zeros(8).to_sparse(), P()), ValueError, "layout torch.sparse_coo"),
    (lambda: sh.shard(torch.zeros(8, device="meta"), P()), ValueError, "sharding.materialize"),
    (lambda: sh.shard(x(), P(3)), ValueError, "3 in .* is not the name of a mesh axis"),
    (lambda: sh.shard(x(), P(P.UNCONSTRAINED)), ValueError, "leaves a dimension to XLA"),
    (
        lambda: sh.shard(x(), lambda shape, mesh: "dp"),
        ValueError,
        "returned 'dp', which is not a spec",
    ),
    (lambda: sh.shard(x(), P("dp"), mesh="m"), TypeError, "mesh= must be a jax.sharding.Mesh"),
    (lambda: sh.placement(3), TypeError, "placement expects a tensor, not 3 .int."),
    (lambda: sh.shard_module(x(), {}), TypeError, "Tensor: use shard for a tensor"),
    (lambda: sh.shard_module(layer(), [("*", P())]), TypeError, "a plan must be a dict"),
    (
        lambda: sh.shard_module(layer(), {1: P()}),
        TypeError,
        "a pattern of a plan must be a str, not 1",
    ),
    (lambda: sh.shard_module(layer(), {"*": None}), ValueError, "'[*]' of the plan: None is no"),
    (lambda: sh.materialize(3, {}), TypeError, "materialize expects a module, not 3"),
    (lambda: sh.materialize(layer("meta"), {}, init=3), TypeError, "init= must be a function"),
    (lambda: sh.constrain([1], "dp"), TypeError, "constrain expects a tensor"),
    (lambda: sh.constrain(x(), 3), ValueError, "3 in .* is not the name of a mesh axis"),
    (
        lambda: sh.local(torch.zeros(3)),
        ValueError,
        "local .* on device 'jax', not on cpu",
    ),
    (
        lambda: sh.gather(torch.zeros(3)),
        ValueError,
        "gather .* on device 'jax', not on cpu",
    ),
    (lambda: sh.loader(torch.zeros(8)), TypeError, "batches, not one tensor"),
    (lambda: sh.loader(3), TypeError, "loader expects a DataLoader"),
    (lambda: sh.loader([], "dp"), ValueError, "'dp' is not a spec"),
    (lambda: sh.memory(3), TypeError, "memory expects modules, .* not 3"),
]


@pytest.mark.parametrize(("call", "kind", "said"), ARGUMENTS)
def test_an_argument_of_another_kind_is_named(
    call: Callable[[], Any], kind: type[Exception], said: str
) -> None:
    sh.mesh(dp=8)
    with pytest.raises(kind, match=said):
        call()


def test_a_view_has_no_placement_of_its_own() -> None:
    sh.mesh(dp=8)
    x = torch.zeros(8, 4, device="jax")
    with pytest.raises(ValueError, match="is a view"):
        sh.shard(x[:, :2], P("dp"))


def test_along_takes_the_first_dimension_that_can_be_split() -> None:
    mesh = sh.mesh(dp=4, tp=2)
    assert sh.along("dp")((3, 8), mesh) == P(None, "dp")
    assert sh.along("dp", "tp")((4, 16), mesh) == P(None, ("dp", "tp"))
    assert sh.along("dp")((3, 5), mesh) == P()
