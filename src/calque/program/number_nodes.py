"""The nodes of traced numbers: the value in the program, and its computation in Python.

See `calque.program.traced_numbers`.
"""

import itertools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from calque.errors.handlers import settles
from calque.program.number_comparisons import Comparisons
from calque.program.number_errors import Place, unknown_value
from calque.state.numbers import NUMBERS
from calque.upstream.jax_internals import convert_element_type
from calque.upstream.python_internals import entered_unseen

_serial = itertools.count()
_MOST = 2**53
"""The greatest whole number that float64 represents exactly in a program."""


def _constant(value: object) -> Any:
    """Returns a method for C++ code that cannot handle exceptions, including those of signal
    handlers.

    Converting a number to a `c10::IValue` calls it, and crashes if it raises.
    """

    def method(self: "NumberNode") -> Any:
        return value

    return settles(entered_unseen(method))


class NumberNode:
    """The interface to PyTorch's C++ for a traced number, and its arithmetic.

    Attributes:
        traced: the number in the program.
        compute: computes it in Python.
        watch: the trace's `Comparisons`.
        places: the origins of the numbers that it was computed from; empty for a constant or the
            value of a tensor.
        integral: whether it is a Python integer.
        known: whether it has a value during the trace.
        is_number: whether it is a constant.
        in_python: whether it is computed in Python only (see `python_numbers`).
    """

    in_python = False

    def __init__(
        self,
        traced: Any,
        compute: Callable[[], Any],
        watch: Comparisons,
        places: frozenset[Place] = frozenset(),
        integral: bool = False,
        known: bool = True,
        constant: bool = False,
    ) -> None:
        self.traced = traced
        self.compute = compute
        self.watch = watch
        self.places = places
        self.integral = integral
        self.known = known
        self.key: Any = (type(traced), repr(traced)) if constant else next(_serial)
        self.is_number = constant
        if not known and places:  # C++ may wrap it in a number of its own
            watch.made(self)

    @property
    def kind(self) -> type:
        """The class of the number."""
        return int if self.integral else float

    @property
    def is_exact(self) -> bool:
        """Returns True if the program represents an integer exactly."""
        return self.known or self.traced.dtype == np.int64

    def wrap_int(self, number: int) -> "NumberNode":
        return constant_node(number, self.watch)

    wrap_float = wrap_int

    def combined(self, python: Callable[..., Any], operands: "tuple[NumberNode, ...]") -> Any:
        """Returns the result of a function of numbers, one of which is computed in Python."""
        raise NotImplementedError

    def neg(self) -> "NumberNode":
        return unary(operator.neg, jnp.negative, self)

    def pin(self) -> int | float:
        """Returns the current value, and guards that it is the same in each call.

        Raises:
            NumberNeeded: it cannot be computed now.
        """
        if not self.known:
            self.watch.give_up(self)
        compute = self.compute
        value = compute()
        exact = repr(value)  # distinguishes -0.0 from 0.0, and treats nan as equal to nan
        self.watch.pin(lambda: repr(compute()) == exact)
        return value

    has_hint: Any
    has_hint = is_int = is_bool = is_constant = is_nested_int = _constant(False)
    is_float: Any
    is_float = is_symbolic = _constant(True)
    maybe_as_float: Any = _constant(None)

    def guard_float(self, file: str, line: int) -> float:
        self.watch.give_up(self)

    def _graph_repr(self) -> str:
        return f"TracedFloat({self.compute()})"

    def str(self) -> str:
        return self._graph_repr()


def constant_node(value: Any, watch: Comparisons) -> NumberNode:
    """Returns the node of a constant."""
    return NumberNode(value, lambda: value, watch, integral=isinstance(value, int), constant=True)


class Checked:
    """The result of a comparison that code checks but does not branch on (`torch._check`).

    `SymFloat.__pow__` checks that its base is not negative. PyTorch's own optimizers take powers of
    nonnegative numbers; for other optimizers, the check is a guard.
    """

    is_int: Any
    is_int = is_float = is_constant = has_hint = _constant(False)
    is_bool: Any
    is_bool = is_symbolic = _constant(True)

    def expect_true(self, file: str, line: int) -> bool:
        return True

    def bool_(self) -> bool:
        return bool(unknown_value())

    def guard_bool(self, file: str, line: int) -> bool:
        return bool(unknown_value())


class Answered:
    """The result of a comparison in PyTorch's C++ (`alpha == 1`), which is guarded."""

    is_int: Any
    is_int = is_float = is_constant = has_hint = _constant(False)
    is_bool: Any
    is_bool = is_symbolic = _constant(True)

    def __init__(self, answer: bool) -> None:
        self._answer = answer

    def bool_(self) -> bool:
        return self._answer

    def guard_bool(self, file: str, line: int) -> bool:
        return self._answer

    def expect_true(self, file: str, line: int) -> bool:
        return self._answer


