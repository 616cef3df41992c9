"""How values lie on their way through modules: what hooks of styles and of `fully_shard` call."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch.distributed.tensor.placement_types import Placement, Shard

from calque.device.kernels.constraint import number_of
from calque.distributed.layouts import FREE, is_tensor
from calque.distributed.meshes import JaxDeviceMesh

Pin = Callable[[Any], Any]


class Way(NamedTuple):
    """How values of any shape lie along some axes of a mesh; other axes are left to XLA.

    It is asked when an operator runs or is compiled, so that tracers see no question of shapes.

    Attributes:
        mesh: of JAX's devices.
        axes: of the mesh.
        dim: the dimension that they split; values that have none such, or whose size they do not
            divide, stay as they are. None for whole, but for the first dimension: batches lie along
            other axes there.
    """

    mesh: Mesh
    axes: tuple[str, ...]
    dim: int | None

    def __call__(self, shape: tuple[int, ...]) -> NamedSharding | None:
        """The placement for a shape; None for as it is."""
        count = math.prod(self.mesh.shape[axis] for axis in self.axes)
        entries: list[Any] = [FREE] * len(shape)
        if self.dim is None:
            entries[1:] = [None] * (len(shape) - 1)
        elif not -len(shape) <= self.dim < len(shape) or shape[self.dim] % count:
            return None
        else:
            entries[self.dim] = self.axes[0] if len(self.axes) == 1 else self.axes
        return NamedSharding(self.mesh, PartitionSpec(*entries)) if entries else None


def split(mesh: Mesh, axes: tuple[str, ...], dim: int | None) -> Pin:
    """A function that has tensors of the device lie in a `Way`, and gives back anything else."""
    number = number_of(Way(mesh, axes, dim))

    def pin(value: Any) -> Any:
        return torch.ops.calque_sharding.constrain(value, number) if is_tensor(value) else value

    return pin


def laid(layout: Placement | None, mesh: JaxDeviceMesh) -> Pin:
    """Like `split`, for PyTorch's layout on a mesh of one dimension; None where nothing changes."""
    if layout is None:
        return lambda value: value
    dim = layout.dim if isinstance(layout, Shard) else None
    return split(mesh._jax_mesh, mesh._axes[0], dim)
