"""Placements of intermediate values."""

from types import EllipsisType
from typing import Any

import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from calque.device.kernels.constraint import number_of
from calque.sharding.arguments import check_tensor
from calque.sharding.mesh import mesh_or_latest, sharding_of


def constrain(
    tensor: torch.Tensor, *entries: PartitionSpec | EllipsisType | Any, mesh: Mesh | None = None
) -> torch.Tensor:
    """Splits a tensor over a mesh; inside `calque.jit`, this is a constraint for XLA.

    Its gradient is split in the same way. Splitting the batch dimension at the outputs of blocks
    keeps XLA from gathering activations instead of weights.

    Args:
        tensor: a tensor on the device "jax", of any shape.
        entries: a spec such as `P("dp")`, in which missing dimensions are not split; or an entry
            for
        each dimension: the name of a mesh axis, a tuple of names, or None for a dimension that is
            not split. `...` stands for all remaining dimensions, whose split XLA chooses.
        mesh: the mesh; by default the one created last.

    Returns:
        A tensor with the same values and shape.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the entries do not fit the shape or the mesh, or the tensor is on the CPU.

    >>> import torch
    >>> from calque import sharding
    >>> everyone = sharding.mesh(dp=-1)
    >>> sharding.constrain(torch.ones(8, 2, device="jax"), None, ...).sum().item()
    16.0
    """
    check_tensor("constrain", tensor, on_device=True)
    number = _number(tuple(tensor.shape), mesh, *entries)
    return torch.ops.calque_sharding.constrain(tensor, number)


@torch.compiler.assume_constant_result
def _number(shape: tuple[int, ...], mesh: Mesh | None, *entries: Any) -> int:
    """Returns the number of the placement for some entries and a shape (see `number_of`).

    Dynamo treats a spec as a constant if it is an argument, but not if it is in a tuple.
    """
    where = mesh_or_latest(mesh)
    given = entries[0] if len(entries) == 1 else entries
    if isinstance(given, NamedSharding):
        return number_of(given)
    found = given if isinstance(given, tuple | PartitionSpec) else (given,)
    spec = _expanded(tuple(found), len(shape))
    sharding_of(PartitionSpec(*map(_checked, spec)), shape, where)
    return number_of(NamedSharding(where, PartitionSpec(*spec)))


def _expanded(entries: tuple[Any, ...], ndim: int) -> list[Any]:
    """Returns the entries with `...` expanded."""
    count = sum(entry is ... for entry in entries)
    if count > 1:
        raise ValueError("`...` stands for all remaining dimensions: write it only once")
    free = ndim - len(entries) + 1
    spec: list[Any] = []
    for entry in entries:
        spec += [PartitionSpec.UNCONSTRAINED] * max(free, 0) if entry is ... else [entry]
    return spec


def _checked(entry: object) -> Any:
    return None if entry is PartitionSpec.UNCONSTRAINED else entry
