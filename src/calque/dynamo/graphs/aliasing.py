"""Results of which AOTAutograd only uses the geometry.

AOTAutograd itself creates a result that is a view of an argument or of another result, and an
argument whose geometry changes in place (`t_`): it views the user's own tensor with the sizes,
strides and storage offset of the program's result. If the operators that created the view have only
constant arguments, it replays those instead, and ignores the geometry.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx

from calque.device.memory.cell import cell_of, view_of
from calque.device.memory.geometry import Ints, View, extent, is_dense
from calque.device.memory.view_access import match_axes
from calque.dynamo.graphs.inputs import storage
from calque.upstream.torch_compile import OutputType, functorch_config
from calque.upstream.torch_internals import TracingContext

Tensor = torch.Tensor
Result = Callable[[list[Any], list[Tensor]], Any]
"""Returns a result for the caller from the arguments and the tensors of a program's outputs."""


class ViewPosition(NamedTuple):
    """The position of a view in another tensor's memory.

    Attributes:
        size, stride: the view's size and stride, in elements.
        start: the offset from the start of the other tensor, in bytes.
        dtype: the view's dtype.
    """

    size: Ints
    stride: Ints
    start: int
    dtype: torch.dtype


_OF_ARGUMENT = (OutputType.alias_of_input,)
_OF_BASE = (
    OutputType.alias_of_intermediate,
    OutputType.alias_of_intermediate_save_as_output,
)
_OF_RESULT = (OutputType.alias_of_intermediate_base_is_user_output,)


@dataclass
class Aliases:
    """The results of a graph that represent views, by their positions.

    Attributes:
        arguments: views of arguments: maps the index of the result to that of the argument.
        results: views of other results: maps the index of the result to that of the other one.
        moved: new values of arguments whose geometry changes too.
        values: the index of the result that is the new value of each written argument.
    """

    arguments: dict[int, int] = field(default_factory=dict)
    results: dict[int, int] = field(default_factory=dict)
    moved: dict[int, int] = field(default_factory=dict)
    values: dict[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.arguments or self.results or self.moved)

    @classmethod
    def of_current_graph(cls) -> "Aliases":
        """Returns the aliases of the forward or inference graph that AOTAutograd is compiling."""
        context = TracingContext.try_get()
        meta: Any = None if context is None else context.fw_metadata
        found = cls()
        if meta is None:
            return found
        first = len(meta.tokens)  # effect tokens precede all arguments and results
        for place, argument in enumerate(meta.mutated_inp_runtime_indices, first):
            info = meta.input_info[argument]
            if info.mutates_data:
                found.values[first + argument] = place
            if info.mutates_metadata and not info.mutates_storage_metadata:
                kind = found.moved if info.mutates_data else found.arguments
                kind[place] = first + argument
        outputs = first + len(meta.mutated_inp_runtime_indices)
        bases = outputs + len(meta.output_info)
        for place, info in enumerate(meta.output_info, outputs):
            if _is_repeated(info.view_meta_sequence):
                continue
            if info.output_type in _OF_ARGUMENT:
                found.arguments[place] = first + info.base_idx
            elif info.output_type in _OF_BASE:
                found.results[place] = bases + info.base_idx
            elif info.output_type in _OF_RESULT:
                found.results[place] = outputs + info.base_idx
        return found

    def with_values(self, graph: fx.GraphModule) -> fx.GraphModule:
        """Returns the graph with the final copies to arguments as additional results."""
        if not self.arguments:
            return graph
        copied = fx.Graph()
        last = next(node for node in graph.graph.nodes if node.op == "output")
        results = copied.graph_copy(graph.graph, {})
        assert isinstance(results, tuple | list)
        results = list(results)
        inputs = [node for node in copied.nodes if node.op == "placeholder"]
        for node in copied.nodes:
            if node.target is torch.ops.aten.copy_.default and node.args[0] in inputs:
                self.values[inputs.index(node.args[0])] = len(results)
                results.append(node.args[1])
        copied.output(tuple(results)).meta.update(last.meta)
        return fx.GraphModule(graph, copied)


