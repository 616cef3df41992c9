"""How the outputs of a program become the tensors that its caller gets.

What is the same in each call is decided once, when the program is compiled: each maker and result
here is a function that does only what is left.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jax import Array

from calque.device.cell import Cell, cell_of, is_whole, layout_of, read, view_of, wrapper
from calque.device.dtypes import to_torch
from calque.device.geometry import Ints, permutation
from calque.run.handing import storage
from calque.run.shared import restrided, tensor_over

Tensor = torch.Tensor
Maker = Callable[[Array], Tensor]
"""What makes an output a tensor with memory of its own."""
Result = Callable[[list[Any], list[Tensor]], Any]
"""What the caller gets, of the arguments and of the tensors made of a program's outputs."""


class Returned:
    """What a graph returned, while it is traced.

    Args:
        found: the results.
        given: the arguments.
        devices: where each result belongs; None for Python numbers.

    Attributes:
        arrays: what the program gives for them.
        makers: what makes a tensor of each array.
        results: what the caller gets.
        separate: whether each array becomes a result of its own, in order.
    """

    def __init__(
        self, found: Sequence[Any], given: list[Any], devices: Sequence[torch.device | None]
    ) -> None:
        self.arrays: list[Array] = []
        self.makers: list[Maker] = []
        self.results: list[Result] = []
        self._places = {id(t): i for i, t in enumerate(given) if isinstance(t, Tensor)}
        own = {id(v): v for v in found if isinstance(v, Tensor) and id(v) not in self._places}
        self._sharers = Counter(map(cell_of, own.values()))
        self._bases: dict[Cell, int] = {}
        self._whole: set[int] = set()
        known: dict[int, Result] = {}  # the same tensor twice: a write to it is to be seen as one
        for value, device in zip(found, devices, strict=True):
            result = known.get(id(value))
            if result is None:
                result = known[id(value)] = self._result(value, device)
            self.results.append(result)
        self.separate = len(self.results) == len(self.makers) == len(self._whole)

    def _result(self, value: Any, device: torch.device | None) -> Result:
        if not isinstance(value, Tensor):
            return _constant(value)
        if device is None:  # a Python number that a loop has counted
            array = read(value)
            return _number(self._add(array, _maker((), (), to_torch(array.dtype), None)))
        if id(value) in self._places:
            return _argument(self._places[id(value)])
        cell = cell_of(value)
        if self._sharers[cell] == 1 and not (value.is_conj() or value.is_neg()):
            base = self._add_alone(value, device)
            self._whole.add(base)
            return _made_of(base, None)
        base = self._bases.get(cell)
        if base is None:
            base = self._bases[cell] = self._add_storage(cell, device)
        if base not in self._whole and is_whole(cell, value):
            self._whole.add(base)
            return _made_of(base, None)
        return _made_of(base, value)

    def _add_alone(self, value: Tensor, device: torch.device) -> int:
        """A tensor whose memory no other result shares: no more than its own elements."""
        shape, stride = tuple(value.shape), value.stride()
        order = permutation(shape, stride)
        array = read(value if order is None else value.permute(order))
        return self._add(array, _maker(shape, stride, value.dtype, device))

    def _add_storage(self, cell: Cell, device: torch.device) -> int:
        array, stride = cell.array, layout_of(cell).stride
        order = permutation(array.shape, stride)
        make = _maker(array.shape, stride, to_torch(array.dtype), device)
        return self._add(array if order is None else array.transpose(order), make)

    def _add(self, array: Array, make: Maker) -> int:
        self.arrays.append(array)
        self.makers.append(make)
        return len(self.arrays) - 1


def _constant(value: Any) -> Result:
    """A result that is the same in each call."""
    return lambda inputs, made: value


def _argument(index: int) -> Result:
    """A result that is an argument."""
    return lambda inputs, made: inputs[index]


def _number(base: int) -> Result:
    """A result that is a Python number, of a tensor made of an output."""
    return lambda inputs, made: made[base].item()


def _made_of(base: int, like: Tensor | None) -> Result:
    """A result that is a tensor made of an output, or a view of one.

    Args:
        base: which of the tensors made.
        like: a tensor that views its memory as the result does; None for the tensor itself.
    """
    if like is None:
        return lambda inputs, made: made[base]
    view, dtype, conj, neg = view_of(like), like.dtype, like.is_conj(), like.is_neg()

    def result(inputs: list[Any], made: list[Tensor]) -> Tensor:
        tensor = made[base]
        if tensor.dtype != dtype:
            tensor = storage(tensor).view(dtype)
        tensor = tensor.as_strided(view.size, view.stride, view.offset).detach()
        tensor = tensor.conj() if conj else tensor
        return tensor._neg_view() if neg else tensor

    return result


def _maker(
    shape: Ints, stride: Ints, dtype: torch.dtype, device: torch.device | None
) -> Callable[[Array], Tensor]:
    """What makes an output of a program a tensor with memory of its own.

    Args:
        shape, stride, dtype: of the tensor. Its array has the order of memory where there is one
            (`geometry.permutation`), else the tensor's.
        device: where the tensor belongs; None for ours.
    """
    if device is None or device.type != "cpu":
        return wrapper(shape, stride, dtype)
    if permutation(shape, stride) is not None:
        return lambda array: tensor_over(array).as_strided(shape, stride).detach()

    def on_host(array: Array) -> Tensor:
        made = tensor_over(array)
        return made if made.stride() == stride else restrided(made, stride)

    return on_host
