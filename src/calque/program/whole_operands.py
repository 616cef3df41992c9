"""Traced integers that meet tensors of integers, or are written into tensors.

PyTorch takes a traced number for a float, so that the result would have another dtype. Here, the
integer becomes a tensor of one element, which PyTorch promotes like the integer.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from calque.program.moving_indexes import guarded, is_whole, may_move
from calque.program.number_nodes import constant_node
from calque.program.traced_numbers import TracedFloat
from calque.state.stand_ins import StandIn

Tensor = torch.Tensor
_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod")
_DIVIDING = ("__floordiv__", "__mod__", "__ifloordiv__", "__imod__")
_REFLECTED = ("add", "sub", "mul", "truediv")
_NAMED = ("add", "sub", "mul", "add_", "sub_", "mul_")
_GREATEST = torch.finfo(torch.float32).max
_COMPARING = ("eq", "ne", "lt", "le", "gt", "ge")


def tensor_of(number: Any, dtype: torch.dtype, device: Any) -> Tensor:
    """Returns a number as a tensor of no dimensions."""
    return torch.zeros((), dtype=dtype, device=device).fill_(number)


def _operand(tensor: Any, number: Any) -> Any:
    """Returns the second operand of an operator, for a tensor of integers and a number."""
    if not is_whole(number) or not may_move(tensor) or tensor.dtype != torch.int64:
        return number
    return tensor_of(number, torch.int64, tensor.device)


def _operator(name: str) -> Callable[..., Any]:
    original = getattr(Tensor, name)
    divides = name in _DIVIDING

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs or type(args[0]) is not TracedFloat:
            return original(self, *args, **kwargs)
        number = args[0]
        if divides and is_whole(number):
            watch = number.node.watch
            if not watch.ask("ne", number.node, constant_node(0, watch)):
                return original(self, number)
        return original(self, _operand(self, number))

    return method


def written(original: Callable[..., Any], self: Any, index: Any, value: Any) -> None:
    """Writes a number to part of a tensor."""
    if type(value) is TracedFloat and may_move(self) and value.node.known:
        if _holds(self.dtype, value):
            value = tensor_of(value, self.dtype, self.device)
    original(self, index, value)


def _holds(dtype: torch.dtype, number: TracedFloat) -> bool:
    """Returns True if a tensor can hold a number, and guards that it can."""
    if dtype == torch.float32:
        return number.node.watch.ask_of(is_single, number.node)
    return dtype == torch.float64 or (dtype == torch.int64 and is_whole(number))


def is_single(number: float) -> bool:
    """Returns True if float32 holds a number."""
    return not math.isfinite(number) or abs(number) <= _GREATEST


def _keeps(value: object) -> bool:
    """Returns True for an operand whose dtype a tensor of one integer affects like an integer."""
    if not isinstance(value, Tensor):
        return True
    return value.dim() > 0 or value.dtype == torch.int64 or value.is_floating_point()


def _arange(original: Callable[..., Any], *args: Any, **options: Any) -> Tensor:
    """Computes `torch.arange` between two numbers whose distance is always the same."""
    device, dtype = options.get("device"), options.get("dtype")
    on_device = device is not None and torch.device(device).type == "jax"
    moves = len(args) in (2, 3) and all(map(is_whole, args[:2]))
    step: Any = args[2] if len(args) == 3 else 1
    if not (moves and on_device) or type(step) is not int or not step:
        return original(*args, **options)
    if dtype not in (None, torch.int64) or options.keys() - {"device", "dtype"}:
        return original(*args, **options)
    first, last = (one.node for one in args[:2])

    def count() -> int:
        return len(range(int(first.compute()), int(last.compute()), step))

    length = count()
    if length == 0:
        return original(*args, **options)
    guarded(first, lambda: count() == length)
    found = original(0, length * step, step, dtype=torch.int64, device=device)
    return found + tensor_of(args[0], torch.int64, device)


def _full(original: Callable[..., Any], size: Any, fill_value: Any, **options: Any) -> Tensor:
    """Computes `torch.full` of an integer."""
    device, dtype = options.get("device"), options.get("dtype")
    on_device = device is not None and torch.device(device).type == "jax"
    if not (is_whole(fill_value) and on_device and dtype in (None, torch.int64)):
        return original(size, fill_value, **options)
    return torch.zeros(size, **{**options, "dtype": torch.int64}).fill_(fill_value)


def _where(original: Callable[..., Any], *args: Any, **options: Any) -> Tensor:
    """Computes `torch.where` of integers."""
    values = args[1:]
    moves = len(values) == 2 and not options and may_move(args[0]) and any(map(is_whole, values))
    if moves and all(map(_keeps, values)):
        device = args[0].device
        args = (
            args[0],
            *(tensor_of(x, torch.int64, device) if is_whole(x) else x for x in args[1:]),
        )
    return original(*args, **options)


def _applied(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Computes a function of a tensor and a number."""
    if len(args) == 2 and not options:
        args = args[0], _operand(*args)
    return original(*args, **options)


_FUNCTIONS = {"arange": _arange, "full": _full, "where": _where}
_FUNCTIONS |= dict.fromkeys(("add", "sub", "mul", *_COMPARING), _applied)
WHOLE_FUNCTIONS: dict[str, StandIn] = {
    name: StandIn(getattr(torch, name), bool, partial(function, getattr(torch, name)))
    for name, function in _FUNCTIONS.items()
}
"""Functions of `torch` that take traced integers."""
_NAMES = (
    *(f"__{name}__" for name in (*_ARITHMETIC, *_COMPARING)),
    *(f"__r{name}__" for name in _REFLECTED),
    *(f"__i{name}__" for name in ("add", "sub", "mul")),
    *(*_NAMED, *_COMPARING),
)
OPERATORS: dict[str, Callable[..., Any]] = {name: _operator(name) for name in _NAMES}
"""Methods of tensors that take traced integers as operands."""
