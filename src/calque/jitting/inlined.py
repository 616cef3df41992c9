"""Decides whether a call of a jitted function is inlined into an enclosing trace."""

from typing import Any

import torch
from torch import compiler

from calque.device.memory.cell import active
from calque.program.compile_flags import others_compile
from calque.tracing.core.active import in_process, is_tracing
from calque.upstream import torch_c, torch_internals
from calque.upstream.torch_internals import profiler_enabled

_functorch_level = torch_c.functorch.maybe_current_level
_dispatch_modes = torch_c.len_torch_dispatch_stack
_is_anomaly = torch.is_anomaly_enabled


def is_inlined() -> bool:
    """Returns True if a jitted function is inlined into an enclosing trace.

    It is inlined into another jitted function, a `torch.func` transform, forward-mode derivatives
    (whose tangents do not enter a program), a `TorchDispatchMode` (which must see each operator),
    anomaly detection (which must name the operator that gives NaN), `parametrize.cached()` (whose
    tensors other calls use), or a tracer: calque's, dynamo or `torch.export`. (Exports turn on
    anomaly detection for all threads, without the check for NaN.)
    """
    return (
        compiler.is_dynamo_compiling()  # first: Dynamo does not go on behind some of the others
        or active.inlining
        or _functorch_level() is not None
        or torch_internals.forward_ad._current_level >= 0
        or _dispatch_modes() > 0
        or (_is_anomaly() and torch.is_anomaly_check_nan_enabled())
        or torch_internals.parametrize._cache_enabled > 0
        or is_tracing()
        or (torch_internals.compiler._is_compiling_flag and others_compile())
    )


SURROUNDINGS: tuple[tuple[str, Any], ...] = (
    ("{}", in_process),
    ("{}._current_level >= 0", torch_internals.forward_ad),
    ("{}()", _is_anomaly),
    ("{}._cache_enabled", torch_internals.parametrize),
    ("{}._is_compiling_flag", torch_internals.compiler),
    ("{}()", profiler_enabled),
)
"""Conditions as text, each with its object. If none holds, the call is not inlined, and no profiler
is running; they may hold although `is_inlined` is false. `active.inlining` and Dynamo's traces are
not among them, because they are checked before.
"""

DISPATCHED: tuple[tuple[str, Any], ...] = (
    ("{}() is not None", _functorch_level),
    ("{}()", _dispatch_modes),
)
"""Further conditions, which the dispatch keys of any tensor also show (see `generated.kinds`)."""
