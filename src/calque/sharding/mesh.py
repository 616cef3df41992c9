"""Meshes, and specs that say how tensors are split over their axes."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from calque.sharding.arguments import (
    check_axes,
    check_entries,
    check_mesh,
    check_spec,
    devices_of,
    sizes_of,
)

P = PartitionSpec

Spec = PartitionSpec | NamedSharding | Callable[[tuple[int, ...], Mesh], PartitionSpec]
"""How a tensor is split: JAX's `PartitionSpec`; a `NamedSharding`, which has its own mesh; or a
function of the tensor's shape and the mesh, such as `along` returns.
"""


class _Latest:
    mesh: Mesh | None = None


_latest = _Latest()


def mesh(*, devices: Sequence[Any] | None = None, **axes: int) -> Mesh:
    """Like `jax.make_mesh`, with the axes as keywords; the mesh becomes the default mesh.

    Args:
        devices: the devices; by default all JAX devices of all processes.
        axes: the size of each axis, by name and in order. One size may be -1 for all remaining
            devices.

    Returns:
        A `jax.sharding.Mesh` whose axes are of the type `Auto`.

    Raises:
        TypeError: a size is not an int, or a device is not a JAX device.
        ValueError: the sizes do not multiply to the number of devices, or a device is given twice.

    >>> from calque import sharding
    >>> sharding.mesh(dp=-1).shape["dp"] >= 1
    True
    """
    found = devices_of(devices)
    if not axes:
        raise ValueError("a mesh needs at least one axis: mesh(dp=8)")
    sizes = sizes_of(axes)
    free = [name for name, size in sizes.items() if size == -1]
    known = math.prod(size for size in sizes.values() if size != -1)
    if len(free) == 1 and known > 0:
        sizes[free[0]] = len(found) // known
    if min(sizes.values()) < 1 or math.prod(sizes.values()) != len(found):
        said = ", ".join(f"{name}={size}" for name, size in axes.items())
        raise ValueError(
            f"mesh({said}) does not fit the {len(found)} available devices: the product of the "
            "sizes must be their number (one size may be -1). To get more devices on a CPU, set "
            "XLA_FLAGS=--xla_force_host_platform_device_count=8 before JAX starts"
        )
    types = (AxisType.Auto,) * len(sizes)
    made = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=types, devices=found)
    _latest.mesh = made
    return made


def mesh_or_latest(given: Mesh | None) -> Mesh:
    """Returns the given mesh, or the one created last.

    Raises:
        TypeError: it is not a JAX mesh.
        ValueError: no mesh has been made.
    """
    check_mesh(given)
    found = given if given is not None else _latest.mesh
    if found is None:
        raise ValueError("there is no mesh yet: call calque.sharding.mesh(dp=8) first")
    return found


def along(*axes: str) -> Callable[[tuple[int, ...], Mesh], PartitionSpec]:
    """Returns a spec for tensors of any shape: it splits the first dimension that the axes divide
    evenly.

    Args:
        axes: names of axes of the mesh. A tensor without a dimension that they divide is
            replicated.

    Returns:
        A function of a shape and a mesh that returns the spec; plans and `shard` accept it.

    Raises:
        TypeError: an axis is not a string.
        ValueError: no axis is given.

    >>> from calque.sharding import P, along, mesh
    >>> everything = mesh(dp=-1)
    >>> along("dp")((), everything) == P()
    True
    """
    check_axes(axes)
    return _Along(axes)


class _Along(NamedTuple):
    axes: tuple[str, ...]

    def __call__(self, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
        count = math.prod(size_of(mesh, axis) for axis in self.axes)
        for dimension, size in enumerate(shape):
            if size and size % count == 0:
                entry = self.axes[0] if len(self.axes) == 1 else self.axes
                return PartitionSpec(*[None] * dimension, entry)
        return PartitionSpec()

    def __repr__(self) -> str:
        return f"along({', '.join(map(repr, self.axes))})"


def size_of(mesh: Any, axis: str) -> int:
    """Returns the size of an axis of a mesh.

    Raises:
        ValueError: it has no such axis.
    """
    if axis not in mesh.shape:
        raise ValueError(f"the mesh has no axis {axis!r}: it has {', '.join(mesh.axis_names)}")
    return mesh.shape[axis]


def sharding_of(spec: Spec, shape: tuple[int, ...], mesh: Mesh | None) -> NamedSharding:
    """Returns the sharding of a spec for a shape.

    Raises:
        ValueError: the spec has more entries than the shape has dimensions, names axes that the
            mesh does not have, or does not divide the shape evenly; or it is not a spec.
    """
    if isinstance(spec, NamedSharding):
        _check(spec.mesh, spec.spec, shape)
        return spec
    mesh = mesh_or_latest(mesh)
    partition = spec(shape, mesh) if callable(spec) else spec
    if not isinstance(partition, PartitionSpec):
        check_spec(spec)
        raise ValueError(f"{spec!r} returned {partition!r}, which is not a spec such as P('dp')")
    check_entries(partition)
    named = [axis for entry in partition for axis in axes_of(entry)]
    for axis in named:
        size_of(mesh, axis)
    if len(set(named)) < len(named):
        raise ValueError(f"{_as_text(partition)} splits two dimensions over the same mesh axis")
    _check(mesh, partition, shape)
    return NamedSharding(mesh, _shortest(partition))


def _shortest(spec: PartitionSpec) -> PartitionSpec:
    """Returns the spec in JAX's normal form, so that equal placements have equal specs."""
    entries = list(spec)
    while entries and entries[-1] in (None, ()):
        entries.pop()
    return PartitionSpec(*(e[0] if isinstance(e, tuple) and len(e) == 1 else e for e in entries))


def axes_of(entry: object) -> tuple[str, ...]:
    """Returns the mesh axes in an entry of a spec."""
    return tuple(a for a in (entry if isinstance(entry, tuple) else (entry,)) if isinstance(a, str))


def _check(mesh: Any, spec: PartitionSpec, shape: tuple[int, ...]) -> None:
    if len(spec) > len(shape):
        raise ValueError(
            f"{_as_text(spec)} is for {len(spec)} dimensions; the tensor has {len(shape)}"
        )
    for dimension, entry in enumerate(spec):
        count = math.prod(size_of(mesh, axis) for axis in axes_of(entry))
        if shape[dimension] % count:
            raise ValueError(
                f"dimension {dimension} of a tensor of shape {shape} cannot be split over {count} "
                f"devices evenly, as {_as_text(spec)} requires: pad it, split another dimension, "
                "or use sharding.along, which leaves such tensors whole"
            )


def _as_text(spec: PartitionSpec) -> str:
    return "P" + str(tuple(spec)).replace(",)", ")")
