"""Implements the tensors whose values the op table checks (`calque.ops.table.tensor_argument`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jax import Array
from jax.core import Tracer
from numpy.linalg import LinAlgError
from torch import Tensor

from calque.device.kernels import trace_checks
from calque.device.memory.cell import read, x64
from calque.device.memory.host import array_of
from calque.device.runtime.addressable import is_here, own_values
from calque.device.runtime.dtypes import to_numpy
from calque.device.runtime.placement import host_has_default_device, placement_of
from calque.upstream.jax_internals import ArrayImpl


def host_view(array: Array) -> np.ndarray | None:
    """Returns the elements on the host without a copy; None if that is impossible."""
    return None if isinstance(array, Tracer) or not is_here(array) else _own_view(array)


def _own_view(array: Array) -> np.ndarray | None:
    """Like `host_view`; for an array of several processes, this one's parts, in one dimension."""
    if type(array) is ArrayImpl and placement_of(array) is None:
        return np.asarray(array) if host_has_default_device() else None
    if next(iter(array.devices())).platform != "cpu":
        return None
    return own_values(array)


_PLAIN = frozenset((bool, int, float, type(None)))


@dataclass(frozen=True)
class Lasting:
    """What a check of numbers asks of a `TensorArgument`, without the tensor."""

    shape: tuple[int, ...]
    ndim: int
    size: int
    is_float: bool
    dtype: np.dtype
    number: int | float | complex | None


_ASKED = tuple(one.name for one in fields(Lasting))


class Seen:
    """A `TensorArgument`."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def ndim(self) -> int:
        return self.tensor.ndim

    @property
    def size(self) -> int:
        return self.tensor.numel()

    @property
    def is_float(self) -> bool:
        return self.tensor.is_floating_point()

    @property
    def dtype(self) -> np.dtype:
        return to_numpy(self.tensor.dtype)

    @property
    def number(self) -> int | float | complex | None:
        """See `TensorArgument.number`."""
        if self.tensor.device.type != "cpu" or self.tensor.ndim:
            return None
        array = array_of(self.tensor)
        return None if isinstance(array, Tracer) else array.item()

    def values(self) -> np.ndarray | None:
        """See `TensorArgument.values`."""
        if self.tensor.device.type != "jax" or not self.tensor.numel():
            return None
        return host_view(read(self.tensor))

    def lasting(self) -> Lasting:
        """Returns what a check of numbers asks of it, without the tensor."""
        return Lasting(*(getattr(self, name) for name in _ASKED))

    def require(
        self, good: Callable[[Any], Any], error: Callable[[Any], Exception], wait: bool = False
    ) -> None:
        """See `TensorArgument.require`."""
        tensor = self.tensor
        on_device = tensor.device.type == "jax"
        if not tensor.numel() or not (on_device or wait):
            return
        array = read(tensor) if on_device else array_of(tensor)
        if isinstance(array, Tracer):
            with x64():
                trace_checks.collect(~good(array), array, lambda bad: _described(error(bad)))
            return
        found = own_values(array) if wait else _own_view(array)
        if found is not None:
            fits = good(found)
            if not fits.all():
                raise _described(error(found[~fits].reshape(-1)[0]))

    def require_within(self, least: int, limit: int, error: Callable[[int], Exception]) -> None:
        """See `TensorArgument.require_within`."""
        if not self.tensor.numel() or self.tensor.device.type != "jax":
            return
        array = read(self.tensor)
        if isinstance(array, Tracer):
            trace_checks.collect((array < least) | (array >= limit), array, error)
            return
        found = _own_view(array)
        if found is not None:
            low, high = int(found.min()), int(found.max())
            if high >= limit or low < least:
                raise error(high if high >= limit else low)


def all_seen(names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call, by name, in the form for checks."""
    given = {n: v if type(v) in _PLAIN else seen(v) for n, v in zip(names, args)}
    for name, value in kwargs.items():
        given[name] = seen(value)
    return given


def seen(value: object) -> Any:
    """Returns an argument of a call in the form for checks."""
    if isinstance(value, Tensor):
        return Seen(value)
    if isinstance(value, list | tuple):
        return [seen(one) for one in value]
    return to_numpy(value) if isinstance(value, torch.dtype) else value


def _described(error: Exception) -> Exception:
    """Returns an error of a check, in PyTorch's class."""
    return torch.linalg.LinAlgError(*error.args) if type(error) is LinAlgError else error
