"""The values of a run, distinguished by the identity of tensors.

Python usually reuses the id of a freed tensor, and a tensor held only by C++ has no Python object.
So tensors are identified by their C++ object, through PyTorch's weak references: these keep no data
alive, and prevent reuse of the address.
"""

from typing import Any, NamedTuple

import torch

from calque.upstream import torch_c


class TensorAttributes(NamedTuple):
    """A tensor's attributes when it was created."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @property
    def size_in_bytes(self) -> int:
        """The number of bytes that its elements take."""
        count = self.dtype.itemsize
        for size in self.shape:
            count *= size
        return count


class RunValue:
    """A tensor of a run, or an object that a PyTorch function returned; compared by identity.

    Attributes:
        looks: the attributes of a tensor; None for other objects.
        is_dynamic: whether its shape depends on the values of other tensors.
        asked: what the program asked of it, by the keys of `LOOKS`.
    """

    __slots__ = ("asked", "is_dynamic", "looks")

    def __init__(self, looks: TensorAttributes | None = None, is_dynamic: bool = False) -> None:
        self.looks: TensorAttributes | None = looks
        self.is_dynamic: bool = is_dynamic
        self.asked: tuple[str, ...] = ()

    def __repr__(self) -> str:
        if self.looks is None:
            return "<object>"
        return f"<{str(self.looks.dtype).removeprefix('torch.')}{list(self.looks.shape)}>"


def looks_of(tensor: torch.Tensor) -> TensorAttributes:
    """Returns a tensor's current attributes."""
    strided = tensor.layout is torch.strided and not tensor.is_nested
    shape = tuple(tensor.shape) if not tensor.is_nested else ()
    stride = tensor.stride() if strided else ()
    return TensorAttributes(shape, stride, tensor.dtype, tensor.device, tensor.requires_grad)


class Values:
    """The values of a run, by their tensors.

    >>> values = Values()
    >>> x = torch.ones(2)
    >>> values.add(x) is values.of(x), values.of(torch.ones(2))
    (True, None)
    """

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[Any, RunValue]] = {}
        self._objects: dict[int, tuple[Any, RunValue]] = {}

    def of(self, tensor: torch.Tensor) -> RunValue | None:
        """Returns the value of a tensor; None if no recorded call has returned it."""
        found = self._tensors.get(tensor._cdata)
        return found[1] if found is not None else None

    def add(self, tensor: torch.Tensor, is_dynamic: bool = False) -> RunValue:
        """Add a tensor that is new to the recording.

        A sparse tensor counts as dynamic, because values determine the size of its parts.
        """
        value = RunValue(looks_of(tensor), is_dynamic or tensor.layout is not torch.strided)
        self._tensors[tensor._cdata] = torch_c.WeakTensorRef(tensor), value
        return value

    def reshaped(self, tensor: torch.Tensor) -> None:
        """Record that a tensor got a shape that depends on values."""
        value = self.of(tensor)
        if value is not None:
            value.looks, value.is_dynamic = looks_of(tensor), True

    def of_object(self, thing: Any) -> RunValue | None:
        """Like `of`, for objects that are not tensors."""
        found = self._objects.get(id(thing))
        return found[1] if found is not None else None

    def add_object(self, thing: object) -> RunValue:
        """Like `add`, for objects that are not tensors; they are kept alive."""
        value = RunValue()
        self._objects[id(thing)] = thing, value
        return value

    def forget(self) -> None:
        """Release everything after the run."""
        self._tensors.clear()
        self._objects.clear()


def values_in(template: object) -> list[RunValue]:
    """Returns the values in an argument or a result, including those in containers.

    >>> a, b = RunValue(), RunValue()
    >>> values_in((a, [1, {"key": b}])) == [a, b]
    True
    """
    found: list[RunValue] = []
    _collect(template, found)
    return found


def _collect(template: Any, found: list[RunValue]) -> None:
    kind = type(template)
    if kind is RunValue:
        found.append(template)
    elif kind is slice:
        _collect((template.start, template.stop, template.step), found)
    elif isinstance(template, dict):
        for part in template.values():
            _collect(part, found)
    elif isinstance(template, (tuple, list)) and kind is not torch.Size:
        for part in template:
            _collect(part, found)
