"""Python numbers that are inputs of a program: a learning rate that a scheduler changes.

A `TracedFloat` is a `torch.SymFloat`, so PyTorch carries it through its own C++ code into an
operator's `Scalar` arguments, where a rule receives the traced number behind it. Arithmetic on
one is traced. A comparison is answered with the value it has now and watched: the program serves
only calls in which the answer is the same.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from calque.device.runtime.interrupts import settles
from calque.errors import TraceError, unrepeatable
from calque.upstream.jax_internals import convert_element_type
from calque.upstream.python_internals import entered_unseen


class Watch:
    """The comparisons made with traced numbers, for the guards of a program.

    Attributes:
        answers: what asks once more, and what it was answered.
        stepping: the name of the optimizer whose step runs now, to which numbers are lent.
        is_pytorchs: whether that optimizer is PyTorch's own.
    """

    def __init__(self) -> None:
        self.answers: list[tuple[Callable[[], bool], bool]] = []
        self.stepping: str | None = None
        self.is_pytorchs: bool = False

    def holds(self) -> bool:
        """Returns True if every comparison would be answered as it was."""
        return all(ask() == answer for ask, answer in self.answers)


def _constant(value: Any) -> Any:
    """A method that C++ asks where it can bear no exception, not even that of a signal's handler.

    A `c10::IValue` that is being made of a number asks it, and crashes if that raises.
    """

    def method(self: "_Node") -> Any:
        return value

    return settles(entered_unseen(method))


class _Node:
    """PyTorch's C++ side of a traced number, and what it computes with one."""

    def __init__(self, traced: Any, compute: Callable[[], Any], watch: Watch) -> None:
        self.traced = traced
        self.compute = compute
        self.watch = watch

    def wrap_int(self, number: int) -> "_Node":
        return _Node(number, lambda: number, self.watch)

    wrap_float = wrap_int

    def neg(self) -> "_Node":
        return _Node(-self.traced, lambda: -self.compute(), self.watch)

    def pin(self) -> float:
        """The value now; the program serves only calls in which it is the same."""
        value = self.compute()
        self.watch.answers.append((lambda: self.compute() == value, True))
        return value

    has_hint = is_int = is_bool = is_constant = is_nested_int = _constant(False)
    is_float = is_symbolic = _constant(True)
    maybe_as_float = _constant(None)

    def guard_float(self, file: str, line: int) -> float:
        raise turned_into_float(self.watch.stepping)

    def _graph_repr(self) -> str:
        return f"TracedFloat({self.compute()})"

    def str(self) -> str:
        return self._graph_repr()


class _Checked:
    """The answer to a comparison that code checks and does not branch on (`torch._check`).

    `SymFloat.__pow__` checks that its base is not negative. PyTorch's own optimizers take powers of
    step counts; the code of others is not trusted with bases that may be negative.
    """

    is_int = is_float = is_constant = has_hint = _constant(False)
    is_bool = is_symbolic = _constant(True)

    def expect_true(self, file: str, line: int) -> bool:
        return True

    def bool_(self) -> bool:
        return bool(_unknown())

    def guard_bool(self, file: str, line: int) -> bool:
        return bool(_unknown())


class TracedFloat(torch.SymFloat):
    """A float whose value is an input of the program being traced (see the module)."""

    def __init__(self, traced: Array, compute: Callable[[], float], watch: Watch) -> None:
        super().__init__(_Node(traced, compute, watch))

    def __float__(self) -> float:
        return self.node.guard_float("", 0)

    def __bool__(self) -> bool:
        return _ask(self, operator.ne, 0.0)

    def __hash__(self) -> int:
        return id(self.node)

    def __neg__(self) -> Any:
        return _unary(operator.neg, jnp.negative, self)

    def __abs__(self) -> Any:
        return _unary(operator.abs, jnp.abs, self)

    def __repr__(self) -> str:
        return self.node._graph_repr()


def turned_into_float(stepping: str | None) -> TraceError:
    """The error for a number of a param group that code needs as a Python float.

    Args:
        stepping: the name of the optimizer whose step does that; None for the function's own code.
    """
    if stepping is not None:
        return unrepeatable(
            f"{stepping}.step() turns a number of its param groups, or of a tensor, into a Python "
            "float",
            "inside calque.jit, where it is an input of the program and has no value",
            f"Run {stepping} eagerly: leave its step() out of the jitted function, and keep the "
            "loss and its backward() in it.",
        )
    return unrepeatable(
        "a hyper-parameter that is an input of the program is turned into a Python float",
        "inside calque.jit, where it has no value",
        "Pass it as a tensor, or read it outside of the jitted function.",
    )


