"""Converts the arguments of a call to the arrays of a program.

Everything that is the same in each call is decided once, when the program is compiled; each source
is a function that does only the rest.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jax import Array

from calque.device.memory.cell import cell_of, is_whole, read
from calque.device.memory.geometry import Ints, permutation
from calque.device.runtime.dtypes import TO_NUMPY
from calque.program.shared_memory import KeptArray, array_over
from calque.program.sources import ArgumentSource, Source

Tensor = torch.Tensor


def length(value: Tensor) -> int:
    """Returns how many elements of its dtype a tensor's storage has."""
    return value.untyped_storage().nbytes() // value.itemsize


def storage(value: Tensor) -> Tensor:
    """Returns the whole storage of a tensor, as a one-dimensional tensor."""
    return value.detach().as_strided((length(value),), (1,), 0)


def order_of(value: Tensor) -> Ints | None:
    """Returns the order of axes in which a tensor is passed to a program; None for its own order.

    It is the order in memory, so that nothing is copied; a device array in its tensor's order is
    passed unchanged.
    """
    if value.is_complex() or value.is_contiguous():
        return None
    if value.device.type == "jax" and is_whole(cell_of(value), value):
        return None
    return permutation(tuple(value.shape), value.stride())


def arrays_of(
    sources: Sequence[Source], first: Sequence[Any], reaching: bool, orders: Mapping[int, Ints]
) -> Callable[[list[Any]], list[Any]]:
    """Returns a function from the list of inputs to all arrays of a program.

    Args:
        sources: the source of each array.
        first: the inputs of the first call.
        reaching: whether arguments are passed as whole storages.
        orders: the order of axes of the arguments that are not passed in their own.
    """
    each = [_array_of(one, first, reaching, orders) for one in sources]
    if reaching or not all(
        isinstance(one, ArgumentSource) and first[one.index].device.type != "cpu" for one in sources
    ):
        return lambda inputs: [source(inputs) for source in each]
    places = [one.index for one in sources]

    def arrays(inputs: list[Any]) -> list[Any]:
        try:
            cells = [inputs[place].untyped_storage().cell for place in places]
        except AttributeError:
            return [source(inputs) for source in each]  # one of them raises an informative error
        return [
            source(inputs) if cell.viewed else cell.array
            for cell, source in zip(cells, each, strict=True)
        ]

    return arrays


def _array_of(
    source: Source, first: Sequence[Any], reaching: bool, orders: Mapping[int, Ints]
) -> Callable[[list[Any]], Any]:
    """Returns a function from the list of inputs to one array; `first` is an example."""
    if not isinstance(source, ArgumentSource):
        return source.array
    index = source.index
    if reaching:
        return lambda inputs: _array(storage(inputs[index]))
    order = orders.get(index)
    if first[index].device.type == "cpu":
        return KeptArray(index, order)
    return _on_device(index) if order is None else _in_memory(index, order)


def _on_device(index: int) -> Callable[[list[Any]], Array]:
    """Returns a function for the array of one argument on the device."""

    def array(inputs: list[Any]) -> Array:
        tensor = inputs[index]
        try:
            cell = tensor.untyped_storage().cell  # type: ignore[attr-defined]
        except AttributeError:
            cell = cell_of(tensor)  # raises an informative error
        return cell.array if not cell.viewed or is_whole(cell, tensor) else read(tensor)

    return array


def _in_memory(index: int, order: Ints) -> Callable[[list[Any]], Array]:
    """Like `_on_device`, with the axes in the order of memory."""

    def array(inputs: list[Any]) -> Array:
        tensor = inputs[index]
        cell, shape = cell_of(tensor), tensor.shape
        array = cell.array
        if (
            cell.stride is None
            and array.dtype is TO_NUMPY[tensor.dtype]
            and array.shape == tuple([shape[axis] for axis in order])
        ):
            return array
        return read(tensor.detach().permute(order))

    return array


def _array(tensor: Tensor) -> Array:
    return array_over(tensor) if tensor.device.type == "cpu" else read(tensor)
