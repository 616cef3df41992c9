"""Runs operators of other libraries (`torch.library`) in a trace.

They are opaque to PyTorch, and their Python code may read values, which a trace does not have. An
operator that does becomes a callback to the host, like an operator without a rule. Some have a rule
in the op table, by name. It is bound when the operator is first called, because the library is
imported after calque.
"""

from typing import Any

from calque.device.kernels import custom
from calque.device.kernels.fallback import call_back, written
from calque.device.memory.cell import active, read, write
from calque.errors import TraceError, noting_refusals
from calque.ops.table.registry import RULES
from calque.state.watched_calls import call_watched
from calque.upstream import torch_c
from calque.upstream.torch_internals import OpOverload

_TORCHS = frozenset(("aten", "prims", "prim", "higher_order", "inductor", "c10d", "rngprims"))
_seen: set[str] = set()


def run(op: Any, args: Any, kwargs: Any) -> Any:
    """Call an operator of any library in a trace.

    Raises:
        TraceError: it reads values, and has no fake kernel.
    """
    if not isinstance(op, OpOverload) or op.namespace in _TORCHS:
        return op(*args, **kwargs)
    prepare(op)
    if active.trace is None:
        return call_watched(op, *args, **kwargs)
    before = [(tensor, read(tensor)) for tensor in written(op, args, kwargs)]
    try:
        with active.trace.unassuming(), noting_refusals():
            return call_watched(op, *args, **kwargs)
    except TraceError:
        for tensor, array in before:
            write(tensor, array)
        return call_back(op, args, kwargs)


def prepare(op: OpOverload) -> None:
    """Bind an operator's rule, if it has one, at its first call."""
    if op.name() not in _seen:
        _seen.add(op.name())
        has = torch_c.dispatch_has_kernel_for_dispatch_key
        # Calque.op has bound its own rules.
        if op.name() in RULES and not has(op.name(), "PrivateUse1"):
            custom.bind(RULES[op.name()])
