"""Python numbers that are inputs of a program: a learning rate that a scheduler changes.

A `TracedFloat` is a `torch.SymFloat`, so PyTorch passes it through its C++ code to an operator's
`Scalar` arguments, where a rule receives the traced number. Arithmetic is traced, and can be
repeated in Python in each call. A comparison uses the current value and is guarded: the program is
used only for calls in which the result is the same.

If code needs the number itself (`float()`, text), its value is guarded, too, if it is computed in
Python. Otherwise (a key of a dict, the numbers of an optimizer), the function is traced again with
the plain number, which is then guarded.
"""

import math
import operator
import os
import sys
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from calque.program.number_errors import NumberNeeded, Place, unknown_value
from calque.program.number_nodes import (
    Answered,
    Checked,
    Comparisons,
    NumberNode,
    computed,
    constant_node,
    node_of,
    unary,
)
from calque.upstream.jax_internals import convert_element_type

__all__ = [
    "PICKS",
    "NumberNeeded",
    "Place",
    "TracedFloat",
    "Comparisons",
    "input_number",
    "number_of",
]


_CALQUE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_KERNELS = tuple(os.path.join(_CALQUE, name) + os.sep for name in ("ops", "device"))


def _is_asked_by_kernel() -> bool:
    """Returns True if calque's own kernels call the caller."""
    return sys._getframe(2).f_code.co_filename.startswith(_KERNELS)


class TracedFloat(torch.SymFloat):
    """A float whose value is an input of the program being traced."""

    def __init__(self, node: NumberNode) -> None:
        super().__init__(node)
        node.watch.made(self)

    @property
    def __class__(self) -> Any:  # for `isinstance`
        if _is_asked_by_kernel():
            return TracedFloat  # it has no value
        return self.node.kind

    def __bool__(self) -> bool:
        return bool(_ask("ne", self, 0.0))

    def __neg__(self) -> Any:
        return TracedFloat(unary(operator.neg, jnp.negative, self.node))

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return TracedFloat(unary(operator.abs, jnp.abs, self.node))

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return self

    def __round__(self, digits: Any = None) -> Any:
        if self.node.in_python and (digits is None or type(digits) is int):
            return TracedFloat(self.node.combined(lambda x: round(x, digits), (self.node,)))
        if digits is not None and not (self.node.integral and type(digits) is int and digits >= 0):
            self._give_up()  # the text would contain the value
        return TracedFloat(unary(round, jnp.round, self.node, True))

    def __trunc__(self) -> Any:
        return TracedFloat(unary(math.trunc, jnp.trunc, self.node, True))

    def __floor__(self) -> Any:
        return TracedFloat(unary(math.floor, jnp.floor, self.node, True))

    def __ceil__(self) -> Any:
        return TracedFloat(unary(math.ceil, jnp.ceil, self.node, True))

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        if self.node.in_python:
            self._give_up()  # NumPy's numbers have other types, and may have other digits
        found = np.empty((), object)
        found[()] = self
        return found

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **options: Any) -> Any:
        if not self.node.in_python:
            objects = [one.__array__() if isinstance(one, TracedFloat) else one for one in args]
            return getattr(function, method)(*objects, **options)
        name = _COMPARING.get(function)
        if method != "__call__" or options:
            self._give_up()
        if name is None:
            return self._repeated(function, args)
        watch = self.node.watch
        a, b = (node_of(one, watch) for one in args)
        return self._give_up() if a is None or b is None else watch.ask(name, a, b)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if not self.node.in_python or options:
            self._give_up()
        return self._repeated(function, args)

    def _repeated(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Returns the result of a function of NumPy, for numbers, and lists of plain ones."""
        operands = [_operand(one, self.node.watch) for one in args]
        if not all(operands):
            self._give_up()
        return TracedFloat(self.node.combined(function, tuple(operands)))

    def _give_up(self, *args: Any) -> Any:
        self.node.watch.give_up(self.node)


_COMPARING: dict[Any, str] = {
    np.less: "lt",
    np.less_equal: "le",
    np.greater: "gt",
    np.greater_equal: "ge",
    np.equal: "eq",
    np.not_equal: "ne",
}


def _operand(value: Any, watch: Comparisons) -> Any:
    if type(value) in (list, tuple) and all(type(one) in (int, float) for one in value):
        fixed = tuple(value)
        return constant_node(fixed, watch)
    return node_of(value, watch)


for _name in ("__complex__", "__hash__", "__reduce_ex__"):
    setattr(TracedFloat, _name, TracedFloat._give_up)


def _of_value(name: str) -> Callable[..., Any]:
    """Returns a method that returns a part or form of the current value, without the number itself.

    Args:
        name: the method of integers and floats.
    """

    def method(self: Any, *args: Any) -> Any:
        node = self.node
        if not node.in_python:
            self._give_up()
        value = node.pin()
        found = getattr(type(value), name, None)
        if found is None:
            kind = type(value).__name__
            raise TypeError(f"{kind!r} object cannot be interpreted as an integer")
        return found(value, *args)

    return method


for _name in ("__float__", "__int__", "__index__", "__repr__", "__str__", "__format__"):
    setattr(TracedFloat, _name, _of_value(_name))


class _OfKind:
    """A method or attribute that only some kinds of numbers have, and that needs the value.

    Args:
        name: its name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, number: Any, owner: object = None) -> Any:
        if number is None:
            return self
        if _is_asked_by_kernel() or not hasattr(number.__class__, self._name):
            kind = number.__class__.__name__
            raise AttributeError(f"{kind!r} object has no attribute {self._name!r}")
        if not number.node.in_python:
            number.node.watch.give_up(number.node)
        return getattr(number.node.pin(), self._name)


