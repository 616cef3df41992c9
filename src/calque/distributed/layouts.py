"""Converts between PyTorch's `Shard` and `Replicate` and JAX's specs."""

from collections.abc import Sequence
from typing import Any

import torch
from jax.sharding import PartitionSpec
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from calque.distributed.meshes import JaxDeviceMesh
from calque.sharding.mesh import axes_of
from calque.sharding.mesh import size_of as axis_size

FREE = PartitionSpec.UNCONSTRAINED


def spec_of(
    placements: Sequence[Placement] | None, mesh: JaxDeviceMesh, ndim: int
) -> PartitionSpec:
    """Returns the spec for PyTorch's placements, one for each dimension of a mesh.

    Raises:
        ValueError: the number of placements is not that of the mesh's dimensions, or one names a
            dimension that the tensor does not have.
        NotImplementedError: a placement is neither `Shard` nor `Replicate`.
    """
    given = list(placements) if placements is not None else [Replicate()] * mesh.ndim
    if len(given) != mesh.ndim:
        raise ValueError(
            f"expected one placement for each of the {mesh.ndim} dimensions of the mesh, got "
            f"{len(given)}"
        )
    entries: list[tuple[str, ...]] = [()] * ndim
    for placement, axes in zip(given, mesh._axes, strict=True):
        if isinstance(placement, Replicate):
            continue
        if type(placement) is not Shard:
            raise NotImplementedError(
                f"{placement!r} does not apply to global tensors, because XLA handles partial "
                "sums itself. Use Shard or Replicate"
            )
        if not -ndim <= placement.dim < ndim:
            raise ValueError(
                f"{placement} names a dimension that a tensor of {ndim} dimensions does not have"
            )
        entries[placement.dim] += axes
    return PartitionSpec(*(e[0] if len(e) == 1 else e or None for e in entries))


def placements_of(spec: PartitionSpec, mesh: JaxDeviceMesh) -> tuple[Placement, ...]:
    """Returns PyTorch's placements for a spec."""
    found: list[Placement] = []
    for axes in mesh._axes:
        dims = [d for d, entry in enumerate(spec) if set(axes) & set(axes_of(entry))]
        found.append(Shard(dims[0]) if dims else Replicate())
    return tuple(found)


def with_axes(
    spec: PartitionSpec | None, shape: Sequence[int], mesh: JaxDeviceMesh, axes: Sequence[str]
) -> PartitionSpec:
    """Returns a spec with a tensor split over more axes; unchanged if no dimension is divisible.

    The first unsplit dimension that is divisible is chosen, or else one that is already split.
    """
    entries = [axes_of(entry) for entry in spec or ()]
    entries += [()] * (len(shape) - len(entries))
    if {axis for entry in entries for axis in entry} & set(axes):
        return PartitionSpec(*spec) if spec is not None else PartitionSpec()

    def parts(names: Sequence[str]) -> int:
        count = 1
        for name in names:
            count *= axis_size(mesh._jax_mesh, name)
        return count

    order = sorted(range(len(shape)), key=lambda d: bool(entries[d]))
    for dim in order:
        if shape[dim] and shape[dim] % parts([*entries[dim], *axes]) == 0:
            entries[dim] = (*entries[dim], *axes)
            break
    return PartitionSpec(*(e[0] if len(e) == 1 else e or None for e in entries))


def divides(tensor: torch.Tensor, dim: int, mesh: JaxDeviceMesh, axes: Sequence[str]) -> bool:
    """Returns True if a dimension of a tensor can be split evenly over some axes."""
    count = 1
    for name in axes:
        count *= axis_size(mesh._jax_mesh, name)
    return -tensor.ndim <= dim < tensor.ndim and tensor.shape[dim] % count == 0


def is_tensor(value: Any) -> bool:
    """Returns True if a value is a tensor on the device, which can have a placement."""
    return isinstance(value, torch.Tensor) and value.device.type == "jax"
