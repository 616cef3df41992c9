"""Checks that a graph makes when it runs: the facts that its trace took for granted.

Each of these is a node of the graph, so that it survives copies, transforms and serialization.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from calque.tracing.core.active import current_trace
from calque.tracing.core.errors import SymbolicTraceError
from calque.upstream import torch_c
from calque.upstream.torch_internals import assert_async, disable_current_modes

F = TypeVar("F", bound=Callable[..., Any])


def recorded(function: F) -> F:
    """`function`, which stays a node when its graph is traced again, by whatever tracer."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        proxy = _proxy_in(args)
        if proxy is not None:
            return proxy.tracer.create_proxy("call_function", call, args, {})
        trace: Any = current_trace() if function.__name__ in _REPEATED else None
        if hasattr(trace, "repeat"):
            return trace.repeat(call, function, args)
        if getattr(getattr(trace, "tracer", None), "contexts", None) is not None:
            return trace.tracer.create_proxy("call_function", call, args, {})
        return function(*args)

    return call  # pyright: ignore[reportReturnType]


def _proxy_in(args: Any) -> Any:
    """A proxy among the arguments, or in lists and tuples among them."""
    for arg in args:
        if isinstance(arg, torch.fx.Proxy):
            return arg
        if type(arg) in (list, tuple):
            found = _proxy_in(arg)
            if found is not None:
                return found
    return None


# What a recording of a graph's run would not see otherwise.
_REPEATED = frozenset(
    (
        *("fresh", "manual_seed", "make_generator", "of_generator"),
        *("random_state", "set_random_state"),
        *("assign", "expect_given", "expect_distinct"),
    )
)


@recorded
def expect_value(value: Any, expected: Any, name: str) -> None:
    """The input `name` has the value that the program was traced with.

    Raises:
        TraceError: it has another.
    """
    alike = type(value) is type(expected) or isinstance(value, torch.Size)  # to torch.fx a tuple
    same = value is expected or (alike and value == expected)
    if not same:
        found = f"a {type(value).__name__}" if isinstance(value, torch.Tensor) else repr(value)
        if expected is ...:  # the default, which has tensors in it
            raise SymbolicTraceError(
                f"traced without {name}, called with {found}.\nTrace again with an example of it."
            )
        raise SymbolicTraceError(
            f"traced with {name}={expected!r}, called with {name}={found}.\n"
            "Trace again with the new value; a graph follows one value of what is no tensor."
        )


LOOKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda tensor: tuple(tensor.shape),
    "ndim": lambda tensor: tensor.ndim,
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: tensor.device.type,
    "stride": lambda tensor: tuple(tensor.stride()),
    "storage_offset": lambda tensor: tensor.storage_offset(),
    "requires_grad": lambda tensor: tensor.requires_grad,
    "is_leaf": lambda tensor: tensor.is_leaf,
}
"""The questions about a tensor that do not need its values."""


@recorded
def expect_tensor(value: Any, name: str, looks: dict[str, Any]) -> None:
    """The tensor `name` looks as it did to a trace that decided something by it.

    Args:
        looks: for some rows of `LOOKS`, what it was then.

    Raises:
        TraceError: it differs.
    """
    _expect_a_tensor(value, name)
    for what, expected in looks.items():
        found = LOOKS[what](value)
        if found != (tuple(expected) if isinstance(expected, list) else expected):
            raise SymbolicTraceError(
                f"traced with {name}.{what} = {expected}, called with {found}; the program has "
                f"read it.\nTrace again with an example of that {what}."
            )


def _expect_a_tensor(value: Any, name: str, where: str = "") -> None:
    if not isinstance(value, torch.Tensor):
        raise SymbolicTraceError(
            f"{where}traced with a tensor for {name}, called with {value!r}.\n"
            f"Trace again without {name}; a graph follows what the program did with a tensor."
        )


