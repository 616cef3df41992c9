"""CPU tensors that each call computes from its CPU arguments: `images.float() / 255`, which then go
to the device.

An operator on the CPU that only computes is repeated in each call, by PyTorch, with that call's
arguments. What the function copies to the device is an input of the program. If code needs the
values otherwise (as a Python number, in a branch), those of the arguments are compared.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calque.device.memory.host import host_array
from calque.jitting.host_values import has_same_bits, without_modes
from calque.jitting.retraces import ON_CPU
from calque.program.sources import OnHost
from calque.upstream import torch_c
from calque.upstream.torch_internals import pytree

LARGEST_GUARD = 4096
"""The number of elements of a CPU tensor above which its values are not compared."""
Known = dict[int, Tensor]
"""The values that a call has computed, by the ids of their formulas."""


class Formula:
    """How each call finds or computes a CPU tensor, or a number for one."""

    __slots__ = ()

    @property
    def key(self) -> Any:
        """Identifies what it computes."""
        raise NotImplementedError

    def value(self, leaves: Sequence[Any], known: Known) -> Any:
        """Returns the tensor or number for a call with these leaves of its arguments."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Argument(Formula):
    """A CPU tensor among the arguments."""

    index: int

    @property
    def key(self) -> Any:
        return "argument", self.index

    def value(self, leaves: Sequence[Any], known: Known) -> Any:
        return leaves[self.index]


@dataclass(frozen=True, slots=True, eq=False)
class Own(Formula):
    """A CPU tensor of the state, or a copy of one that the function creates in each call."""

    tensor: Tensor
    is_copy: bool = False

    @property
    def key(self) -> Any:
        one = self.tensor
        if self.is_copy and one.numel() <= LARGEST_GUARD:
            return "constant", one.dtype, tuple(one.shape), one.stride(), repr(one.tolist())
        return "own", id(one)

    def value(self, leaves: Sequence[Any], known: Known) -> Any:
        return self.tensor


@dataclass(frozen=True, slots=True, eq=False)
class Computed(Formula):
    """The result of a function.

    Attributes:
        func: the function.
        operands: its flattened arguments, in which formulas stand for tensors and numbers.
        spec: puts them together.
        item: the index among its results; None if there is only one.
        written: where the first operand lies in its memory, if the function writes to it.
    """

    func: Any
    operands: list[Any]
    spec: Any
    item: int | None = None
    written: "Place | None" = None

    @property
    def key(self) -> Any:
        parts = [x.key if isinstance(x, Formula) else (type(x), repr(x)) for x in self.operands]
        return self.func, tuple(parts), self.item, self.written

    def value(self, leaves: Sequence[Any], known: Known) -> Any:
        if id(self) not in known:
            found = [x.value(leaves, known) if isinstance(x, Formula) else x for x in self.operands]
            if self.written is not None:
                found[0] = self.written.of(found[0].untyped_storage().clone())
            args, kwargs = pytree.tree_unflatten(found, self.spec)
            result = self.func(*args, **kwargs)
            if self.written is not None:
                result = found[0]
            known[id(self)] = result if self.item is None else result[self.item]
        return known[id(self)]


@dataclass(frozen=True, slots=True, eq=False)
class Part(Formula):
    """A tensor over the memory of another one."""

    whole: Formula
    place: "Place"

    @property
    def key(self) -> Any:
        return self.whole.key, self.place

    def value(self, leaves: Sequence[Any], known: Known) -> Any:
        return self.place.of(self.whole.value(leaves, known).untyped_storage())


@dataclass(frozen=True, slots=True, eq=False)
class FixedArray(Formula):
    """An array of NumPy that is the same in each call."""

    array: np.ndarray

    @property
    def key(self) -> Any:
        return "array", self.array.dtype.str, self.array.shape, self.array.tobytes()

    def value(self, leaves: Sequence[Any], known: Known) -> Any:
        return self.array


