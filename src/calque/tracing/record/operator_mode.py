"""Observes operators, to find those that run outside the recorded calls.

A `TorchDispatchMode` runs each operator unchanged. It counts the operators of each call, records
which of them read values or return shapes that depend on values, and passes the operators that run
outside any call (in TorchScript code, or within `torch.func.vmap`) to the recorder.
"""

import functools
from typing import Any, NamedTuple

import torch

from calque.upstream.dispatch_mode import DispatchMode
from calque.upstream.torch_internals import tree_leaves

_INDEX = torch.ops.aten.index.Tensor
_MASKS = (torch.bool, torch.uint8)
_UNTAGGED = frozenset((torch.ops.aten._pack_padded_sequence.default,))
"""Operators whose shapes depend on values although PyTorch does not tag them so."""


class OperatorCounts(NamedTuple):
    """How complete a recording is.

    Attributes:
        operators: the number of ATen operators that ran.
        within_calls: the number that ran within a PyTorch call of the program.
        outside_calls: the number that ran outside such calls; each is recorded as a call of its
            own.
    """

    operators: int
    within_calls: int
    outside_calls: int


@functools.lru_cache(maxsize=4096)
def _known_for(operator: Any) -> tuple[bool, bool]:
    """Returns whether an operator reads values into Python,
    and whether its shapes depend on values.
    """
    tags = getattr(operator, "tags", ())
    reads = torch.Tag.data_dependent_output in tags
    own = getattr(operator, "namespace", "aten") in ("aten", "prims")
    dynamic = torch.Tag.dynamic_output_shape in tags or operator in _UNTAGGED
    return reads, reads or dynamic or not own


def _draws(operator: Any, kwargs: dict[str, Any]) -> bool:
    """Returns True if an operator draws from PyTorch's default generator."""
    draws = torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())
    return draws and kwargs.get("generator") is None


class OperatorMode(DispatchMode):
    """Sees each operator that runs in a thread.

    Args:
        recorder: gets the operators outside calls.
        local: the recorder's state for this thread.
    """

    supports_higher_order_operators = True

    def __init__(self, recorder: Any, local: Any) -> None:
        super().__init__()
        self._recorder = recorder
        self._local = local

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        recorder, kwargs = self._recorder, kwargs or {}
        if recorder.follows_default_generator and not recorder.ended and _draws(func, kwargs):
            with recorder.drawing(torch.default_generator):
                return self._run(func, args, kwargs)
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = self._local.call
        if call is None and not self._local.is_entered and self._recorder.running:
            call = self._recorder.running[-1]  # the call that autograd's thread works for
        if call is None:
            return self._recorder.operator(func, args, kwargs)
        call.operators += 1
        reads, dynamic = _known_for(func)
        if func is _INDEX:
            dynamic = any(t is not None and t.dtype in _MASKS for t in args[1])
        if reads:
            call.reads_values = True
        if dynamic:
            call.has_dynamic_shape = True
        return func(*args, **kwargs)


def set_properties(call: Any, operator: Any, args: tuple[Any, ...]) -> None:
    """Record the properties of the operator for a call that is itself an operator."""
    call.operators = 1
    call.reads_values, call.has_dynamic_shape = _known_for(operator)
    if operator is _INDEX:
        masks = [t for t in tree_leaves(args[1]) if isinstance(t, torch.Tensor)]
        call.has_dynamic_shape = any(t.dtype in _MASKS for t in masks)
