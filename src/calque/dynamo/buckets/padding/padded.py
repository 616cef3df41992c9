"""Arrays padded along some axes, with the positions of their valid elements."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from calque.upstream.jax_internals import InconclusiveDimensionOperation, is_symbolic_dim

Layout = tuple[Any, ...] | None
"""The layout of one axis.

None: not padded; its size is a number. `()`: all its elements are equal, and the array has one. A
tuple of sizes: the axis results from joining axes of these sizes, the first one outermost; those
whose size is a symbol are padded, and their first elements are valid. Only the first may be a
number, because a number after a symbol is part of larger blocks.
"""

SAME: Layout = ()


class Unpaddable(Exception):
    """A program cannot run on padded arrays; the message says why."""


class Sizes:
    """The symbols of a program, with their padded values and their true, traced values."""

    def __init__(self, padded: Mapping[str, int], true: Mapping[str, Any]) -> None:
        self._padded, self._true = dict(padded), dict(true)

    def padded(self, size: Any) -> int:
        """Returns the length of an axis of this size, including its padding."""
        return int(size._evaluate(self._padded)) if is_symbolic_dim(size) else int(size)

    def true(self, size: Any) -> Any:
        """Returns the number of valid elements of an axis of this size: a number or a traced
        integer.
        """
        return size._evaluate(self._true) if is_symbolic_dim(size) else size


@dataclass(frozen=True)
class Padded:
    """An array and the layout of each of its axes."""

    array: Array
    layout: tuple[Layout, ...]

    @property
    def is_padded(self) -> bool:
        """Returns True if the size of any axis is a symbol."""
        return any(axis is not None for axis in self.layout)


def whole(array: Any) -> Padded:
    """Returns an array without padding."""
    return Padded(array, (None,) * jnp.ndim(array))


def layout_of(size: object) -> Layout:
    """Returns the layout of an axis whose first elements are valid."""
    return (size,) if is_symbolic_dim(size) else None


def joined(sizes: Iterable[Any]) -> Layout:
    """Returns the layout of the axis that results from joining axes of these sizes."""
    found: list[Any] = []
    for size in sizes:
        if found and not is_symbolic_dim(size):
            found[-1] = found[-1] * size
        elif is_symbolic_dim(size) or size != 1:
            found.append(size)
    return tuple(found) if any(map(is_symbolic_dim, found)) else None


def length(sizes: Sizes, axis: Layout) -> int:
    """Returns how many elements of an axis an array holds."""
    return prod(map(sizes.padded, axis or ()))


def spread(sizes: Sizes, value: Padded, axis: int, layout: Layout) -> Padded:
    """Returns the value with a new layout of an axis whose elements are equal."""
    if value.layout[axis] != SAME or layout == SAME:
        return value
    shape = list(value.array.shape)
    shape[axis] = length(sizes, layout)
    found = (*value.layout[:axis], layout, *value.layout[axis + 1 :])
    return Padded(jnp.broadcast_to(value.array, shape), found)


def settled(sizes: Sizes, value: Padded, shape: Sequence[Any]) -> Padded:
    """Returns the value without layouts of axes with a single element."""
    for axis, size in enumerate(shape):
        value = spread(sizes, value, axis, layout_of(size))
    return value


def aligned(sizes: Sizes, values: Sequence[Padded], axes: Sequence[Sequence[int]]) -> list[Padded]:
    """Returns the values with corresponding axes in the same layout.

    Args:
        sizes: the sizes.
        values: the values.
        axes: for each value, the axes that correspond to those of the other values, in one order.

    Raises:
        Unpaddable: two values are padded in different ways.
    """
    found = list(values)
    for place in zip(*axes, strict=True):
        layouts = {value.layout[a] for value, a in zip(found, place, strict=True)}
        layouts.discard(SAME)
        if len(layouts) > 1:
            raise Unpaddable("its operands are padded in different ways")
        for layout in layouts:
            found = [spread(sizes, v, a, layout) for v, a in zip(found, place, strict=True)]
    return found


def valid(sizes: Sizes, layout: Layout) -> Array:
    """Returns which elements of an axis are valid."""
    mask = jnp.ones((1,), bool)
    for size in layout or ():
        count = sizes.padded(size)
        own = jnp.arange(count) < sizes.true(size)
        mask = (mask[:, None] & own[None, :]).reshape(-1)
    return mask


def mask_of(sizes: Sizes, value: Padded, axes: Iterable[int]) -> Array | None:
    """Returns a mask of the valid elements along these axes, for broadcasting; None if all are."""
    found = None
    rank = value.array.ndim
    for axis in axes:
        if value.layout[axis]:
            own = valid(sizes, value.layout[axis])
            own = own.reshape([-1 if i == axis else 1 for i in range(rank)])
            found = own if found is None else found & own
    return found


def filled(sizes: Sizes, value: Padded, axes: Iterable[int], fill: object) -> Padded:
    """Returns the value with the padding of these axes set to `fill`."""
    mask = mask_of(sizes, value, axes)
    if mask is None:
        return value
    fill = jnp.asarray(fill, value.array.dtype)
    return replace(value, array=jnp.where(mask, value.array, fill))


# Axes joined and split ---------------------------------------------------------------------------


def reshaped(sizes: Sizes, value: Padded, old: Sequence[Any], new: Sequence[Any]) -> Padded:
    """Returns a value in another shape.

    Raises:
        Unpaddable: the layout of the result cannot be described.
    """
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    middle = range(start, len(old) - end)
    parts: list[Any] = []
    for axis in middle:
        value = spread(sizes, value, axis, layout_of(old[axis]))
        parts += value.layout[axis] or (old[axis],)
    layouts = split(parts, new[start : len(new) - end])
    layouts = (*value.layout[:start], *layouts, *value.layout[len(old) - end :])
    held = value.array.shape
    shape = [
        length(sizes, layout) if layout is not None else size
        for layout, size in zip(layouts, new, strict=True)
    ]
    shape[:start] = held[:start]
    shape[len(new) - end :] = held[len(old) - end :]
    return Padded(lax.reshape(value.array, shape), layouts)


def split(parts: Sequence[Any], shape: Iterable[Any]) -> list[Layout]:
    """Returns the layouts of the axes of a shape that axes of sizes `parts` are reshaped to."""
    rest = list(parts)
    found = []
    for size in shape:
        taken = []
        while size != 1:
            if not rest:
                raise Unpaddable("it joins axes in a different way")
            part = rest.pop(0)
            quotient = divided(size, part)
            if quotient is None:
                inner = divided(part, size)
                if inner is None or is_symbolic_dim(inner):
                    raise Unpaddable("it splits a padded axis in the middle")
                rest.insert(0, inner)
                part, quotient = size, 1
            taken.append(part)
            size = quotient
        found.append(joined(taken))
    return found


def divided(size: Any, by: Any) -> Any:
    """Returns one size divided by another; None if it is not a multiple."""
    try:
        quotient, remainder = divmod(size, by)
        return quotient if remainder == 0 else None
    except (InconclusiveDimensionOperation, ZeroDivisionError):
        return None
