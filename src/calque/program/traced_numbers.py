"""Python numbers that are inputs of a program: a learning rate that a scheduler changes.

A `TracedFloat` is a `torch.SymFloat`, so PyTorch carries it through its own C++ code into an
operator's `Scalar` arguments, where a rule receives the traced number behind it. Arithmetic on
one is traced, and can be computed in Python again, at each call. A comparison is answered with the
value it has now and watched: the program serves only calls in which the answer is the same.

Whatever needs the number itself (`float()`, text, a key of a dict) gives it up: the function is
traced again, and finds the number as it is there, which is compared from then on.
"""

import itertools
import operator
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from calque.device.runtime.interrupts import settles
from calque.errors import TraceError, unrepeatable
from calque.upstream.jax_internals import convert_element_type
from calque.upstream.python_internals import entered_unseen

_serial = itertools.count()

Place = tuple[int, str]
"""Where a number is from: the id of a dict, and the key."""


class NotLent(BaseException):
    """Numbers have to be what they are: the function is traced again without lending them.

    Attributes:
        places: which.
    """

    def __init__(self, places: "frozenset[Place] | set[Place]") -> None:
        super().__init__()
        self.places: frozenset[Place] = frozenset(places)


class Watch:
    """The comparisons made with traced numbers, for the guards of a program.

    Attributes:
        answers: what asks once more, and what it was answered.
        stepping: the name of the optimizer whose step runs now, to which numbers are lent.
        is_pytorchs: whether that optimizer is PyTorch's own.
        given_up: where the numbers are from that were given up.
    """

    def __init__(self) -> None:
        self.answers: list[tuple[Callable[[], bool], bool]] = []
        self.stepping: str | None = None
        self.is_pytorchs: bool = False
        self.given_up: set[Place] = set()
        self._nodes: dict[Any, _Node] = {}
        self._answered: dict[Any, bool] = {}
        self._made: list[weakref.ref[Any]] = []

    def holds(self) -> bool:
        """Returns True if every comparison would be answered as it was."""
        return all(ask() == answer for ask, answer in self.answers)

    def made(self, number: "TracedFloat | _Node") -> None:
        """A number was made."""
        self._made.append(weakref.ref(number))

    def alive(self) -> "list[_Node]":
        """Returns what is behind the numbers that somebody holds."""
        self._nodes.clear()
        found = [number for ref in self._made if (number := ref()) is not None]
        return [one.node if isinstance(one, torch.SymFloat) else one for one in found]

    def give_up(self, node: "_Node") -> NoReturn:
        """Code needs a number itself.

        Raises:
            NotLent: it is one of Python's.
            TraceError: it is the value of a tensor.
        """
        if not node.places:
            raise turned_into_float(self.stepping)
        self.given_up |= node.places
        raise NotLent(node.places)

    def ask(self, name: str, a: "_Node", b: "_Node") -> bool:
        """Answer a comparison, and watch it."""
        for node in (a, b):
            if not node.known and node.places:
                self.give_up(node)
        key = name, a.key, b.key
        known = self._answered.get(key)
        if known is not None:
            return known
        compare, compute_a, compute_b = getattr(operator, name), a.compute, b.compute

        def ask() -> bool:
            return bool(compare(compute_a(), compute_b()))

        answer = self._answered[key] = ask()
        self.answers.append((ask, answer))
        return answer

    def node(self, key: Any, make: "Callable[[], _Node]") -> "_Node":
        """What an operation gives, which is computed once."""
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = make()
        return found

    def forget(self) -> None:
        """Hold nothing of the trace any more but the answers."""
        self._nodes.clear()
        self._answered.clear()
        self._made.clear()


def _constant(value: Any) -> Any:
    """A method that C++ asks where it can bear no exception, not even that of a signal's handler.

    A `c10::IValue` that is being made of a number asks it, and crashes if that raises.
    """

    def method(self: "_Node") -> Any:
        return value

    return settles(entered_unseen(method))