def form_of_array(array: np.ndarray) -> Tensor:
    """Returns the type, shape and strides of an array, as numbers."""
    return torch.tensor([array.dtype.num, array.ndim, *array.shape, *array.strides])


class Place(NamedTuple):
    """Where a tensor lies in its memory."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def of(self, storage: torch.UntypedStorage) -> Tensor:
        """Returns the tensor at this place in a memory."""
        return torch.empty(0, dtype=self.dtype).set_(storage, *self[:3])  # type: ignore[call-overload]


def place_of(tensor: Tensor) -> Place:
    """Returns where a tensor lies in its memory."""
    size, stride = tuple(tensor.shape), tuple(tensor.stride())
    return Place(int(tensor.storage_offset()), size, stride, tensor.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Traced(Formula):
    """A value that contains traced numbers: a number, or an index.

    Attributes:
        compute: returns it with the numbers of a call.
        nodes: the numbers.
        index: its index among those of the trace.
    """

    compute: Callable[[], Any]
    nodes: tuple[Any, ...]
    index: int

    @property
    def key(self) -> Any:
        return "numbers", self.index

    def value(self, leaves: Sequence[Any], known: Known) -> Any:
        return self.compute()


class _Computing(threading.local):
    """What the guard of a call has computed for the inputs of the program that it is about."""

    values: dict[Formula, Tensor] = {}
    leaves: tuple[int, ...] = ()


_computing = _Computing()


def _evaluated(formulas: Sequence[Formula], leaves: Sequence[Any]) -> list[Tensor]:
    known: Known = {}
    with torch.no_grad(), without_modes(), torch_c.disable_autocast():
        return [one.value(leaves, known) for one in formulas]


@dataclass(frozen=True, slots=True, eq=False)
class HostFormulaSource(OnHost):
    """A CPU tensor that each call computes."""

    formula: Formula

    def __eq__(self, other: object) -> bool:
        return type(other) is HostFormulaSource and self.formula.key == other.formula.key

    def __hash__(self) -> int:
        return hash(self.formula.key)

    def array(self, leaves: Sequence[Any]) -> Any:
        """Its value."""
        value = _computing.values.pop(self.formula, None)
        known = _computing.leaves
        if value is None or known != tuple(map(id, leaves[: len(known)])):
            (value,) = _evaluated([self.formula], leaves)
        return host_array(value)


class Guarded(NamedTuple):
    """What must be the same in each call.

    Attributes:
        formula: computes a tensor.
        place: its shape, strides and dtype.
        value: its values; None if they may differ.
    """

    formula: Formula
    place: Place
    value: Tensor | None

    def holds(self, found: Tensor) -> bool:
        """Returns True if a tensor is the same."""
        same = place_of(found)[1:] == self.place[1:]
        return same and (self.value is None or has_same_bits(found, self.value))


class HostFormulaGuard:
    """Guards that a call can compute on the CPU what the function does, with the same shapes, and
    the same values where code has read them.

    Args:
        rows: what is computed.
    """

    def __init__(self, rows: list[Guarded]) -> None:
        self._rows = rows
        read = any(row.value is not None for row in rows)
        self.guarded: str = ON_CPU if read else "computations on the CPU"
        self._formulas = [row.formula for row in rows]

    def holds_for(self, leaves: list[Any], given: object) -> bool:
        """Returns True if they can be computed; they are kept for the call's inputs."""
        try:
            found = _evaluated(self._formulas, leaves)
        except Exception:  # which the function raises, when it is traced again
            return False
        if not all(row.holds(one) for row, one in zip(self._rows, found, strict=True)):
            return False
        _computing.values = dict(zip(self._formulas, found, strict=True))
        _computing.leaves = tuple(map(id, leaves))
        return True

    def why(self) -> str:
        """Returns what differs."""
        return (
            "what the function computes with CPU tensors has other values or shapes, or raises; "
            "move them to 'jax'"
        )
