"""Higher-order operators that call one operator: in order, with a random state, or on copies."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from calque.device.memory.cell import read
from calque.device.memory.wrapping import wrap
from calque.errors import UnsupportedOpError
from calque.program.lifting import Lifting
from calque.upstream.torch_internals import (
    OpOverload,
    clone_preserve_strides,
    get_mutable_args,
    read_view_information_from_args,
    tree_map,
)


class Caller(Protocol):
    """Runs the nodes of a graph (see `interpreter.Nodes`)."""

    @property
    def lifting(self) -> Lifting: ...

    def call_operator(self, target: object, args: object, kwargs: object) -> Any: ...


def _with_effects(nodes: Caller, token: object, op: object, *args: Any, **kwargs: Any) -> Any:
    return token, nodes.call_operator(op, args, kwargs)


def _and_save_random(nodes: Caller, op: object, *args: Any, **kwargs: Any) -> Any:
    state = nodes.lifting.peek()
    return wrap(state), nodes.call_operator(op, args, kwargs)


def _with_random(nodes: Caller, state: Any, op: object, *args: Any, **kwargs: Any) -> Any:
    with nodes.lifting.drawing_from(read(state)):
        return nodes.call_operator(op, args, kwargs)


def _auto_functionalized(nodes: Caller, op: object, **kwargs: Any) -> Any:
    """Calls an operator of `torch.library` that writes to its arguments, on copies of these.

    Returns the operator's results and the copies.
    """
    if "_all_bases" not in kwargs or not isinstance(op, OpOverload):
        raise UnsupportedOpError(f"{op} writes to its arguments in a way that has no rule")
    bases = kwargs.pop("_all_bases")
    copies: list[Any] = [None if base is None else _copied(base) for base in bases]
    views = read_view_information_from_args(*get_mutable_args(op), kwargs, copies)
    given = tree_map(lambda v: v and v.regenerate_view(copies), views)
    found = nodes.call_operator(op, (), {**kwargs, **given})
    return (*(found if isinstance(found, tuple) else (found,)), *copies)


def _copied(base: torch.Tensor) -> torch.Tensor:
    """Returns a copy with the same storage layout, for views by sizes, strides and offset."""
    if base.storage_offset():
        return clone_preserve_strides(base)
    stride = base.stride()
    return torch.empty_strided(base.shape, stride, dtype=base.dtype, device="jax").copy_(base)


CALLING: dict[str, Callable[..., Any]] = {
    "auto_functionalized_v2": _auto_functionalized,
    "with_effects": _with_effects,
    "run_and_save_rng_state": _and_save_random,
    "run_with_rng_state": _with_random,
}
"""The functions by the name of the higher-order operator."""
