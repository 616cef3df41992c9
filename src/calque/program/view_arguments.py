"""Windows: views among the arguments of a traced function, passed without the rest of their memory.

A program takes a view as an array of the view's own elements, so that the windows of a sliding
slice share one program. In the trace, the tensor has the view's strides, and starts at the
beginning of its storage. If a function uses more than that (the view's offset, the memory around
it), this is detected here, and the function is traced again with the whole storage as the input.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import Any

import torch
from jax import Array

from calque.device.memory.cell import Cell, layout_of
from calque.device.memory.geometry import extent, is_dense, is_nested
from calque.device.memory.wrapping import alias, wrap_nested, wrap_strided
from calque.program.function_modes import FunctionMode, called_by_calque
from calque.upstream.torch_internals import OpOverload

_aten = torch.ops.aten
_Tensor = torch.Tensor
_ASKING = frozenset(
    (
        _Tensor.storage_offset,
        _Tensor.untyped_storage,
        _Tensor.storage,
        _Tensor.data_ptr,
        _Tensor.is_set_to,
    )
)


@cache
def offset_place(op: object) -> int | None:
    """Returns the position of an operator's storage-offset argument; None for other operators."""
    if not isinstance(op, OpOverload):
        return None
    names = [a.name for a in op._schema.arguments]
    reaches = {"size", "stride", "storage_offset"} <= {*names} and "source" not in names
    return names.index("storage_offset") if reaches else None


def unrepeated(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's distinct elements: the first along every axis of stride 0."""
    if 0 in tensor.stride():
        tensor = tensor.detach()
        for axis, step in enumerate(tensor.stride()):
            if step == 0 and tensor.shape[axis] > 1:
                tensor = tensor.narrow(axis, 0, 1)
    return tensor


def window_of(array: Array, tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns a new tensor with a tensor's shape and strides, over only its `unrepeated` elements.

    Returns None if elements coincide because of strides other than 0.
    """
    size, stride, own = tuple(tensor.shape), tensor.stride(), array.shape
    if is_dense(own, stride):
        window = wrap_strided(array, stride)
    elif is_nested(own, stride):
        window = wrap_nested(array, stride)
    else:
        return None
    if own == size:
        return window
    return alias(_aten.as_strided.default, window, size, stride, 0)


class OutsideWindow(BaseException):
    """Signals that a function needs memory outside a window; a BaseException, so that `except`
    clauses do not catch it.
    """


class ViewWindows:
    """The windows of one trace.

    Attributes:
        indexes: the index of the argument for each window's cell.
        asked: the arguments that the function needs in full, not only their windows.
    """

    def __init__(self) -> None:
        self.indexes: dict[Cell, int] = {}
        self.asked: set[int] = set()

    def watch(self, stack: ExitStack) -> None:
        """Watch operations until the stack is left; costs nothing if there are no windows."""
        if self.indexes:
            stack.enter_context(_Watch(self.see))

    def see(self, tensor: object) -> None:
        """Handle a query of a tensor's position in its storage.

        Raises:
            OutsideWindow: the tensor is in a window.
        """
        index = self.indexes.get(_cell_of(tensor))
        if index is not None:
            self.asked.add(index)
            raise OutsideWindow

    def see_operator(self, func: Any, args: Any, kwargs: Any) -> None:
        """Check an operator that is about to run.

        Raises:
            OutsideWindow: the operator uses memory outside a window.
        """
        if not self.indexes or (place := offset_place(func)) is None:
            return
        tensor = args[0] if args else kwargs["self"]
        cell = _cell_of(tensor)
        if cell not in self.indexes:
            return
        given = kwargs.get("storage_offset", args[place] if len(args) > place else None)
        size = kwargs.get("size", args[place - 2] if len(args) > place - 2 else None)
        stride = kwargs.get("stride", args[place - 1] if len(args) > place - 1 else None)
        layout = layout_of(cell)
        inside = tensor.storage_offset() + extent(size, stride) <= layout.length
        if given is not None or not inside or not is_dense(*layout):
            self.see(tensor)


class _Watch(FunctionMode):
    """A mode that sees queries that are not operators."""

    def __init__(self, see: Callable[[Any], None]) -> None:
        super().__init__()
        self._see = see

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """See `FunctionMode.call`."""
        if func in _ASKING and not called_by_calque():
            for tensor in args:
                self._see(tensor)
        return func(*args, **kwargs)


def _cell_of(value: object) -> Any:
    if not isinstance(value, torch.Tensor) or value.device.type != "jax":
        return None
    return getattr(value.untyped_storage(), "cell", None)