def _unary(python: Any, traced: Any, x: TracedFloat) -> TracedFloat:
    node = x.node
    return TracedFloat(traced(node.traced), lambda: python(node.compute()), node.watch)


def _operands(x: Any) -> tuple[Any, Callable[[], Any]] | None:
    if isinstance(x, torch.SymFloat):
        return x.node.traced, x.node.compute
    if isinstance(x, int | float):
        return x, lambda: x
    return None


def _binary(python: Any, left: Any, right: Any, watch: Watch) -> Any:
    a, b = _operands(left), _operands(right)
    if a is None or b is None:
        return NotImplemented
    (traced_a, value_a), (traced_b, value_b) = a, b
    traced = jax.numpy.asarray(python(traced_a, traced_b))
    return TracedFloat(traced, lambda: python(value_a(), value_b()), watch)


def _as_float(node: _Node) -> "TracedFloat":
    return TracedFloat(node.traced, node.compute, node.watch)


def _ask(x: TracedFloat, compare: Any, other: Any) -> bool:
    operand = _operands(other)
    if operand is None:
        return NotImplemented
    compute, value = x.node.compute, operand[1]

    def ask() -> bool:
        return bool(compare(compute(), value()))

    answer = ask()
    x.node.watch.answers.append((ask, answer))
    return answer


def _picking(pick: Callable[..., Any], is_better: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Python's `max` or `min`, which picks among traced numbers in the program.

    Without it they compare, and the value of a tensor cannot be compared while it is traced.

    Args:
        pick: the builtin, for all other calls.
        is_better: if its first argument takes the place of its second.
    """

    def of_pair(kept: Any, other: Any) -> Any:
        pair = _operands(kept), _operands(other)
        assert pair[0] is not None and pair[1] is not None
        (a, value_a), (b, value_b) = pair[0], pair[1]
        watch = next(x.node.watch for x in (kept, other) if isinstance(x, torch.SymFloat))
        traced = jnp.where(jnp.asarray(is_better(b, a)), b, a)
        return TracedFloat(traced, lambda: pick(value_a(), value_b()), watch)

    def picked(*values: Any, **options: Any) -> Any:
        is_traced = any(isinstance(value, torch.SymFloat) for value in values)
        if options or len(values) < 2 or not is_traced or None in map(_operands, values):
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
"""What stands for the builtins in the code of PyTorch's optimizers, while it is traced."""


def _unknown() -> float:
    raise unrepeatable(
        "the value of a tensor is read as a Python number and compared",
        "inside calque.jit, where it has none yet",
        "Use torch.where or torch.cond.",
    )


def number_of(array: Array, watch: Watch) -> torch.SymFloat:
    """A 0-d traced array as a number whose value nobody can ask for."""
    wide = convert_element_type(array, np.dtype("float64"), weak_type=True)
    return TracedFloat(wide, _unknown, watch)


def _install() -> None:
    arithmetic = {
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "truediv": operator.truediv,
        "pow": operator.pow,
    }
    for name, function in arithmetic.items():

        def forward(self: Any, other: Any, function: Any = function) -> Any:
            return _binary(function, self, other, self.node.watch)

        def reflected(self: Any, other: Any, function: Any = function) -> Any:
            return _binary(function, other, self, self.node.watch)

        def of_node(self: Any, other: Any, function: Any = function) -> Any:
            return _binary(function, _as_float(self), _as_float(other), self.watch).node

        for spelling in (name, f"float_{name}"):
            setattr(_Node, spelling, of_node)
        setattr(TracedFloat, f"__{name}__", forward)
        setattr(TracedFloat, f"__r{name}__", reflected)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):

        def compare(self: Any, other: Any, function: Any = getattr(operator, name)) -> Any:
            return _ask(self, function, other)

        def compare_node(self: Any, other: Any, name: str = name) -> Any:
            return _Checked() if name == "ge" and self.watch.is_pytorchs else _unknown()

        setattr(_Node, name, compare_node)
        setattr(TracedFloat, f"__{name}__", compare)


_install()
