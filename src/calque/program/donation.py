"""Donates the arrays that a program replaces, if nothing else refers to them."""

import sys
from collections.abc import Callable, Sequence
from operator import itemgetter

import jax
from jax import Array

from calque.device.memory.cell import x64

ALONE = 3  # the cell, the list of arguments, and getrefcount's own argument
PICKED_ALONE = ALONE + 1  # and the picked items


def picker(indexes: Sequence[int]) -> Callable[[list[Array]], tuple[Array, ...]]:
    """Returns a function that picks these items from a list."""
    return itemgetter(*indexes) if len(indexes) > 1 else lambda items: (items[indexes[0]],)


def protect(
    arrays: list[Array], donated: Sequence[int], pick: Callable[..., tuple[Array, ...]]
) -> None:
    """Replace donated arguments that something else refers to with copies.

    A clone, a view's base or a user of `calque.to_jax` may use the same array.

    Args:
        arrays: the arguments of a call, to which only this list and the cells may refer.
        donated: the indexes of the donated arguments.
        pick: `picker(donated)`.
    """
    if max(map(sys.getrefcount, pick(arrays))) > PICKED_ALONE:
        for index in donated:
            if sys.getrefcount(arrays[index]) > ALONE:
                with x64():
                    arrays[index] = jax.numpy.array(arrays[index], copy=True)
