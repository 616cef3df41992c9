"""Passes convolution kernels to a program in transposed form, transposing them once for many calls.

XLA's CPU convolutions need kernels as (*size, in, out). Transposing PyTorch's kernels in each call
takes more than half of the time for a small batch. A program that does not write them gets
transposed copies, which are kept until the parameter's array changes.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import jax
from jax import Array, lax
from jax.extend.core import ClosedJaxpr

from calque.device.memory.cell import x64
from calque.program.channels_last import Order, kernels

_LEAST = 1 << 15  # elements; smaller kernels are transposed quickly


def stored(closed: ClosedJaxpr, state: Iterable[int]) -> dict[int, Order]:
    """Returns the inputs that should be passed transposed, with their axis order.

    Args:
        closed: the program.
        state: the inputs that are the same arrays in many calls.
    """
    if jax.default_backend() != "cpu":
        return {}
    sizes = [variable.aval.size for variable in closed.jaxpr.invars]
    chosen = {index for index in state if sizes[index] >= _LEAST}
    return {index: order for index, order in kernels(closed).items() if index in chosen}


class TransposedGathering:
    """Gathers the arguments of a program, some of them transposed.

    Args:
        gather: returns the arguments.
        orders: the axis orders of the arguments to transpose, by index.
    """

    def __init__(self, gather: Callable[[Any], list[Any]], orders: Mapping[int, Order]) -> None:
        self._gather = gather
        self._places = [(index, _Copy(order)) for index, order in orders.items()]

    def __call__(self, call: Any) -> list[Any]:
        arrays = self._gather(call)
        for index, copy in self._places:
            arrays[index] = copy.of(arrays[index])
        return arrays


class _Copy:
    """The transposed copy of the last array."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._kept: tuple[Callable[[], Any], Any] = (lambda: None), None

    def of(self, array: Array) -> Array:
        source, made = self._kept
        if source() is array:
            return made
        with x64():
            made = _transpose(array, self._order)
        self._kept = weakref.ref(array), made
        return made


@partial(jax.jit, static_argnums=1)
def _transpose(array: Array, order: Order) -> Array:
    return lax.transpose(array, order)
