"""Functions that accept traced numbers, and the namespaces where they are patched during a step.

`math.sqrt` converts its argument to a float, which a traced number does not have. So its
replacement, in `math` and in modules that imported it, traces the square root. And `torch.tensor`
turns traced numbers into a traced tensor.
"""

import builtins
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import torch

from calque.program.called_names import only_calls
from calque.program.moving_indexes import MOVING_FUNCTIONS
from calque.program.number_nodes import computed, node_of, unary
from calque.program.traced_arrays import (
    FROM_ARRAYS,
    MAKING_ARRAYS,
    as_tensor_of_array,
    is_traced_array,
    tensor_of_array,
)
from calque.program.traced_numbers import PICKS, TracedFloat
from calque.program.whole_operands import WHOLE_FUNCTIONS
from calque.state.numbers import NUMBERS
from calque.state.stand_ins import AddedBuiltin, Space, StandIn


class _Function(NamedTuple):
    """A function of one number.

    Attributes:
        traced: the function in a program.
        above: the exclusive lower bound of its domain, if any.
        least: the inclusive lower bound of its domain, if any.
        integral: whether it returns integers.
    """

    traced: Callable[[Any], Any]
    above: float | None = None
    least: float | None = None
    integral: bool | None = False


_FUNCTIONS: dict[str, _Function] = {
    "sqrt": _Function(jnp.sqrt, least=0.0),
    "exp": _Function(jnp.exp),
    "expm1": _Function(jnp.expm1),
    "log": _Function(jnp.log, above=0.0),
    "log2": _Function(jnp.log2, above=0.0),
    "log10": _Function(jnp.log10, above=0.0),
    "log1p": _Function(jnp.log1p, above=-1.0),
    "sin": _Function(jnp.sin),
    "cos": _Function(jnp.cos),
    "tan": _Function(jnp.tan),
    "tanh": _Function(jnp.tanh),
    "atan": _Function(jnp.arctan),
    "fabs": _Function(jnp.abs),
    "floor": _Function(jnp.floor, integral=True),
    "ceil": _Function(jnp.ceil, integral=True),
    "trunc": _Function(jnp.trunc, integral=True),
}


def _of_number(name: str, function: _Function) -> Callable[[Any], Any]:
    python = getattr(math, name)

    def of(x: Any) -> Any:
        node = x.node
        if node.in_python:
            return TracedFloat(node.combined(python, (node,)))
        watch = node.watch
        for bound, compare in ((function.above, "gt"), (function.least, "ge")):
            if bound is None or not node.known:
                continue
            limit = node_of(bound, watch)
            assert limit is not None
            if not watch.ask(compare, node, limit):
                watch.give_up(node)  # so that Python's function raises
        return TracedFloat(unary(python, function.traced, node, function.integral))

    return of


