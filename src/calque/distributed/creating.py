"""`torch.distributed.tensor.zeros`, `randn` and similar functions on a mesh of JAX devices."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Placement

from calque.distributed.layouts import spec_of
from calque.distributed.meshes import JaxDeviceMesh, in_use
from calque.jitting.api import jit
from calque.sharding import constrain, shard
from calque.sharding.mesh import sharding_of


def created(
    init_op: Callable[..., torch.Tensor],
    size: Sequence[int],
    device_mesh: JaxDeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    requires_grad: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Returns a plain tensor on the device with a placement; it is never whole on one device.

    Random numbers are the same as those that the device draws without a mesh.

    Args:
        init_op: `torch.zeros`, `torch.full`, `torch.randn`, ...
        size: the global shape.
        device_mesh: of type "jax".
        placements: `Shard(dim)` or `Replicate()` for each dimension of the mesh.
        requires_grad: whether the tensor does.
        options: keyword arguments of `init_op`: `dtype`, `layout`, `fill_value`.

    Raises:
        ValueError: the placements do not fit the shape or the mesh.
    """
    mesh = in_use(device_mesh)
    shape = tuple(size)
    placement = sharding_of(spec_of(placements, mesh, len(shape)), shape, mesh._jax_mesh)
    options["device"] = "jax"

    def make() -> torch.Tensor:
        return constrain(init_op(shape, **options), placement)

    made = jit(make, verify=False)()
    return shard(made, placement).requires_grad_(requires_grad)
