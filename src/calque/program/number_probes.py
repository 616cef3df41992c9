"""Whether PyTorch's C++ hands a number on as it is: to operators, and in the formulas of gradients.

A function is run twice without values (on PyTorch's device "meta"), with different numbers. If the
operators that run are the same, but for that number among their arguments, then C++ has computed
nothing from it. It may have compared it, so both numbers must be alike (see `Span`).
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from calque.upstream.dispatch_mode import DispatchMode
from calque.upstream.torch_internals import disable_current_modes, pytree

Tensor = torch.Tensor
_empty_strided, _gradient = torch.empty_strided, torch.autograd.grad
_numbers = random.Random(0)  # not the program's
_SPECIAL = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)
"""Numbers with which PyTorch compares: probabilities, exponents, factors."""


class Span(NamedTuple):
    """The open interval of the numbers that compare like another with all that a function knows."""

    low: float
    high: float

    @classmethod
    def around(cls, value: float, others: Iterable[float]) -> "Span | None":
        """Returns the span of a number; None for one with which PyTorch may compare others.

        Args:
            value: the number.
            others: the other numbers among the arguments.
        """
        ends = {*_SPECIAL, *others, -math.inf, math.inf}
        if value in ends or math.isnan(value):
            return None
        return cls(max(one for one in ends if one < value), min(one for one in ends if one > value))

    def number(self) -> float:
        """Returns a random number of the span."""
        low, high = self
        if math.isinf(low):
            return high - 1 - _numbers.random()
        if math.isinf(high):
            return low + 1 + _numbers.random()
        return low + (high - low) * (0.25 + 0.5 * _numbers.random())


class _Operators(DispatchMode):
    """Records operators with their arguments."""

    def __init__(self, named: dict[float, int]) -> None:
        super().__init__()
        self.found: list[Any] = []
        self.met: set[int] = set()
        self._named = named

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves, spec = pytree.tree_flatten((args, kwargs))
        self.found.append((func, [self._described(one) for one in leaves], str(spec)))
        return func(*args, **kwargs)

    def _described(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            values = [] if value.device.type == "meta" else value.reshape(-1).tolist()
            return value.dtype, value.shape, repr(values)
        if type(value) is float and value in self._named:
            self.met.add(self._named[value])
            return "number", self._named[value]
        return type(value), repr(value)


def _valueless(tensor: Tensor, inputs: list[Tensor]) -> Tensor:
    needed = tensor.requires_grad and torch.is_grad_enabled()
    found = _empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    if not needed:
        return found
    inputs.append(found.requires_grad_())
    return found.clone()  # which may be written to


def _operators(
    run: Callable[..., Any], leaves: Sequence[Any], spec: Any, numbers: dict[int, float]
) -> list[Any] | None:
    """Returns the operators that a function runs, and those of its gradients; None if some number
    is an argument of none of them.
    """
    inputs: list[Tensor] = []
    given = [
        numbers[i] if i in numbers else _valueless(one, inputs) if isinstance(one, Tensor) else one
        for i, one in enumerate(leaves)
    ]
    args, kwargs = pytree.tree_unflatten(given, spec)
    with _Operators({one: i for i, one in numbers.items()}) as operators:
        results: Any = pytree.tree_leaves(run(*args, **kwargs))
        for _ in range(2):  # a gradient that is itself differentiated
            results = [one for one in results if _has_gradient(one)]
            if not results:
                break
            ones = [torch.ones_like(one, requires_grad=True) for one in results]
            results = _gradient(results, inputs, ones, create_graph=True, allow_unused=True)
            inputs += ones
    return operators.found if operators.met == numbers.keys() else None


def _has_gradient(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


_known: dict[Any, bool] = {}
_MOST_KNOWN = 4096


def hands_on(run: Callable[..., Any], args: Any, kwargs: Any, spans: dict[int, Span]) -> bool:
    """Returns True if PyTorch hands numbers on as they are.

    Args:
        run: a function of PyTorch's C++.
        args, kwargs: its arguments.
        spans: the spans of the numbers, by their index among the leaves of the arguments.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    key = (run, str(spec), torch.is_grad_enabled(), torch.get_default_dtype())
    key += tuple(
        (one.dtype, one.shape, one.stride(), one.device.type, one.requires_grad)
        if isinstance(one, Tensor)
        else spans[i]
        if i in spans
        else (type(one), repr(one))
        for i, one in enumerate(leaves)
    )
    if key not in _known:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = _is_same(run, leaves, spec, spans)
    return _known[key]


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _is_same(run: Any, leaves: Any, spec: Any, spans: dict[int, Span]) -> bool:
    # What it saves for its gradients is not the program's: a checkpoint would count it.
    drawn = [{i: span.number() for i, span in spans.items()} for _ in range(2)]
    try:
        with disable_current_modes(), saved_tensors_hooks(_itself, _itself):
            first, second = (_operators(run, leaves, spec, numbers) for numbers in drawn)
    except Exception:  # PyTorch cannot compute it without values
        return False
    return first is not None and first == second
