"""Views whose position differs between the calls of a program: `data[self.i : self.i + 4]`.

PyTorch computes the storage offset of a view as a sum: the offset of the tensor, and a start times
a stride for each axis. While `calque.jit` traces, a start that is an input of the program is a
large code instead of a number of elements, and so are the offsets to which it is added. All of
PyTorch's own arithmetic on offsets then holds, and so do its views, their gradients, and what
autograd knows of writes. A code is looked up where a view is read or written.

Codes are odd multiples of 2**40, so that a sum or a multiple of codes, which no view has, is no
code.
"""

from typing import Any, NamedTuple, NoReturn

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from calque.device.memory.geometry import Ints, Layout, View, contiguous_strides
from calque.device.memory.view_access import AccessPlan, gathered, plan_of

FIRST: int = 2**40
"""The least code; arrays have fewer elements."""
_DISTANCE = 2**39
_MOST = 2**15
_aten = torch.ops.aten


class Start(NamedTuple):
    """A position along an axis that differs between calls.

    Attributes:
        traced: the position, in the program.
        most: the greatest one.
        node: computes the position in Python at each call (a `PythonNode`).
    """

    traced: Array
    most: int
    node: Any


Term = tuple[int, int]
"""The index of a start, and the stride of its axis."""


class MovingViews:
    """The starts of one trace, and the offsets computed from them.

    Attributes:
        known: codes of starts, by what they are computed from.
    """

    def __init__(self) -> None:
        self._starts: list[Start] = []
        self._sums: list[tuple[Term, ...]] = []
        self._codes: dict[tuple[Term, ...], int] = {}
        self.known: dict[Any, int] = {}

    def __bool__(self) -> bool:
        return bool(self._starts)

    def start(self, one: Start) -> int:
        """Returns the code of a new start of a slice."""
        self._starts.append(one)
        return self._code(((len(self._starts) - 1, 1),))

    def _code(self, terms: tuple[Term, ...]) -> int:
        if terms not in self._codes:
            if len(self._sums) == _MOST:
                self.refuse()
            self._codes[terms] = (2 * len(self._sums) + 1) * FIRST
            self._sums.append(terms)
        return self._codes[terms]

    def parts(self, offset: int) -> tuple[tuple[Term, ...], int]:
        """Returns the moving parts of an offset, and the fixed rest."""
        if offset < FIRST - _DISTANCE:
            return (), offset
        multiple, rest = divmod(offset, FIRST)
        index, odd = divmod(multiple, 2)
        if not odd or rest >= _DISTANCE or index >= len(self._sums):
            self.refuse()
        return self._sums[index], rest

    def refuse(self) -> NoReturn:
        """Raise the error that has the function traced again without moving views."""
        for one in self._starts:
            one.node.watch.give_up(one.node)
        raise RuntimeError("a view with a moving start is used outside of its program")

    def formula(self, offset: int) -> tuple[list[Any], list[int], int]:
        """Returns the nodes of the starts in an offset, their strides, and the rest."""
        terms, rest = self.parts(offset)
        nodes = [self._starts[index].node for index, _ in terms]
        return nodes, [stride for _, stride in terms], rest

    def greatest(self, offset: int) -> int:
        """Returns the greatest number of elements that an offset may be."""
        terms, rest = self.parts(offset)
        return rest + sum(self._starts[index].most * stride for index, stride in terms)

    def run(self, func: Any, args: Any) -> Any:
        """Returns the result of an operator if a code is its start; NotImplemented otherwise.

        Codes in other places need the position itself.
        """
        if func is _aten.slice.Tensor and len(args) > 3 and _is_code(args[2]):
            return self._sliced(*args)
        if func is _aten.slice_backward.default and _is_code(args[3]):
            gradient, shape, dim, *position = args
            zeros = gradient.new_zeros(shape)
            self._sliced(zeros, dim, *position).copy_(gradient)
            return zeros
        if func is not _aten.as_strided.default and any(map(_has_code, args)):
            self.refuse()
        return NotImplemented

    def _sliced(
        self, tensor: torch.Tensor, dim: int, start: int, end: int, step: int = 1
    ) -> torch.Tensor:
        stride, size = list(tensor.stride()), list(tensor.shape)
        own, rest = self.parts(tensor.storage_offset())
        added, first = self.parts(start)
        terms = (*own, *((index, factor * stride[dim]) for index, factor in added))
        offset = self._code(terms) + rest + first * stride[dim]
        size[dim] = -((start - end) // step)
        stride[dim] *= step
        return torch.as_strided(tensor, size, stride, offset)

    def plan(self, layout: Layout, view: View) -> tuple[AccessPlan, tuple[Any, ...]]:
        """Returns the plan of a view, and its start along each free axis (see `view_access`)."""
        terms, rest = self.parts(view.offset)
        found = self._along_axes(layout, View(view.size, view.stride, rest), terms)
        if found is not None:
            return found
        offset = rest + sum(self._starts[i].traced * stride for i, stride in terms)
        return gathered(layout, view), (offset,)

    def _along_axes(
        self, layout: Layout, view: View, terms: tuple[Term, ...]
    ) -> tuple[AccessPlan, tuple[Any, ...]] | None:
        """Returns the plan of a view whose starts move it along axes of the plan, if they do."""
        plan, starts = plan_of(layout, view)
        strides = _strides_of(plan)
        moved: list[Any] = list(starts)
        last = list(starts)
        for index, stride in terms:
            most = self._starts[index].most
            reach = View(view.size, view.stride, view.offset + most * stride)
            other, ends = plan_of(layout, reach)
            if other != plan:
                return None
            axes = [a for a, (first, end) in enumerate(zip(starts, ends)) if first != end]
            if most == 0:
                continue
            if len(axes) != 1 or stride % strides[axes[0]]:
                return None
            factor = stride // strides[axes[0]]
            last[axes[0]] += most * factor
            moved[axes[0]] = moved[axes[0]] + self._starts[index].traced * factor
        reach = View(view.size, view.stride, view.offset + self._reach(terms))
        return (plan, tuple(moved)) if plan_of(layout, reach) == (plan, tuple(last)) else None

    def _reach(self, terms: tuple[Term, ...]) -> int:
        return sum(self._starts[index].most * stride for index, stride in terms)


def _strides_of(plan: AccessPlan) -> Ints:
    """Returns the distance of two starts along each free axis of a plan, in elements."""
    own = contiguous_strides(plan.axes_shape) if plan.of_memory else plan.layout.stride
    return tuple(own[axis] for axis in plan.free)


def is_moving(offset: int) -> bool:
    """Returns True for the offset of a view that moves."""
    return offset >= FIRST - _DISTANCE


def _is_code(start: object) -> bool:
    return type(start) is int and FIRST <= start < 2**62


def _has_code(value: object) -> bool:
    return any(map(_is_code, value)) if type(value) in (list, tuple) else _is_code(value)


def whole(number: Array) -> Array:
    """Returns a position, which is an input of a program, as an integer."""
    return lax.convert_element_type(jnp.asarray(number), np.int64)