class _Node:
    """PyTorch's C++ side of a traced number, and what it computes with one.

    Attributes:
        traced: the number in the program.
        compute: gives it in Python.
        watch: of the trace.
        places: where the numbers are from that it was computed from; none if it is a constant, or
            the value of a tensor.
        integral: whether it is a whole number of Python's.
        known: whether it has a value while it is traced.
        is_number: whether it is a constant.
    """

    def __init__(
        self,
        traced: Any,
        compute: Callable[[], Any],
        watch: Watch,
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
        if not known and places:  # C++ may put a number of its own around it
            watch.made(self)

    def wrap_int(self, number: int) -> "_Node":
        return _number(number, self.watch)

    wrap_float = wrap_int

    def neg(self) -> "_Node":
        return unary(operator.neg, jnp.negative, self)

    def pin(self) -> float:
        """The value now; the program serves only calls in which it is the same."""
        compute = self.compute
        value = compute()
        self.watch.answers.append((lambda: compute() == value, True))
        return value

    has_hint = is_int = is_bool = is_constant = is_nested_int = _constant(False)
    is_float = is_symbolic = _constant(True)
    maybe_as_float = _constant(None)

    def guard_float(self, file: str, line: int) -> float:
        self.watch.give_up(self)

    def _graph_repr(self) -> str:
        return f"TracedFloat({self.compute()})"

    def str(self) -> str:
        return self._graph_repr()


def _number(value: Any, watch: Watch) -> _Node:
    return _Node(value, lambda: value, watch, integral=isinstance(value, int), constant=True)


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

    def __init__(self, node: _Node) -> None:
        super().__init__(node)
        node.watch.made(self)

    @property
    def __class__(self) -> Any:  # what `isinstance` asks
        return int if self.node.integral else float

    def __bool__(self) -> bool:
        return _ask("ne", self, 0.0)

    def __neg__(self) -> Any:
        return TracedFloat(unary(operator.neg, jnp.negative, self.node))

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return TracedFloat(unary(operator.abs, jnp.abs, self.node))

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def _give_up(self, *args: Any) -> Any:
        self.node.watch.give_up(self.node)

    __float__ = __int__ = __index__ = __complex__ = __trunc__ = __round__ = _give_up
    __floor__ = __ceil__ = __divmod__ = __rdivmod__ = _give_up
    __hash__ = __repr__ = __str__ = __format__ = __reduce_ex__ = _give_up


def turned_into_float(stepping: str | None) -> TraceError:
    """The error for the value of a tensor that code needs as a Python float.

    Args:
        stepping: the name of the optimizer whose step does that; None for the function's own code.
    """
    if stepping is not None:
        return unrepeatable(
            f"{stepping}.step() turns a number that it has read from a tensor into a Python float",
            "inside calque.jit, where it has no value",
            f"Run {stepping} eagerly: leave its step() out of the jitted function, and keep the "
            "loss and its backward() in it.",
        )
    return unrepeatable(
        "a number that was read from a tensor is turned into a Python float",
        "inside calque.jit, where it has no value",
        "Compute with the tensor, or read it outside of the jitted function.",
    )


def unary(python: Any, traced: Any, x: _Node, integral: bool | None = None) -> _Node:
    """A function of one traced number.

    Args:
        python, traced: the function, for Python's numbers and for traced ones.
        x: the number.
        integral: whether it gives whole numbers; None if it does where it is given one.
    """

    def make() -> _Node:
        compute = x.compute
        whole = x.integral if integral is None else integral
        made = traced(x.traced)
        return _Node(made, lambda: python(compute()), x.watch, x.places, whole, x.known)

    return x.watch.node((python, x.key), make)


def node_of(x: Any, watch: Watch) -> _Node | None:
    """What is behind a number; None if something is none."""
    if isinstance(x, torch.SymFloat):
        return x.node
    if isinstance(x, int | float):
        return _number(x, watch)
    return None


def computed(name: str, a: _Node, b: _Node, watch: Watch, integral: bool | None = None) -> _Node:
    """An operation on two numbers, one of which is traced.

    Args:
        name: of the operation, in `operator`.
        a, b: the numbers.
        watch: of the trace.
        integral: whether it gives a whole number; None if it does where it is given two.
    """
    python = getattr(operator, name)
    places = a.places | b.places
    known = a.known and b.known
    if name in _DIVIDING and b.known:
        watch.ask("ne", b, _number(0, watch))
    if name == "pow" and known and not _is_power(a, b, watch):
        watch.give_up(_Node(None, a.compute, watch, places))

    def make() -> _Node:
        compute_a, compute_b = a.compute, b.compute

        def compute() -> Any:
            return python(compute_a(), compute_b())

        if known and type(compute()) not in (int, float):  # raises what Python raises
            watch.give_up(_Node(None, compute, watch, places))
        traced = jax.numpy.asarray(python(a.traced, b.traced))
        both = a.integral and b.integral and name != "truediv"
        whole = both if integral is None else integral
        return _Node(traced, compute, watch, places, whole, known)

    return watch.node((name, a.key, b.key, integral), make)


def _is_power(a: _Node, b: _Node, watch: Watch) -> bool:
    """Returns True if a power is a real number, as it is then at each call."""
    zero = _number(0, watch)
    if b.is_number and b.integral and b.traced >= 0:
        return True
    return watch.ask("gt", a, zero) or (b.integral and watch.ask("ge", b, zero))


def _binary(name: str, left: Any, right: Any, watch: Watch) -> Any:
    a, b = node_of(left, watch), node_of(right, watch)
    if a is None or b is None:
        return NotImplemented
    return TracedFloat(computed(name, a, b, watch))


def _ask(name: str, x: TracedFloat, other: Any) -> bool:
    watch = x.node.watch
    operand = node_of(other, watch)
    return NotImplemented if operand is None else watch.ask(name, x.node, operand)


def _picking(pick: Callable[..., Any], is_better: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Python's `max` or `min`, which picks among traced numbers in the program.

    Without it they compare, and the value of a tensor cannot be compared while it is traced.

    Args:
        pick: the builtin, for all other calls.
        is_better: if its first argument takes the place of its second.
    """

    def of_pair(kept: Any, other: Any) -> Any:
        watch = next(x.node.watch for x in (kept, other) if isinstance(x, torch.SymFloat))
        a, b = node_of(kept, watch), node_of(other, watch)
        assert a is not None and b is not None
        traced = jnp.where(jnp.asarray(is_better(b.traced, a.traced)), b.traced, a.traced)
        compute_a, compute_b = a.compute, b.compute
        node = _Node(
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
"""What stands for the builtins in the code of PyTorch's optimizers, while it is traced."""


def _unknown() -> float:
    raise unrepeatable(
        "the value of a tensor is read as a Python number and compared",
        "inside calque.jit, where it has none yet",
        "Use torch.where or torch.cond.",
    )


def number_of(array: Array, watch: Watch, place: Place | None = None) -> torch.SymFloat:
    """A 0-d traced array as a number whose value nobody can ask for.

    Args:
        place: what is given up where code needs the value; None if that is refused.
    """
    wide = convert_element_type(array, np.dtype("float64"), weak_type=True)
    places = frozenset() if place is None else frozenset((place,))
    return TracedFloat(_Node(wide, _unknown, watch, places, known=False))


def input_number(
    traced: Array, compute: Callable[[], Any], watch: Watch, place: Place, integral: bool
) -> TracedFloat:
    """A number that is an input of the program.

    Args:
        traced: the input.
        compute: gives its value, as it is now.
        watch: of the trace.
        place: where it is from.
        integral: whether it is a whole number.
    """
    return TracedFloat(_Node(traced, compute, watch, frozenset((place,)), integral))


_DIVIDING = frozenset(("truediv", "floordiv", "mod"))
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
            setattr(_Node, spelling, of_node)
        setattr(TracedFloat, f"__{name}__", forward)
        setattr(TracedFloat, f"__r{name}__", reflected)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):

        def compare(self: Any, other: Any, name: str = name) -> Any:
            return _ask(name, self, other)

        def compare_node(self: Any, other: Any, name: str = name) -> Any:
            if name == "ge" and self.watch.is_pytorchs:
                return _Checked()
            for node in (self, other):
                if node.places:
                    self.watch.give_up(node)
            return _unknown()

        setattr(_Node, name, compare_node)
        setattr(TracedFloat, f"__{name}__", compare)


_install()