def _in_python(python: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of numbers that each call repeats in Python."""

    def of(*numbers: Any, **options: Any) -> Any:
        first = next(x.node for x in numbers if _is_of_python(x))
        nodes = [node_of(x, first.watch) for x in numbers]
        if options or not all(node is not None and node.known for node in nodes):
            return python(*numbers, **options)
        computes = [node.compute for node in nodes if node]
        try:
            found = python(*[compute() for compute in computes])
        except (ArithmeticError, ValueError):
            return python(*numbers)
        if type(found) is bool:
            first.watch.answers.append((lambda: python(*[one() for one in computes]), found))
            return found
        if type(found) not in NUMBERS:
            return python(*numbers)
        return TracedFloat(first.combined(python, tuple(node for node in nodes if node)))

    return of


def _logarithm(x: Any, base: Any) -> Any:
    if any(_is_of_python(one) for one in (x, base)):
        return _in_python(math.log)(x, base)
    log = _STAND_INS["log"]
    return log(x) / log(base)


def _question(question: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: x.node.watch.ask_of(question, x.node)


def _power(base: Any, exponent: Any) -> Any:
    watch = next(x.node.watch for x in (base, exponent) if isinstance(x, torch.SymFloat))
    a, b = node_of(base, watch), node_of(exponent, watch)
    if a is None or b is None:
        return math.pow(base, exponent)
    if a.known and b.known and (a.in_python or b.in_python):
        return TracedFloat((a if a.in_python else b).combined(math.pow, (a, b)))
    power = computed("pow", a, b, watch, integral=False)
    return TracedFloat(unary(float, lambda x: x, power, False))


def _result_type(*operands: Any) -> torch.dtype:
    for node in (one.node for one in operands if isinstance(one, torch.SymFloat)):
        if node.integral:  # PyTorch's C++ takes it for a float
            node.watch.give_up(node)
    return _RESULT_TYPE.original(*operands)


def _takes_one(args: tuple[Any, ...]) -> bool:
    return len(args) == 1 and isinstance(args[0], torch.SymFloat)


def _takes_some(args: tuple[Any, ...]) -> bool:
    return any(map(_is_of_python, args))


def _takes_two(args: tuple[Any, ...]) -> bool:
    return len(args) == 2 and any(isinstance(x, torch.SymFloat) for x in args)


def _takes_data(args: tuple[Any, ...]) -> bool:
    if args and is_traced_array(args[0]):
        return True
    return len(args) == 1 and any(isinstance(x, torch.SymFloat) for x in _numbers_in(args[0]))


def _takes_unknown(args: tuple[Any, ...]) -> bool:
    """Returns True if a number has no value yet, so that a comparison could not be decided."""
    return any(isinstance(x, torch.SymFloat) and not x.node.known for x in args)


def _numbers_in(data: Any) -> Iterator[Any]:
    if type(data) in (list, tuple):
        for part in data:
            yield from _numbers_in(part)
    else:
        yield data


def _tensor(
    _original: Callable[..., Any],
    _of_array: Callable[..., Any],
    data: Any,
    *rest: Any,
    **options: Any,
) -> torch.Tensor:
    """Computes `torch.tensor` of numbers, some of them traced, and functions like it."""
    if is_traced_array(data):
        return _of_array(data, *rest, **options)
    device, dtype = options.get("device"), options.get("dtype")
    numbers = list(_numbers_in(data))
    traced = [x.node for x in numbers if isinstance(x, torch.SymFloat)]
    is_plain = all(isinstance(x, torch.SymFloat) or type(x) in (int, float) for x in numbers)
    is_float = (
        all(node.kind is float for node in traced) if dtype is None else dtype.is_floating_point
    )
    whole = all(type(x) is int or (_is_of_python(x) and x.node.kind is int) for x in numbers)
    is_whole = whole and dtype in (None, torch.int64)
    on_device = device is not None and torch.device(device).type == "jax"
    if not (on_device and is_plain and (is_float or is_whole)) or options.keys() - _MADE_WITH:
        return _original(data, **options)
    own = torch.int64 if is_whole else torch.get_default_dtype()
    return _made(data, {"device": device, "dtype": dtype or own})


def _is_of_python(number: Any) -> bool:
    return isinstance(number, torch.SymFloat) and number.node.in_python


def _made(data: Any, options: dict[str, Any]) -> torch.Tensor:
    if type(data) not in (list, tuple):
        zero = torch.zeros((), **options)
        return zero.add_(data) if zero.is_floating_point() else zero.fill_(data)
    return torch.stack([_made(part, options) for part in data])


def _takes_float(args: tuple[Any, ...]) -> bool:
    return _takes_one(args) and _is_of_python(args[0]) and args[0].node.known


def _converted(kind: type, number: Any) -> Any:
    return TracedFloat(number.node.combined(kind, (number.node,)))


_FLOAT = StandIn(float, _takes_float, lambda x: TracedFloat(x.node.combined(float, (x.node,))))
"""Replaces `float` in PyTorch's code that goes on computing with the number."""
_KINDS = {
    name: AddedBuiltin(kind, _takes_float, partial(lambda kind, x: _converted(kind, x), kind))
    for name, kind in (("float", float), ("int", int))
}
"""Replace `float` and `int` in modules that only call them."""
_CLIPPING = vars(import_module("torch.nn.utils.clip_grad"))
_MADE_WITH = {"device", "dtype"}
_QUESTIONS = ("isfinite", "isinf", "isnan")
_STAND_INS: dict[str, StandIn] = {
    name: StandIn(getattr(math, name), _takes_one, _of_number(name, function))
    for name, function in _FUNCTIONS.items()
}
_STAND_INS |= {
    name: StandIn(function, _takes_some, _in_python(function))
    for name, function in vars(math).items()
    if callable(function) and name not in _STAND_INS
}
_STAND_INS["pow"] = StandIn(math.pow, _takes_two, _power)
_STAND_INS |= {
    name: StandIn(getattr(math, name), _takes_one, _question(getattr(math, name)))
    for name in _QUESTIONS
}
_STAND_INS["log"] = StandIn(
    math.log,
    lambda args: _takes_one(args) or _takes_two(args),
    lambda x, *base: _logarithm(x, *base) if base else _of_number("log", _FUNCTIONS["log"])(x),
)
_TENSORS = {
    name: StandIn(original, _takes_data, partial(_tensor, original, of_array))
    for name, original, of_array in (
        ("tensor", torch.tensor, tensor_of_array),
        ("as_tensor", torch.as_tensor, as_tensor_of_array),
    )
}
_RESULT_TYPE = StandIn(torch.result_type, _takes_two, _result_type)
_PICKS = {name: StandIn(getattr(builtins, name), _takes_unknown, PICKS[name]) for name in PICKS}
_BY_ORIGINAL = {id(one.original): one for one in (*_STAND_INS.values(), _RESULT_TYPE)}
_OF_TENSORS = MOVING_FUNCTIONS | WHOLE_FUNCTIONS | _TENSORS | FROM_ARRAYS
_BY_ORIGINAL |= {id(one.original): one for one in (*_OF_TENSORS.values(), *MAKING_ARRAYS.values())}


def functions_in(spaces: Iterable[Space]) -> list[tuple[Space, str, StandIn]]:
    """Returns the namespaces in which functions must be replaced: their modules, and other
    namespaces.
    """
    found: list[tuple[Space, str, StandIn]] = [(torch.__dict__, "result_type", _RESULT_TYPE)]
    found.append((_CLIPPING, "float", _FLOAT))
    found += ((torch.__dict__, name, one) for name, one in _OF_TENSORS.items())
    found += ((np.__dict__, name, one) for name, one in MAKING_ARRAYS.items())
    held = math.__dict__
    found += ((held, name, one) for name, one in _STAND_INS.items())
    found += ((builtins.__dict__, name, one) for name, one in _PICKS.items())
    for space in spaces:
        found += ((space, k, one) for k, one in _KINDS.items() if only_calls(space, k))
        for name, value in list(space.items()):
            one = value if type(value) is StandIn else _BY_ORIGINAL.get(id(value))
            if one is not None:
                found.append((space, name, one))
    return found


def _method(name: str) -> Callable[[Any], Any]:
    """Returns the method of an object that NumPy's function of the same name calls."""
    traced = _of_number(name, _FUNCTIONS[name])

    def method(self: Any) -> Any:
        return self._give_up() if self.node.in_python else traced(self)

    return method


for _name, _function in _FUNCTIONS.items():
    if not _function.integral:
        setattr(TracedFloat, _name, _method(_name))
