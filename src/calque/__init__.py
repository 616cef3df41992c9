"""calque carries PyTorch programs to XLA: write PyTorch, run it as one XLA program.

Importing calque registers the PyTorch device "jax" and changes nothing else, but that in a process
with a single core JAX is asked to compute in the calling thread, and that handlers of signals wait
where an interrupt would end the process or lose state.
"""

import importlib as _importlib
from typing import Any as _Any

from calque import ops as _ops  # the rules must exist before they are bound
from calque import trace
from calque.device.custom import op
from calque.device.interop import to_jax, to_torch
from calque.device.registration import register as _register
from calque.diagnostics import (
    CalqueError,
    EagerWarning,
    RetraceWarning,
    TraceError,
    UnsupportedOpError,
)
from calque.run.export import Exported, export, load_exported
from calque.run.from_jax import from_jax
from calque.run.functional import functional
from calque.run.jit import jit
from calque.trace import symbolic_trace
from calque.tracing.record import Recording, record

_register()
del _ops, _register


def __getattr__(name: str) -> _Any:
    """`calque.convert` is there without an import of its own, and loaded when it is used."""
    if name == "convert":
        return _importlib.import_module("calque.convert")
    raise AttributeError(f"module 'calque' has no attribute {name!r}")


__all__ = [
    "CalqueError",
    "EagerWarning",
    "Exported",
    "Recording",
    "RetraceWarning",
    "TraceError",
    "UnsupportedOpError",
    "export",
    "from_jax",
    "functional",
    "jit",
    "load_exported",
    "op",
    "record",
    "symbolic_trace",
    "to_jax",
    "to_torch",
    "trace",
]