@recorded
def expect_given(value: Any, name: str, kind: str | None, where: str) -> None:
    """The input `name` is a tensor, as it was when the program was recorded.

    Args:
        kind: its class, as `class_name` says it; None where the program did not ask.
        where: the line of the program.

    Raises:
        TraceError: it is none, or one of another class.
    """
    _expect_a_tensor(value, name, f"{where}: ")
    if kind is not None and class_name(value) != kind:
        raise SymbolicTraceError(
            f"{where}: traced with a {kind} for {name}, called with a {class_name(value)}; the "
            "program asks for the class.\nTrace again with an example of that class."
        )


def class_name(value: Any) -> str:
    """The class of a value, with its module; torch.fx has its own lists and dictionaries.

    >>> class_name([]), class_name(torch.fx.immutable_collections.immutable_list([]))
    ('builtins.list', 'builtins.list')
    """
    kind = type(value)
    if kind.__module__ == "torch.fx.immutable_collections":
        kind = list if isinstance(value, list) else dict
    return f"{kind.__module__}.{kind.__qualname__}"


def expect_setting(name: str, args: tuple[Any, ...], answer: Any) -> None:
    """`torch.name(*args)`, which the program has asked, gives what it gave then.

    Raises:
        TraceError: it gives something else.
    """
    trace = current_trace()
    if trace is not None and trace.tracer.keep_setting(name, tuple(args), answer):
        return
    found = getattr(torch, name)(*args)
    if found != answer:
        raise SymbolicTraceError(
            f"traced where torch.{name}() was {answer}, called where it is {found}; the program "
            "has read it.\nTrace again where it is that, or keep one graph for each."
        )


@recorded
def expect_container(value: Any, kind: str, parts: Any, name: str) -> None:
    """A container among the inputs is like the one in the example.

    Args:
        kind: its class, as `class_name` says it.
        parts: of a dictionary its keys, in their order; otherwise how many parts there are, and
            None where its class says that.

    Raises:
        TraceError: it is of another class, has more parts or fewer, or other keys.
    """
    if class_name(value) != kind:
        raise SymbolicTraceError(
            f"traced with a {kind} for {name}, called with a {class_name(value)}.\n"
            "Trace again with an example of that class."
        )
    if isinstance(parts, (list, tuple)) and [*value] != [*parts]:
        raise SymbolicTraceError(
            f"traced with the keys {[*parts]} in {name}, in this order, called with {[*value]}.\n"
            "Trace again with an example of that order, or sort the keys in the program."
        )
    if isinstance(parts, int) and len(value) != parts:
        raise SymbolicTraceError(
            f"traced with {parts} parts in {name}, called with {len(value)}.\n"
            "Trace again with an example of that length."
        )


def parts_of(container: Any) -> Any:
    """Returns the parts of a container that `expect_container` compares."""
    if isinstance(container, dict):
        if all(type(key) in (str, int, float, bool, type(None)) for key in container):
            return [*container]
    return len(container) if isinstance(container, (list, tuple, dict)) else None


@recorded
def expect_distinct(names: str, *values: Any) -> None:
    """Tensors among the inputs are different ones, as they were in the example.

    Raises:
        TraceError: one tensor is given twice, and the program asks with `is` which is which.
    """
    if len({*map(id, values)}) != len(values):
        raise SymbolicTraceError(
            f"traced with different tensors for {names}, called with one for two of them; the "
            "program asks with `is` whether two are one.\nRecord again with that, "
            "calque.record(program, x, x), or give copies."
        )


@recorded
def expect_apart(given: torch.Tensor, *others: torch.Tensor) -> None:
    """An input shares no memory with other inputs, parameters and buffers, of which one is written.

    Raises:
        TraceError: it does, so that one would change where the other is read.
    """
    if any(other is given or torch_c.is_alias_of(other, given) for other in others):
        raise SymbolicTraceError(
            "lowered with inputs apart in memory from each other, parameters and buffers, called "
            "with two that share it; the graph writes to one of them.\n"
            "Give copies, or use the graph that was lowered."
        )


