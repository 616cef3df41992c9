"""Checks, when a graph runs, of what its trace assumed.

Each check is a node of the graph, so that it survives copies, transforms and serialization.
"""

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from calque.state import same_value
from calque.tracing.core.active import current_trace
from calque.tracing.core.errors import SymbolicTraceError
from calque.upstream import torch_c
from calque.upstream.torch_internals import assert_async

F = TypeVar("F", bound=Callable[..., Any])


def recorded(function: F) -> F:
    """A decorator: calls of `function` become nodes again if any tracer traces the graph's code."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:  # passes of torch.fx name the arguments
            args = signature.bind(*args, **kwargs).args
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
    """Returns a proxy among the arguments, or in lists and tuples among them."""
    for arg in args:
        if isinstance(arg, torch.fx.Proxy):
            return arg
        if type(arg) in (list, tuple):
            found = _proxy_in(arg)
            if found is not None:
                return found
    return None


# A recording of a run of the graph would miss these.
_REPEATED = frozenset(
    (
        *("fresh", "manual_seed", "make_generator", "of_generator"),
        *("random_state", "forked_state", "set_random_state"),
        *("assign", "expect_given", "expect_distinct", "expect_separate"),
    )
)


@recorded
def expect_value(value: object, expected: object, name: str) -> None:
    """Checks that the input `name` has the value that the program was traced with.

    Raises:
        TraceError: it has a different value.
    """
    if not _is_expected(value, expected):
        found = f"a {type(value).__name__}" if isinstance(value, torch.Tensor) else repr(value)
        if expected is ...:  # the default contains tensors
            raise SymbolicTraceError(
                f"traced without {name}, called with {found}.\nTrace again with an example of it."
            )
        raise SymbolicTraceError(
            f"traced with {name}={expected!r}, called with {name}={found}.\n"
            "Trace again with the new value: values that are not tensors are fixed in a graph."
        )


def _is_expected(value: Any, expected: Any) -> bool:
    if same_value(value, expected):
        return True
    if hasattr(value, "__array__") and type(value) is type(expected):  # of NumPy or JAX
        found, wanted = np.asarray(value), np.asarray(expected)
        alike = found.dtype == wanted.dtype and found.shape == wanted.shape
        return alike and found.tobytes() == wanted.tobytes()
    if isinstance(value, torch.Size):  # in torch.fx a tuple
        return value == expected
    # Numbers that are equal but not the same, such as 0.0 and -0.0, have been told apart.
    numbers = isinstance(value, bool | int | float | complex)
    return type(value) is type(expected) and not numbers and bool(value == expected)


GRADIENT = "requires_grad where gradients are recorded"
LOOKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda tensor: tuple(tensor.shape),
    "ndim": lambda tensor: tensor.ndim,
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: tensor.device.type,
    "stride": lambda tensor: tuple(tensor.stride()),
    "storage_offset": lambda tensor: tensor.storage_offset(),
    "requires_grad": lambda tensor: tensor.requires_grad,
    "is_leaf": lambda tensor: tensor.is_leaf,
    GRADIENT: lambda tensor: tensor.requires_grad and torch.is_grad_enabled(),
}
"""Reads of a tensor that do not need its values."""


@recorded
def expect_tensor(value: Any, name: str, looks: dict[str, Any]) -> None:
    """Checks that the tensor `name` has the properties that the traced program read.

    Args:
        looks: the expected values, by the keys of `LOOKS`.

    Raises:
        TraceError: a property differs.
    """
    _expect_a_tensor(value, name)
    for what, expected in looks.items():
        found = LOOKS[what](value)
        if found != (tuple(expected) if isinstance(expected, list) else expected):
            raise SymbolicTraceError(
                f"traced with {name}.{what} = {expected}, called with {found}, and the program "
                f"reads it.\nTrace again with a tensor that has this {what}."
            )


def _expect_a_tensor(value: object, name: str, where: str = "") -> None:
    if not isinstance(value, torch.Tensor):
        raise SymbolicTraceError(
            f"{where}traced with a tensor for {name}, called with {value!r}.\n"
            f"Trace again without {name}: the graph is valid only for a tensor."
        )


@recorded
def expect_given(value: object, name: str, kind: str | None, where: str) -> None:
    """Checks that the input `name` is a tensor, as it was when the program was recorded.

    Args:
        kind: the name of its class, from `class_name`; None if the program did not check it.
        where: the line of the program.

    Raises:
        TraceError: it is not a tensor, or a tensor of a different class.
    """
    _expect_a_tensor(value, name, f"{where}: ")
    if kind is not None and class_name(value) != kind:
        raise SymbolicTraceError(
            f"{where}: traced with a {kind} for {name}, called with a {class_name(value)}, and "
            "the program reads the class.\nTrace again with an example of that class."
        )


def class_name(value: object, kind: type | None = None) -> str:
    """Returns the qualified name of a value's class, or of `kind`; torch.fx's own lists and dicts
    count as Python's.

    >>> class_name([]), class_name(torch.fx.immutable_collections.immutable_list([]))
    ('builtins.list', 'builtins.list')
    """
    kind = type(value) if kind is None else kind
    if kind.__module__ == "torch.fx.immutable_collections":
        kind = list if isinstance(value, list) else dict
    return f"{kind.__module__}.{kind.__qualname__}"


@recorded
def expect_leaf(value: Any, kinds: tuple[str, ...], what: str) -> None:
    """Checks that what a leaf function returned is of none of some classes, as the trace answered.

    Raises:
        TraceError: it is of one of them, such as None.
    """
    if not {class_name(value, kind) for kind in type(value).__mro__}.isdisjoint(kinds):
        raise SymbolicTraceError(
            f"{what} is {'None' if value is None else f'a {class_name(value)}'}, and the program "
            "may ask for that; a trace does not call leaf functions, and took it for a tensor.\n"
            'Ask in the leaf function itself, or trace with tracer="record".'
        )


def expect_setting(name: str, args: tuple[Any, ...], answer: object) -> None:
    """Checks that `torch.name(*args)`, which the program called, returns the same value.

    Raises:
        TraceError: it returns a different value.
    """
    trace = current_trace()
    if trace is not None and trace.tracer.keep_setting(name, tuple(args), answer):
        return
    found = getattr(torch, name)(*args)
    if found != answer:
        raise SymbolicTraceError(
            f"torch.{name}() was {answer} when the program was traced and read it, and is "
            f"{found} now.\nTrace again with this setting, or keep one graph for each."
        )


@recorded
def expect_container(value: Any, kind: str, parts: Any, name: str) -> None:
    """Checks that a container among the inputs has the structure of the example.

    Args:
        kind: the name of its class, from `class_name`.
        parts: the keys of a dictionary in order; otherwise the number of parts, or None if the
            class determines it.

    Raises:
        TraceError: it has a different class, number of parts or keys.
    """
    if type(value) is list and name[0] == "*" and name.lstrip("*").isidentifier():
        value = tuple(value) if value or name[1] != "*" else {}  # from `torch.fx.Interpreter`
    if class_name(value) != kind:
        raise SymbolicTraceError(
            f"traced with a {kind} for {name}, called with a {class_name(value)}.\n"
            "Trace again with an example of that class."
        )
    if isinstance(parts, (list, tuple)) and [*value] != [*parts]:
        raise SymbolicTraceError(
            f"traced with the keys {[*parts]} in {name}, in this order, called with {[*value]}.\n"
            "Trace again with an example in that order, or sort the keys in the program."
        )
    if isinstance(parts, int) and len(value) != parts:
        raise SymbolicTraceError(
            f"traced with {parts} parts in {name}, called with {len(value)}.\n"
            "Trace again with an example of that length."
        )


def parts_of(container: object) -> Any:
    """Returns the parts of a container that `expect_container` compares."""
    if isinstance(container, dict):
        if all(type(key) in (str, int, float, bool, type(None)) for key in container):
            return [*container]
    return len(container) if isinstance(container, (list, tuple, dict)) else None


@recorded
def expect_distinct(names: str, *values: Any) -> None:
    """Checks that tensors among the inputs are distinct, as they were in the example.

    Raises:
        TraceError: one tensor is passed twice, and the program compares with `is`.
    """
    if len({*map(id, values)}) != len(values):
        raise SymbolicTraceError(
            f"traced with different tensors for {names}, called with the same tensor for two of "
            "them, and the program compares them with `is`.\nRecord again with the same tensor, "
            "calque.record(program, x, x), or pass copies."
        )


@recorded
def expect_separate(names: str, *containers: Any) -> None:
    """Checks that lists, dictionaries and objects among the inputs are distinct, if the program
    changes one of them.

    Raises:
        TraceError: one is passed twice, so a change would show in two places.
    """
    if len({*map(id, containers)}) != len(containers):
        raise SymbolicTraceError(
            f"traced with different objects for {names}, called with the same one for two of them, "
            "and the program changes one of them.\nPass copies."
        )


@recorded
def expect_apart(given: torch.Tensor, *others: torch.Tensor) -> None:
    """Checks that an input shares no memory with other inputs, parameters and buffers, if the graph
    writes to one of them.

    Raises:
        TraceError: it shares memory, so a write to one input would change the other.
    """
    if any(other is given or torch_c.is_alias_of(other, given) for other in others):
        raise SymbolicTraceError(
            "lowered with inputs that share no memory with each other, parameters or buffers, "
            "called with inputs that do, and the graph writes to one of them.\nPass copies, or "
            "use the graph before lowering."
        )


def expect_mode(training: bool, traced: bool, path: str) -> None:
    """Checks that a module whose code reads `self.training` is in the mode it was traced in.

    If a graph with this check is traced again, the new graph gets the check with the mode of the
    first trace, because the code depends on it.

    Raises:
        TraceError: `train()` or `eval()` has been called since then.
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
    """Unpacks a value into `length` parts, as the program did.

    Raises:
        ValueError: it has a different number of parts; the message is Python's own.
    """
    parts = tuple(value)
    if len(parts) != length:
        few = "not enough values" if len(parts) < length else "too many values"
        raise ValueError(f"{few} to unpack (expected {length}, got {len(parts)})")
    return parts


