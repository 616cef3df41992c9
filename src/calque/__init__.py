"""calque carries PyTorch programs to XLA: write PyTorch, run it as one XLA program.

Importing calque registers the PyTorch device "jax" and changes nothing else, but that in a process
with a single core JAX is asked to compute in the calling thread, and that handlers of signals wait
where an interrupt would end the process or lose state.
"""

import importlib as _importlib
from types import ModuleType as _ModuleType

from calque import ops as _ops  # the rules must exist before they are bound
from calque.comparing import diff
from calque.device.backend.interop import to_jax, to_torch
from calque.device.backend.registration import register as _register
from calque.device.kernels.custom import op
from calque.errors import CalqueError, EagerWarning, RetraceWarning, TraceError, UnsupportedOpError
from calque.interop.export import Exported, export, load_exported
from calque.interop.from_jax import from_jax
from calque.interop.functional import functional
from calque.jitting.api import jit
from calque.jitting.control_flow import install as _install_control_flow
from calque.tracing import former_names as _former_names
from calque.tracing import lower, symbolic_trace, trace
from calque.tracing.record import Recording, record
from calque.view import show

convert: _ModuleType  # imported when it is asked for, as the next one
federated: _ModuleType

_register()
_install_control_flow()
_former_names.install()
del _former_names, _install_control_flow, _ops, _register


def __getattr__(name: str) -> _ModuleType:
    """`calque.convert` and `calque.federated`, imported when they are asked for."""
    if name in ("convert", "federated"):
        return _importlib.import_module(f"calque.{name}")
    raise AttributeError(f"module 'calque' has no attribute {name!r}")


__all__ = [
    "CalqueError",
    "EagerWarning",
    "Exported",
    "Recording",
    "RetraceWarning",
    "TraceError",
    "UnsupportedOpError",
    "convert",
    "diff",
    "export",
    "federated",
    "from_jax",
    "functional",
    "jit",
    "load_exported",
    "lower",
    "op",
    "record",
    "show",
    "symbolic_trace",
    "to_jax",
    "to_torch",
    "trace",
]
