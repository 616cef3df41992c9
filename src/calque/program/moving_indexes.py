"""Indexes and slices with numbers that are inputs of the program: `data[self.i : self.i + 4]`.

Where the number of elements does not depend on the number, the position becomes an input of the
program (see `calque.device.memory.moving_views`). That the position is in the tensor, and the
number of elements, are guarded. Other indexes need the number itself.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from calque.device.memory.cell import active, moving
from calque.device.memory.moving_views import Start, is_moving, whole
from calque.program.number_nodes import NumberNode
from calque.program.traced_numbers import TracedFloat
from calque.state.stand_ins import StandIn
from calque.upstream.torch_internals import force_original_view_tracking

Tensor = torch.Tensor
_slice = torch.ops.aten.slice.Tensor
_get, _set = Tensor.__getitem__, Tensor.__setitem__


def is_whole(value: object) -> bool:
    """Returns True for a traced integer that is computed in Python."""
    return type(value) is TracedFloat and value.node.in_python and value.node.integral


def _moves(item: object) -> bool:
    """Returns True if a part of an index is a traced integer, or a slice between two."""
    if type(item) is slice:
        return is_whole(item.start) and is_whole(item.stop)
    return is_whole(item)


def _started(key: Any, nodes: Sequence[NumberNode], position: Callable[..., int], most: int) -> int:
    """Returns the code of a start.

    Args:
        key: identifies it among the starts of the trace.
        nodes: the numbers from which it is computed.
        position: computes it.
        most: the greatest start.
    """
    views, key = moving(), (key, most)
    if key not in views.known:
        first = next(node for node in nodes if not node.is_number)
        node: Any = first.combined(position, tuple(nodes))
        found = Start(whole(node.traced), most, node)
        views.known[key] = views.start(found)
    return views.known[key]


def _moved(tensor: Tensor, dim: int, code: int, length: int) -> Tensor:
    """Returns the elements from a start.

    Autograd replays the view where it has been written to. It would otherwise compute the gradient
    from the offset.
    """
    with force_original_view_tracking(True):
        return _slice(tensor, dim, code, code + length)


def guarded(node: NumberNode, holds: Callable[[], bool]) -> bool:
    """Guard that a position is such that the same program serves it; returns whether it is."""
    if not holds():
        return False
    node.watch.answers.append((holds, True))
    return True


def _at(tensor: Tensor, dim: int, index: TracedFloat) -> tuple[Tensor, int] | None:
    """Returns the elements at one position along an axis, and their index; None if there are
    none.
    """
    node, size = index.node, tensor.shape[dim]
    compute = node.compute
    if not guarded(node, lambda: -size <= compute() < size):
        return None

    def position(i: int) -> int:
        return int(i) % size

    code = _started((node.key, size), (node,), position, size - 1)
    return _moved(tensor, dim, code, 1), 0


def _between(tensor: Tensor, dim: int, part: slice) -> tuple[Tensor, slice] | None:
    """Returns the elements of a slice along an axis, and a slice of all of these; None if the
    number itself is needed.
    """
    size, step = tensor.shape[dim], part.step
    if step is not None and (type(step) is not int or step <= 0):
        return None
    first: NumberNode = part.start.node
    nodes = first, part.stop.node
    computes = [node.compute for node in nodes]

    def places() -> range:
        start, stop = (int(compute()) for compute in computes)
        return range(*slice(start, stop, step).indices(size))

    count = len(places())
    if count == 0:
        return None

    def position(start: int, stop: int) -> int:
        return slice(int(start), int(stop)).indices(size)[0]

    guarded(first, lambda: len(places()) == count)
    extent = (count - 1) * (step or 1) + 1
    code = _started((first.key, nodes[1].key, size), nodes, position, size - extent)
    return _moved(tensor, dim, code, extent), slice(None, None, step)


def _axes_of(item: object) -> int | None:
    """Returns the number of axes that a part of an index is for; None if it is unknown."""
    if item is None or item is Ellipsis or type(item) is bool:
        return 0
    if isinstance(item, Tensor):
        return item.dim() if item.dtype in (torch.bool, torch.uint8) else 1
    if type(item) is list:
        return 1 if item and all(type(one) is int for one in item) else None
    return 1 if type(item) in (int, slice, TracedFloat) else None


def _indexed(tensor: Any, index: Any) -> tuple[Tensor, tuple[Any, ...]] | None:
    """Returns the elements at the traced parts of an index, and the index of these elements.

    Returns None if no part of it moves.
    """
    items = index if type(index) is tuple else (index,)
    if not any(map(_moves, items)) or not may_move(tensor):
        return None
    axes = [_axes_of(item) for item in items]
    if None in axes or sum(1 for item in items if item is Ellipsis) > 1:
        return None
    counts = [count or 0 for count in axes]
    if sum(counts) > tensor.dim():
        return None
    left, dim = list(items), 0
    for i, (item, count) in enumerate(zip(items, counts, strict=True)):
        if item is Ellipsis:
            dim = tensor.dim() - sum(counts[i:])
        elif item is None:  # as PyTorch does, so that its stride is that of the whole axis
            tensor, left[i], count = tensor.unsqueeze(dim), slice(None), 1
        elif _moves(item):
            found = (_between if type(item) is slice else _at)(tensor, dim, item)
            if found is not None:
                tensor, left[i] = found
        dim += count
    return tensor, tuple(left)


def may_move(tensor: Any) -> bool:
    """Returns True for a tensor of the running trace."""
    if active.trace is None or type(tensor) not in (Tensor, torch.nn.Parameter):
        return False
    return tensor.device.type == "jax"


def getitem(self: Any, index: Any) -> Any:
    """Implements `Tensor.__getitem__`."""
    if type(self) is Tensor and self.is_cpu and active.trace is not None:
        part = _on_host(self, index)
        return _get(self, index) if part is None else part
    found = _indexed(self, index)
    return _get(self, index) if found is None else _get(*found)


def _on_host(tensor: Tensor, index: Any) -> Tensor | None:
    """Returns the part of a CPU tensor that each call computes; None if there is none."""
    computations = getattr(active.trace, "host_computations", None)
    numbers = [one.node for one in _numbers_of(index)]
    if computations is None or not numbers or not all(n.in_python and n.known for n in numbers):
        return None
    index = _with_nodes(index)
    return computations.index(tensor, tuple(numbers), lambda: _computed(index))


def _numbers_of(index: Any) -> list[Any]:
    items = index if type(index) is tuple else (index,)
    parts = [(x.start, x.stop, x.step) if type(x) is slice else (x,) for x in items]
    return [one for part in parts for one in part if type(one) is TracedFloat]


def _with_nodes(index: Any) -> Any:
    """Returns an index with nodes instead of traced numbers."""
    if type(index) is tuple:
        return tuple(map(_with_nodes, index))
    if type(index) is slice:
        return slice(*map(_with_nodes, (index.start, index.stop, index.step)))
    return index.node if type(index) is TracedFloat else index


def _computed(index: Any) -> Any:
    """Returns an index with the numbers that the nodes compute."""
    if type(index) is tuple:
        return tuple(map(_computed, index))
    if type(index) is slice:
        return slice(*map(_computed, (index.start, index.stop, index.step)))
    return index.compute() if isinstance(index, NumberNode) else index


def setitem(self: Any, index: Any, value: Any) -> None:
    """Implements `Tensor.__setitem__`."""
    found = _indexed(self, index)
    if found is None:
        _set(self, index, value)
    else:
        _set(*found, value)


def _axis(tensor: Any, dim: Any) -> int | None:
    """Returns an axis of a tensor that may move; None for other arguments."""
    if not may_move(tensor) or type(dim) is not int or not -tensor.dim() <= dim < tensor.dim():
        return None
    return dim % tensor.dim()


def _narrowed(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    given = dict(zip(("dim", "start", "length"), args, strict=False)) | kwargs
    axis = _axis(self, given.get("dim"))
    start: Any = given.get("start")
    length: Any = given.get("length")
    if len(given) != 3 or axis is None or not is_whole(start) or type(length) is not int:
        return original(self, *args, **kwargs)
    size = self.shape[axis]
    node: NumberNode = start.node
    compute = node.compute
    # As PyTorch does, take a negative start for one from the end.
    fits = 0 < length <= size and guarded(
        node, lambda: -size <= compute() < size and int(compute()) % size + length <= size
    )
    if not fits:
        return original(self, *args, **kwargs)
    code = _started((node.key, size), (node,), lambda i: int(i) % size, size - length)
    return _moved(self, axis, code, length)


def _selected(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    given = dict(zip(("dim", "index"), args, strict=False)) | kwargs
    axis, index = _axis(self, given.get("dim")), given.get("index")
    found = None
    if len(given) == 2 and axis is not None and is_whole(index):
        found = _at(self, axis, index)
    if found is None or axis is None:
        return original(self, *args, **kwargs)
    return original(found[0], axis, 0)


def _rolled(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    given = dict(zip(("shifts", "dims"), args, strict=False)) | kwargs
    shift, dims = (_only(given.get(name)) for name in ("shifts", "dims"))
    if not is_whole(shift) or not may_move(self) or self.numel() == 0:
        return original(self, *args, **kwargs)
    if dims is None or dims == ():
        return _rolled(original, self.reshape(-1), shift, 0).view(self.shape)
    axis = _axis(self, dims)
    if axis is None or len(given) > 2:
        return original(self, *args, **kwargs)
    node, size = shift.node, self.shape[axis]
    key = "rolled", node.key, size
    code = _started(key, (node,), lambda i: -int(i) % size, size)
    found = _moved(torch.cat((self, self), axis), axis, code, size)
    return found.clone(memory_format=torch.contiguous_format)


def _only(value: Any) -> Any:
    return value[0] if type(value) in (list, tuple) and len(value) == 1 else value


def refuse_moving(tensors: Sequence[Any]) -> None:
    """Raise the error that has the function traced without moving views, if one of these is one.

    It is for functions that tell where a tensor is.
    """
    if any(is_moving(one.storage_offset()) for one in tensors if may_move(one)):
        moving().refuse()


def _method(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(original, self, *args, **kwargs)

    return method


_FUNCTIONS = {"narrow": _narrowed, "select": _selected, "roll": _rolled}
MOVING_FUNCTIONS: dict[str, StandIn] = {
    name: StandIn(getattr(torch, name), bool, partial(function, getattr(torch, name)))
    for name, function in _FUNCTIONS.items()
}
"""Functions of `torch` that take traced numbers as positions."""
METHODS: dict[str, Callable[..., Any]] = {
    name: _method(function, getattr(Tensor, name)) for name, function in _FUNCTIONS.items()
}
"""Methods of tensors that take traced numbers as positions."""