def _is_repeated(sequence: Any) -> bool:
    """Returns True if a view is recreated by its operators instead of its geometry."""
    if sequence is None or not functorch_config.view_replay_for_aliased_outputs:
        return False
    return not any(operator.has_symbolic_inputs for operator in sequence.sequence)


def place_in(base: Tensor, view: Tensor) -> ViewPosition:
    """Returns the position of a view in a tensor that it shares memory with."""
    size, stride, offset = view_of(view)
    start = offset * view.itemsize - view_of(base).offset * base.itemsize
    return ViewPosition(size, stride, start, view.dtype)


def transferred(view: Tensor, source: Tensor, stride: Ints) -> ViewPosition | None:
    """Returns the position that a view would have in another memory.

    Args:
        view: a view of the source's memory.
        source: a tensor with the same elements at the same indexes as the other memory.
        stride: the stride of the other memory.

    Returns:
        None if the view joins axes whose layout differs in the other memory.
    """
    size, step, offset = view_of(view)
    if source.stride() == stride or 0 in size:
        return place_in(source, view)
    offset -= view_of(source).offset
    if view.dtype != source.dtype or not is_dense(source.shape, source.stride()):
        return None
    match = match_axes(tuple(source.shape), source.stride(), View(size, step, offset))
    if match is None:
        return None
    _, steps, order, starts = match
    axes = iter(order)
    own = [n > 1 and s != 0 for n, s in zip(size, step, strict=True)]
    strides = [
        steps[axis := next(axes)] * stride[axis] if moves else s
        for moves, s in zip(own, step, strict=True)
    ]
    start = sum(a * s for a, s in zip(starts, stride, strict=True))
    return ViewPosition(size, tuple(strides), start * view.itemsize, view.dtype)


def shares(one: Any, other: Any) -> bool:
    """Returns True if two values of a trace share memory."""
    both = isinstance(one, Tensor) and isinstance(other, Tensor)
    return both and cell_of(one) is cell_of(other)


def view_of_argument(index: int, value: Tensor, given: Tensor) -> Result:
    """Returns a result that is a view of an argument.

    Args:
        index: the argument's index.
        value: the view in the trace.
        given: the argument's counterpart there. It has the argument's strides, but may have another
            offset.
    """
    conj, neg = value.is_conj(), value.is_neg()
    view = viewed(index, place_in(given, value))
    if not (conj or neg):
        return view

    def result(inputs: list[Any], made: list[Tensor]) -> Tensor:
        tensor = view(inputs, made)
        tensor = tensor.conj() if conj else tensor
        return tensor._neg_view() if neg else tensor

    return result


def viewed(index: int, place: ViewPosition) -> Result:
    """Returns a result that is a view of an argument."""
    size, stride, start, dtype = place
    itemsize = dtype.itemsize

    def result(inputs: list[Any], made: list[Tensor]) -> Tensor:
        tensor = inputs[index].detach()
        offset = tensor.storage_offset()
        if tensor.dtype is dtype:
            return tensor.as_strided(size, stride, offset + start // itemsize)
        old = tensor.itemsize
        whole = storage(tensor)  # rounded down to whole elements of both dtypes
        whole = whole[: whole.numel() * old // itemsize * itemsize // old].view(dtype)
        # Detached because AOTAutograd would replay a view with another dtype on the argument
        # itself.
        return whole.as_strided(size, stride, (offset * old + start) // itemsize).detach()

    return result


def placed(make: Result, index: int) -> Result:
    """Returns a result with its own values, at an argument's storage offset."""

    def result(inputs: list[Any], made: list[Tensor]) -> Tensor:
        tensor, offset = make(inputs, made), inputs[index].storage_offset()
        if not offset:
            return tensor
        length = offset + tensor.storage_offset() + extent(tensor.shape, tensor.stride())
        room = tensor.new_empty(length)
        start = offset + tensor.storage_offset()
        return room.as_strided(tensor.shape, tensor.stride(), start).copy_(tensor).detach()

    return result
