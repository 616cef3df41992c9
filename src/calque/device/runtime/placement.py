"""Placements of arrays over several of JAX's devices.

The placement of a storage is the sharding of the array in its cell. An array on JAX's default
device alone has none, and follows the arrays with which it is combined. If the process-wide
`spread` says that there are no other arrays, this module is not used.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import jax
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from calque.device.runtime import replicated_values
from calque.device.runtime.addressable import is_here
from calque.device.runtime.in_flight import settled
from calque.upstream.jax_internals import ArrayImpl, enable_x64


class _Spread:
    """Records whether this process has had any array with a placement."""

    exists = False


spread: _Spread = _Spread()


@lru_cache(maxsize=1)
def default_device() -> Any:
    """Returns the device of arrays without a placement."""
    return jax.config.jax_default_device or jax.local_devices()[0]  # type: ignore[attr-defined]


@lru_cache(maxsize=1)
def host_has_default_device() -> bool:
    """Returns True if the memory of that device is the host's."""
    return default_device().platform == "cpu"


def placement_of(array: object) -> Sharding | None:
    """Returns the placement of an array; None if it has none, and for JAX's tracers."""
    if type(array) is not ArrayImpl:
        return None
    sharding: Sharding = array._sharding  # `array.sharding` is a Python property
    if type(sharding) is SingleDeviceSharding and sharding._device is default_device():
        return None
    return sharding


def placements_of(arrays: Iterable[Any]) -> list[Sharding | None]:
    """Returns the placements of some arrays."""
    return list(map(placement_of, arrays))


def note(array: object) -> None:
    """Record that an array from outside calque may have a placement."""
    if not spread.exists and placement_of(array) is not None:
        spread.exists = True


def is_same(one: Any, other: Any, ndim: int) -> bool:
    """Returns True if two placements put each element of an array on the same devices."""
    if one is other or one == other:
        return True
    if one is None or other is None:
        return False
    return one.is_equivalent_to(other, ndim)


def are_same(
    ones: Sequence[Sharding | None], others: Sequence[Sharding | None], ndims: Sequence[int]
) -> bool:
    """Returns True if placements are pairwise the same."""
    return ones == others or all(map(is_same, ones, others, ndims))


def fits(placement: Sharding, shape: tuple[int, ...]) -> bool:
    """Returns True if a placement splits a shape evenly."""
    if isinstance(placement, NamedSharding) and len(placement.spec) > len(shape):
        return False
    try:
        placement.shard_shape(shape)
    except ValueError:
        return False
    return True


def placed(array: object, placement: Sharding) -> Array:
    """Returns an array moved to a placement or, if it is traced, constrained to it.

    Args:
        array: an array, a tracer, or a NumPy array.
        placement: the placement.
    """
    with enable_x64(True):
        if isinstance(array, jax.core.Tracer):
            return jax.lax.with_sharding_constraint(array, placement)
        spread.exists = True
        if replicated_values.spans(placement) and is_here(array):
            return replicated_values.spread_out(array, placement)
        return settled(jax.device_put(array, placement))


def kept(array: Any, before: Any) -> Any:
    """Returns an array with the placement of the array that it replaces.

    Args:
        array: the new array.
        before: the storage's old array.
    """
    placement = placement_of(before)
    if placement is None:
        return array
    if array.shape != before.shape and not fits(placement, array.shape):
        placement = everywhere(placement)
    if type(array) is ArrayImpl and is_same(array.sharding, placement, array.ndim):
        return array
    return placed(array, placement)


def everywhere(placement: Sharding) -> Sharding:
    """Returns the placement in which every device of a placement holds the whole array."""
    if isinstance(placement, NamedSharding):
        return _replicated(placement.mesh)
    if type(placement) is SingleDeviceSharding:
        return placement
    devices = sorted(placement.device_set, key=lambda device: device.id)
    return _replicated(_line(tuple(devices)))


@lru_cache(maxsize=256)
def _replicated(mesh: Any) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


@lru_cache(maxsize=256)
def _line(devices: tuple[Any, ...]) -> jax.sharding.Mesh:
    auto = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((len(devices),), ("devices",), axis_types=auto, devices=devices)


def common(placements: Iterable[Sharding | None]) -> Sharding | None:
    """Returns the placement for arrays without one that are combined with these; None if none has
    one.

    Arrays on a single device are moved to the devices of the others.
    """
    found = [one for one in placements if one is not None]
    if not found:
        return None
    return everywhere(max(found, key=lambda one: one.num_devices))


def order_of(placement: Sharding) -> tuple[Any, ...]:
    """Returns the devices of a placement in order, which must be the same for all arrays of a
    program.
    """
    return tuple(placement._device_assignment)


def together(arrays: list[Any], destination: Sharding | None = None) -> None:
    """Move arrays to the same devices, so that one JAX program can take them.

    Uncommitted arrays, which JAX moves itself, are not moved.

    Args:
        arrays: the arrays of a call, a list in which moved arrays are replaced.
        destination: the placement on whose devices the program runs; by default that of the array
            on the most devices.
    """
    found = [a.sharding for a in arrays if type(a) is ArrayImpl and a._committed]
    found += [] if destination is None else [destination]
    if len({order_of(sharding) for sharding in found}) < 2:
        return
    placement = everywhere(destination or max(found, key=lambda one: one.num_devices))
    devices = order_of(placement)
    for index, array in enumerate(arrays):
        if type(array) is ArrayImpl and array._committed:
            if order_of(array.sharding) != devices:
                arrays[index] = placed(array, placement)


def run_there(arrays: Iterable[Any], placement: Sharding) -> bool:
    """Returns True if a program of some arrays runs on a placement's devices.

    Otherwise, its results are moved there when they are stored.
    """
    committed = (a.sharding for a in arrays if type(a) is ArrayImpl and a._committed)
    found = next(committed, None)
    return found is None or order_of(found) == order_of(placement)


def beside(value: object, array: object) -> Any:
    """Returns a value on the devices of the array to which it is written."""
    pair = [value]
    if type(array) is ArrayImpl and array._committed:
        together(pair, array.sharding)
    return pair[0]
