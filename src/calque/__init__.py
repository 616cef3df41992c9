"""calque carries PyTorch programs to XLA: write PyTorch, run it as one XLA program.

Importing calque registers the PyTorch device "jax" and changes nothing else, but that in a process
with a single core JAX is asked to compute in the calling thread, that JAX keeps compiled programs
for the next process (see `compilation_cache`), and that handlers of signals wait where an interrupt
would end the process or lose state. What Python prints of an exception that came through calque,
and that nobody caught, has the user's frames only (`CALQUE_TRACEBACK=full`).
"""

import importlib as _importlib
from types import ModuleType as _ModuleType

import jax as _jax
import torch as _torch

from calque.errors.versions import UntestedVersionWarning
from calque.errors.versions import warn_of_untested as _warn_of_untested

# Before the imports that another release may make fail.
_warn_of_untested({"torch": _torch.__version__, "jax": _jax.__version__})

from calque import ops as _ops  # the rules must exist before they are bound
from calque.comparing import diff
from calque.device.backend.interop import to_jax, to_torch
from calque.device.backend.registration import register as _register
from calque.device.kernels.custom import op
from calque.device.runtime.persistent_cache import compilation_cache
from calque.distributed.hooks import install as _install_distributed
from calque.dynamo import default_backend as _default_backend
from calque.errors import (
    CacheWarning,
    CalqueError,
    ClientError,
    EagerWarning,
    FallbackWarning,
    FederatedTypeError,
    InternalError,
    RetraceWarning,
    ShapeWarning,
    TraceError,
    UnsupportedOpError,
)
from calque.errors import uncaught as _uncaught
from calque.explaining import Report, explain
from calque.interop.export import Exported, export, load_exported
from calque.interop.from_jax import from_jax
from calque.interop.functional import functional
from calque.jitting.api import jit
from calque.jitting.control_flow import install as _install_control_flow
from calque.tracing import former_names as _former_names
from calque.tracing import lower, symbolic_trace, trace
from calque.tracing.record import Recording, record
from calque.view import show

__version__ = "0.1.0"

convert: _ModuleType  # imported when it is asked for, as the next ones
federated: _ModuleType
sharding: _ModuleType

_register()
_install_control_flow()
_install_distributed()
_former_names.install()
_uncaught.install()
_default_backend.install()
del _default_backend, _former_names, _install_control_flow, _install_distributed, _ops, _register
del _jax, _torch, _uncaught, _warn_of_untested


def __getattr__(name: str) -> _ModuleType:
    """`calque.convert`, `federated` and `sharding`, imported when they are asked for."""
    if name in ("convert", "federated", "sharding"):
        return _importlib.import_module(f"calque.{name}")
    raise AttributeError(f"module 'calque' has no attribute {name!r}")


__all__ = [
    "CacheWarning",
    "CalqueError",
    "ClientError",
    "EagerWarning",
    "Exported",
    "FallbackWarning",
    "FederatedTypeError",
    "InternalError",
    "Recording",
    "Report",
    "RetraceWarning",
    "ShapeWarning",
    "TraceError",
    "UnsupportedOpError",
    "UntestedVersionWarning",
    "compilation_cache",
    "convert",
    "diff",
    "explain",
    "export",
    "federated",
    "from_jax",
    "functional",
    "jit",
    "load_exported",
    "lower",
    "op",
    "record",
    "sharding",
    "show",
    "symbolic_trace",
    "to_jax",
    "to_torch",
    "trace",
]