def expect_mode(training: bool, traced: bool, path: str) -> None:
    """A module whose code reads `self.training` is in the mode it was traced in.

    Where a graph with this check is traced again, the new graph gets the check, with the mode of
    the first trace: what was decided by it is in the code.

    Raises:
        TraceError: `train()` or `eval()` was called since.
    """
    trace = current_trace()
    if trace is not None and trace.tracer.keep_mode(path, traced):
        return
    if training != traced:
        mode, other = ("training", "evaluation") if traced else ("evaluation", "training")
        raise SymbolicTraceError(
            f"{path or 'the module'} was traced in {mode} mode and reads self.training.\n"
            f"Trace it again in {other} mode, or keep one graph for each."
        )


@recorded
def unpack(value: Any, length: int) -> tuple[Any, ...]:
    """The `length` parts of a value that the program unpacked into that many names.

    Raises:
        ValueError: it has another number of parts, as Python's own unpacking says.
    """
    parts = tuple(value)
    if len(parts) != length:
        few = "not enough values" if len(parts) < length else "too many values"
        raise ValueError(f"{few} to unpack (expected {length}, got {len(parts)})")
    return parts


@recorded
def in_place(name: str, left: Any, right: Any) -> Any:
    """`left += right` and the like, where it is not known whether `left` is changed by it.

    Args:
        name: the name of the function in `operator`, such as `"iadd"`.
    """
    return getattr(operator, name)(left, right)


@recorded
def manual_seed(seed: Any) -> Any:
    """`torch.manual_seed`, which PyTorch replaces when a compiler is loaded."""
    return torch.manual_seed(seed)


@recorded
def random_state(*device: Any) -> torch.Tensor:
    """`torch.get_rng_state`, or that of a device: its kind, and its index."""
    with disable_current_modes():  # it fills what it makes behind their back
        if device:
            return torch.get_device_module(device[0]).get_rng_state(device[1])
        return torch.random.get_rng_state()


@recorded
def set_random_state(state: Any, *device: Any) -> None:
    """`torch.set_rng_state`, or that of a device."""
    if device:
        torch.get_device_module(device[0]).set_rng_state(state, device[1])
    else:
        torch.random.set_rng_state(state)


@recorded
def make_generator(*device: Any) -> torch.Generator:
    """A generator of random numbers that each run of the graph makes."""
    return torch.Generator(*device)


@recorded
def of_generator(method: str, generator: torch.Generator, *args: Any) -> Any:
    """What a method of a generator gives, which sets or reads its state."""
    return getattr(generator, method)(*args)


@recorded
def assign(owner: Any, name: Any, value: Any) -> None:
    """Assign an attribute of a module, or an item of a dictionary, as the program does.

    Args:
        owner: the module, or what has it, or the dictionary, as its `held`.
        name: the attribute, or the key.
    """
    held = getattr(owner, "held", owner)
    if isinstance(held, dict):
        held[name] = value
    else:
        setattr(held, name, value)


@recorded
def given_or(value: Any, default: torch.Tensor) -> Any:
    """Returns the argument for a parameter whose default is a tensor; `...` if there is none."""
    return default if value is ... else value


@recorded
def fresh(constant: torch.Tensor) -> torch.Tensor:
    """A copy for this run, so that nothing written to it is there at the next."""
    return constant.clone()


def assert_later(condition: torch.Tensor, truth: bool, raised: Any) -> None:
    """Like `raise_when`, as an operator, which raises a RuntimeError with the message."""
    fine = condition.reshape(()).bool() != truth
    assert_async(fine, f"{type(raised.error).__name__}: {raised.error}")


@recorded
def raise_when(condition: Any, truth: bool, raised: Any) -> None:
    """Raise what the program raises when it goes this way.

    Args:
        condition: a tensor of one element, or a Python value.
        truth: what the condition is when the program goes this way.
        raised: has the `error`.

    Raises:
        Exception: the error, when the condition says so.
    """
    if torch.compiler.is_dynamo_compiling() and isinstance(condition, torch.Tensor):
        assert_later(condition, truth, raised)
    elif bool(condition) == truth:
        raise raised.error.with_traceback(None)


CHECKS = frozenset(
    (
        *(expect_value, expect_tensor, expect_given, expect_container, expect_mode),
        *(expect_setting, expect_distinct, expect_apart, raise_when),
    )
)