_KINDS = (int, float, np.int64, np.float64)
for _name in {name for kind in _KINDS for name in dir(kind) if not name.startswith("_")}:
    setattr(TracedFloat, _name, _OfKind(_name))


def _of_whole(self: Any, *args: Any) -> Any:
    """Returns an operator that only integers have."""
    return self._give_up() if self.node.integral else NotImplemented


for _name in ("and", "or", "xor", "lshift", "rshift"):
    setattr(TracedFloat, f"__{_name}__", _of_whole)
    setattr(TracedFloat, f"__r{_name}__", _of_whole)


def _made(kind: type, node: Any) -> Any:
    """Replaces `torch.SymFloat.__new__`, with which PyTorch's C++ creates numbers from nodes.

    So the result of `item()` is a traced float or int too.
    """
    is_traced = kind is torch.SymFloat and isinstance(node, NumberNode)
    return object.__new__(TracedFloat if is_traced else kind)


torch.SymFloat.__new__ = _made  # pyright: ignore[reportAttributeAccessIssue]


def _binary(name: str, left: object, right: object, watch: Comparisons) -> Any:
    a, b = node_of(left, watch), node_of(right, watch)
    if a is None or b is None:
        return NotImplemented
    return TracedFloat(computed(name, a, b, watch))


def _ask(name: str, x: TracedFloat, other: object) -> bool:
    watch = x.node.watch
    operand = node_of(other, watch)
    if operand is None and x.node.in_python and isinstance(other, complex):
        watch.give_up(x.node)
    return NotImplemented if operand is None else watch.ask(name, x.node, operand)


def _picking(pick: Callable[..., Any], is_better: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Replaces Python's `max` or `min` for traced numbers.

    The builtins compare their arguments, but a tensor's value cannot be compared in a trace.

    Args:
        pick: the builtin, for all other calls.
        is_better: returns True if its first argument replaces its second.
    """

    def of_pair(kept: Any, other: Any) -> Any:
        watch = next(x.node.watch for x in (kept, other) if isinstance(x, torch.SymFloat))
        a, b = node_of(kept, watch), node_of(other, watch)
        assert a is not None and b is not None
        traced = jnp.where(jnp.asarray(is_better(b.traced, a.traced)), b.traced, a.traced)
        compute_a, compute_b = a.compute, b.compute
        node = NumberNode(
            traced,
            lambda: pick(compute_a(), compute_b()),
            watch,
            a.places | b.places,
            a.integral and b.integral,
            a.known and b.known,
        )
        return TracedFloat(node)

    def picked(*values: Any, **options: Any) -> Any:
        is_traced = any(isinstance(value, torch.SymFloat) for value in values)
        if options or len(values) < 2 or not is_traced:
            return pick(*values, **options)
        if not all(isinstance(value, torch.SymFloat | int | float) for value in values):
            return pick(*values, **options)
        found = values[0]
        for value in values[1:]:
            pair = isinstance(found, torch.SymFloat) or isinstance(value, torch.SymFloat)
            found = of_pair(found, value) if pair else pick(found, value)
        return found

    return picked


PICKS: dict[str, Callable[..., Any]] = {
    "max": _picking(max, operator.gt),
    "min": _picking(min, operator.lt),
}
"""Replacements of the builtins in the code of PyTorch's optimizers while it is traced."""


def number_of(array: Array, watch: Comparisons, place: Place | None = None) -> torch.SymFloat:
    """Returns a 0-d traced array as a number whose value cannot be read.

    Args:
        place: the number's origin, which is guarded if code needs the value; None to refuse that.
    """
    integral = np.dtype(array.dtype).kind in "iu"
    dtype = "int64" if integral and array.dtype != np.uint64 else "float64"
    wide = convert_element_type(array, np.dtype(dtype), weak_type=True)
    places = frozenset() if place is None else frozenset((place,))
    node = NumberNode(wide, unknown_value, watch, places, integral, known=False)
    watch.has_read = True
    return TracedFloat(node)


def input_number(
    traced: Array, compute: Callable[[], Any], watch: Comparisons, place: Place, integral: bool
) -> TracedFloat:
    """Returns a number that is an input of the program.

    Args:
        traced: the input.
        compute: returns its current value.
        watch: the trace's `Comparisons`.
        place: its origin.
        integral: whether it is an integer.
    """
    node = NumberNode(traced, compute, watch, frozenset((place,)), integral)
    if integral:
        watch.require_exact(node)
    return TracedFloat(node)


_ARITHMETIC = ("add", "sub", "mul", "truediv", "pow", "floordiv", "mod")


def _install() -> None:
    for name in _ARITHMETIC:

        def forward(self: Any, other: Any, name: str = name) -> Any:
            return _binary(name, self, other, self.node.watch)

        def reflected(self: Any, other: Any, name: str = name) -> Any:
            return _binary(name, other, self, self.node.watch)

        def of_node(self: Any, other: Any, name: str = name) -> Any:
            return computed(name, self, other, self.watch)

        for spelling in (name, f"float_{name}"):
            setattr(NumberNode, spelling, of_node)
        setattr(TracedFloat, f"__{name}__", forward)
        setattr(TracedFloat, f"__r{name}__", reflected)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):

        def compare(self: Any, other: Any, name: str = name) -> Any:
            return _ask(name, self, other)

        def compare_node(self: Any, other: Any, name: str = name) -> Any:
            if name == "ge" and self.watch.is_pytorchs:
                return Checked()
            if self.in_python and self.known:
                return Answered(self.watch.ask(name, self, other))
            for node in (self, other):
                if node.places:
                    self.watch.give_up(node)
            return unknown_value()

        setattr(NumberNode, name, compare_node)
        setattr(TracedFloat, f"__{name}__", compare)


_install()