@recorded
def in_place(name: str, left: object, right: object) -> Any:
    """Computes `left += right` and similar, if it is not known whether `left` is changed in place.

    Args:
        name: the name of the function in `operator`, such as `"iadd"`.
    """
    return getattr(operator, name)(left, right)


@recorded
def assign(owner: object, name: Any, value: Any) -> None:
    """Assign an attribute of a module, or an item of a dictionary, as the program does.

    Args:
        owner: the module, a `GraphOwner` that holds it, or the dictionary.
        name: the attribute, or the key.
    """
    held = getattr(owner, "held", owner)
    if isinstance(held, dict):
        held[name] = value
    else:
        setattr(held, name, value)


@recorded
def given_or(value: object, default: torch.Tensor) -> Any:
    """Returns the argument for a parameter whose default is a tensor; `...` if there is none."""
    return default if value is ... else value


@recorded
def fresh(constant: torch.Tensor) -> torch.Tensor:
    """Returns a copy for this run, so that writes do not persist."""
    return constant.clone()


def assert_later(condition: torch.Tensor, truth: bool, raised: Any) -> None:
    """Like `raise_when`, but as an operator, which raises a RuntimeError with the message."""
    fine = condition.reshape(()).bool() != truth
    assert_async(fine, f"{type(raised.error).__name__}: {raised.error}")


@recorded
def raise_when(condition: object, truth: bool, raised: Any) -> None:
    """Raise the exception that the program raises on this path.

    Args:
        condition: a tensor of one element, or a Python value.
        truth: the truth value of the condition on this path.
        raised: holds the exception, as `error`.

    Raises:
        Exception: `raised.error`, if the condition has this truth value.
    """
    if torch.compiler.is_dynamo_compiling() and isinstance(condition, torch.Tensor):
        assert_later(condition, truth, raised)
    elif bool(condition) == truth:
        raise raised.error.with_traceback(None)


CHECKS = frozenset(
    (
        *(expect_value, expect_tensor, expect_given, expect_container, expect_mode),
        *(expect_leaf, expect_setting, expect_distinct, expect_separate, expect_apart),
        raise_when,
    )
)
