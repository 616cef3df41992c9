"""Converts the outputs of a program to the tensors that its caller gets.

Everything that is the same in each call is decided once, when the program is compiled; each maker
and result is a function that does only the rest.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jax import Array
from torch import fx

from calque.device.memory.cell import Cell, cell_of, is_whole, layout_of, read, view_of
from calque.device.memory.geometry import Ints, is_dense, permutation
from calque.device.memory.wrapping import wrapper
from calque.device.runtime.dtypes import to_torch
from calque.dynamo.graphs.aliasing import (
    Aliases,
    Result,
    placed,
    shares,
    transferred,
    view_of_argument,
    viewed,
)
from calque.dynamo.graphs.inputs import storage
from calque.errors import TraceError
from calque.graph.node_location import line_of, located
from calque.program.shared_memory import remember, restrided, tensor_over

Tensor = torch.Tensor
_UNKNOWN = (
    "the function returns a view whose offset varies from call to call, and its position in "
    "memory is not known: the argument it views is written here and is not contiguous. Return a "
    "clone() of the view, or pass a clone() of the argument."
)
Maker = Callable[[Array], Tensor]
"""Converts an output to a tensor with its own memory."""


class GraphOutputs:
    """The results of a graph while it is traced.

    Args:
        found: the results, followed by the additional values that `aliases` names.
        given: the counterparts of the arguments.
        arguments: the arguments of the first call.
        nodes: the nodes of the results that are nodes.
        aliases: the results of which AOTAutograd only uses the geometry.

    Attributes:
        arrays: the program's outputs.
        makers: functions that create a tensor from each array.
        results: functions that return each of the caller's results.
        separate: whether each array becomes its own result, in order.
    """

    def __init__(
        self,
        found: Sequence[Any],
        given: list[Any],
        arguments: Sequence[Any],
        nodes: Sequence[Any],
        aliases: Aliases,
    ) -> None:
        self.arrays: list[Array] = []
        self.makers: list[Maker] = []
        self.results: list[Result] = []
        self._found, self._given, self._arguments = found, given, arguments
        self._aliases = aliases
        self._places = {id(t): i for i, t in enumerate(given) if isinstance(t, Tensor)}
        self._owners = {cell_of(t): i for i, t in enumerate(given) if isinstance(t, Tensor)}
        results = found[: len(nodes)]
        own = {id(v): v for v in results if isinstance(v, Tensor) and id(v) not in self._places}
        self._sharers = Counter(map(cell_of, own.values()))
        self._bases: dict[Cell, int] = {}
        self._whole: set[int] = set()
        known: dict[int, Result] = {}  # so that a tensor that occurs twice stays one tensor
        for place, (value, node) in enumerate(zip(results, nodes, strict=True)):
            result = self._view_of_base(place, value, node)
            if result is None:
                result = known.get(id(value))
            if result is None:
                result = known[id(value)] = self._result(value, device_of(node))
            self.results.append(result)
        self.separate: bool = len(self.results) == len(self.makers) == len(self._whole)

    def _result(self, value: object, device: torch.device | None) -> Result:
        if not isinstance(value, Tensor):
            return _constant(value)
        if device is None:  # a Python number, such as a loop counter
            array = read(value)
            return _number(self._add(array, _maker((), (), to_torch(array.dtype), None)))
        if id(value) in self._places:
            return _argument(self._places[id(value)])
        cell = cell_of(value)
        owner = self._owners.get(cell)
        if owner is not None and self._can_view(owner, value):
            return view_of_argument(owner, value, self._given[owner])
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

    def _can_view(self, owner: int, value: Tensor) -> bool:
        """Returns True if a view of an argument's traced form can become a view of the argument."""
        argument = self._arguments[owner]
        return value.dtype == argument.dtype or not (argument.is_conj() or argument.is_neg())

    def _view_of_base(self, place: int, value: Any, node: Any) -> Result | None:
        """Returns a result of which AOTAutograd only uses the geometry, if it is not in its base's
        memory.

        Raises:
            TraceError: its position in its base's memory is unknown.
        """
        aliases = self._aliases
        base = aliases.results.get(place)
        if base is not None and not shares(value, self._found[base]):
            raise _unknown(node)
        argument = aliases.moved.get(place)
        if argument is not None:
            given = self._given[argument]
            if not is_dense(given.shape, given.stride()):
                raise _unknown(node)
            return placed(self._result(value, device_of(node)), argument)
        argument = aliases.arguments.get(place)
        if argument is None or shares(value, self._given[argument]):
            return None
        given, new = self._given[argument], self._found[aliases.values.get(argument, place)]
        if not shares(value, new) or argument not in aliases.values or new.shape != given.shape:
            raise _unknown(node)
        view = transferred(value, new, given.stride())
        if view is None:
            raise _unknown(node)
        return viewed(argument, view)

    def _add_alone(self, value: Tensor, device: torch.device) -> int:
        """Returns a tensor whose memory has only its own elements and is not shared with other
        results.
        """
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


def device_of(node: object) -> torch.device | None:
    """Returns the device of a result; None if it is not a tensor."""
    value = node.meta["val"] if isinstance(node, fx.Node) else None
    return value.device if isinstance(value, Tensor) else None


def _unknown(node: fx.Node) -> Exception:
    """Returns the error for a view with an unknown position, at its line or that of its base."""
    while not line_of(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return located(TraceError(_UNKNOWN), node)


def _constant(value: object) -> Result:
    """Returns a result that is the same in each call."""
    return lambda inputs, made: value


def _argument(index: int) -> Result:
    """Returns a result that is an argument."""
    return lambda inputs, made: inputs[index]


def _number(base: int) -> Result:
    """Returns a result that is a Python number, read from an output."""
    return lambda inputs, made: made[base].item()


def _made_of(base: int, like: Tensor | None) -> Result:
    """Returns a result that is an output's tensor, or a view of one.

    Args:
        base: the index of the created tensor.
        like: a tensor with the geometry of the view; None for the tensor itself.
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
    """Returns a function that turns an output of a program into a tensor with its own memory.

    Args:
        shape, stride, dtype: the tensor's. Its array has the axes in the order of memory if there
            is one (`geometry.permutation`), else in the tensor's order.
        device: the tensor's device; None for "jax".
    """
    if device is None or device.type != "cpu":
        return wrapper(shape, stride, dtype)
    order = permutation(shape, stride)

    def on_host(array: Array) -> Tensor:
        made = tensor_over(array)
        if order is not None:
            made = made.as_strided(shape, stride).detach()
        elif made.stride() != stride:
            return restrided(made, stride)
        if len(array.devices()) == 1:
            remember(made, array)
        return made

    return on_host


def resizable(make: Maker) -> Maker:
    """Returns a function that creates CPU tensors in memory allocated by PyTorch."""

    def made(array: Array) -> Tensor:
        tensor = make(array)
        own = tensor.device.type == "cpu" and not tensor.untyped_storage().resizable()
        return restrided(tensor, tensor.stride()) if own else tensor

    return made
