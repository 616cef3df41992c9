"""Placements of values between modules, for the hooks of parallel styles and `fully_shard`."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import nn
from torch.distributed.tensor.placement_types import Placement, Shard

from calque.device.kernels.constraint import number_of
from calque.distributed.layouts import FREE, is_tensor
from calque.distributed.meshes import JaxDeviceMesh
from calque.upstream.torch_internals import tree_map


class AxisPlacement(NamedTuple):
    """A placement of values of any shape along some axes of a mesh; other axes are left to XLA.

    It is evaluated when an operator runs or is compiled, so that tracers see no reads of shapes.

    Attributes:
        mesh: the mesh of JAX devices.
        axes: names of axes of the mesh.
        dim: the dimension that they split; values that do not have it, or whose size they do not
            divide, are unchanged. None for unsplit, except in the first dimension, which may be
            split over other axes for batches.
    """

    mesh: Mesh
    axes: tuple[str, ...]
    dim: int | None

    def __call__(self, shape: tuple[int, ...]) -> NamedSharding | None:
        """Returns the placement for a shape; None to leave the value unchanged."""
        count = math.prod(self.mesh.shape[axis] for axis in self.axes)
        entries: list[Any] = [FREE] * len(shape)
        if self.dim is None:
            entries[1:] = [None] * (len(shape) - 1)
        elif not -len(shape) <= self.dim < len(shape) or shape[self.dim] % count:
            return None
        else:
            entries[self.dim] = self.axes[0] if len(self.axes) == 1 else self.axes
        return NamedSharding(self.mesh, PartitionSpec(*entries)) if entries else None


class Split:
    """Applies an `AxisPlacement` to tensors on the device, and returns other values unchanged.

    It can be pickled.

    Attributes:
        placement: the placement.
    """

    def __init__(self, placement: AxisPlacement) -> None:
        self.placement: AxisPlacement = placement
        self._number = number_of(placement)

    def __call__(self, value: Any) -> Any:
        if not is_tensor(value):
            return value
        return torch.ops.calque_sharding.constrain(value, self._number)

    def __reduce__(self) -> Any:  # the number is valid only in this process
        return Split, (self.placement,)


Pin = Callable[[Any], Any]


def split(mesh: Mesh, axes: tuple[str, ...], dim: int | None) -> Pin:
    """Returns a function that applies an `AxisPlacement` to tensors on the device, and returns
    other values unchanged.
    """
    return Split(AxisPlacement(mesh, axes, dim))


def laid(layout: Placement | None, mesh: JaxDeviceMesh) -> Pin:
    """Like `split`, for PyTorch's layout on a mesh of one dimension; None if nothing changes."""
    if layout is None:
        return as_it_is
    dim = layout.dim if isinstance(layout, Shard) else None
    return split(mesh._jax_mesh, mesh._axes[0], dim)


def as_it_is(value: object) -> Any:
    """Returns the value unchanged."""
    return value


# Hooks of modules. The pin comes first because partial functions can be pickled with the module.


def first_input_pinned(pin: Pin, module: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """Pins the first input; for use as a forward pre-hook."""
    return (pin(inputs[0]), *inputs[1:]) if inputs else inputs


def inputs_pinned(
    pin: Pin, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Pins all inputs; for use as a forward pre-hook with keywords."""
    return tree_map(pin, (args, kwargs))


def output_pinned(pin: Pin, module: nn.Module, inputs: object, output: object) -> Any:
    """Pins the output, a tensor; for use as a forward hook."""
    return pin(output)


def outputs_pinned(pin: Pin, module: nn.Module, inputs: object, output: object) -> Any:
    """Pins all outputs; for use as a forward hook."""
    return tree_map(pin, output)