def unary(python: Any, traced: Any, x: NumberNode, integral: bool | None = None) -> NumberNode:
    """Returns a function of one traced number.

    Args:
        python, traced: the function for Python numbers, and for traced ones.
        x: the number.
        integral: whether it returns integers; None if it does for integers.
    """
    if x.in_python:
        return x.combined(python, (x,))

    def make() -> NumberNode:
        compute_x = x.compute
        whole = x.integral if integral is None else integral

        def compute() -> Any:
            return python(compute_x())

        if not integral:
            made = traced(x.traced if whole else wide(x.traced))
        elif x.integral:  # already rounded
            made = x.traced
        else:
            made = _rounded(x.watch, x.known, compute, python.__name__, lambda: traced(x.traced))
        node = NumberNode(made, compute, x.watch, x.places, whole, x.known)
        if node.known and integral is not None:
            x.watch.require_exact(node)
        return node

    return x.watch.node((python, x.key), make)


def _rounded(
    watch: Comparisons,
    known: bool,
    compute: Callable[[], Any],
    name: str,
    traced: Callable[[], Any],
) -> Any:
    """Returns the result of rounding in the program.

    Results in Python and in the program may differ in the last digit, and so by one after rounding.
    """
    return watch.new_input(compute, name) if known else jax.numpy.asarray(traced())


def node_of(x: Any, watch: Comparisons) -> NumberNode | None:
    """Returns the node of a number; None for other values."""
    if isinstance(x, torch.SymFloat):
        return x.node
    if isinstance(x, int | float) or type(x) in NUMBERS:
        return constant_node(x, watch)
    return None


def computed(
    name: str, a: NumberNode, b: NumberNode, watch: Comparisons, integral: bool | None = None
) -> NumberNode:
    """Returns the result of an operation on two numbers, one of which is traced.

    Args:
        name: the name of the operation in `operator`.
        a, b: the numbers.
        watch: of the trace.
        integral: whether it returns an integer; None if it does for two integers.
    """
    python = getattr(operator, name)
    places = a.places | b.places
    known = a.known and b.known
    if known and (a.in_python or b.in_python):
        return (a if a.in_python else b).combined(python, (a, b))
    if name in _DIVIDING and b.known:
        watch.ask("ne", b, constant_node(0, watch))
    if name == "pow" and known and not _is_power(a, b, watch):
        watch.give_up(NumberNode(None, a.compute, watch, places))

    def make() -> NumberNode:
        compute_a, compute_b = a.compute, b.compute

        def compute() -> Any:
            return python(compute_a(), compute_b())

        node = NumberNode(None, compute, watch, places, _is_whole(name, a, b, watch), known)
        if node.integral and any(n.is_number and abs(n.traced) > _MOST for n in (a, b)):
            watch.give_up(node)
        if known and (node.integral or name == "pow"):
            watch.require_exact(node)
        if known and type(compute()) not in (int, float):  # raises Python's errors
            watch.give_up(node)
        left, right = a.traced, b.traced
        if not node.integral or name in _GROWING:
            left, right = wide(left), wide(right)
        elif not known and name in _DIVIDING and not (a.is_exact and b.is_exact):
            watch.give_up(node)
        if name in _ROUNDING and not node.integral:
            node.traced = _rounded(watch, known, compute, name, lambda: python(left, right))
        else:
            node.traced = jax.numpy.asarray(python(left, right))
        node.integral = node.integral if integral is None else integral
        return node

    return watch.node((name, a.key, b.key, integral), make)


def wide(traced: Any) -> Any:
    """Returns a traced number as a float, which can represent products of any size
    approximately.
    """
    if isinstance(traced, int | float) or traced.dtype == np.float64:
        return traced
    return convert_element_type(traced, np.dtype("float64"), weak_type=True)


def _is_whole(name: str, a: NumberNode, b: NumberNode, watch: Comparisons) -> bool:
    """Returns True if an operation returns an integer, and guards that it does in each call."""
    if not (a.integral and b.integral) or name == "truediv":
        return False
    if name != "pow" or not b.known:
        return True
    return b.traced >= 0 if b.is_number else watch.ask("ge", b, constant_node(0, watch))


def _is_power(a: NumberNode, b: NumberNode, watch: Comparisons) -> bool:
    """Returns True if a power is a real number, and guards that it is in each call."""
    zero = constant_node(0, watch)
    if b.is_number and b.integral and b.traced >= 0:
        return True
    return watch.ask("gt", a, zero) or (b.integral and watch.ask("ge", b, zero))


_DIVIDING = frozenset(("truediv", "floordiv", "mod"))
_ROUNDING = frozenset(("floordiv", "mod"))
_GROWING = frozenset(("mul", "pow"))
"""Operations on whole numbers whose results soon exceed 64 bits."""
