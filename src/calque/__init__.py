"""calque runs PyTorch programs on XLA: write PyTorch, and run it as one XLA program.

Importing calque registers the PyTorch device "jax". docs/import-changes.md lists its other changes
to PyTorch, JAX and Python; the behaviour of other devices, and of code outside traces, does not
change. Uncaught errors that passed through calque are printed with only the user's frames
(`CALQUE_TRACEBACK=full` shows all).
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

import jax as _jax
import torch as _torch

from calque.errors.versions import UntestedVersionWarning
from calque.errors.versions import warn_of_untested as _warn_of_untested
from calque.program.trace_collection import collecting_nothing_new as _collecting_nothing_new

# Before imports that may fail with an untested release.
_warn_of_untested({"torch": _torch.__version__, "jax": _jax.__version__})

# The garbage collector would traverse all objects of PyTorch and JAX repeatedly.
with _collecting_nothing_new():
    from calque import ops as _ops  # rules must be registered before they are bound
    from calque.device.backend.interop import to_jax, to_torch
    from calque.device.backend.registration import register as _register
    from calque.device.runtime.host_memory import keep_host_memory
    from calque.device.runtime.persistent_cache import compilation_cache
    from calque.distributed.hooks import install as _install_distributed
    from calque.dynamo import default_backend as _default_backend
    from calque.dynamo import registering as _registering
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
    from calque.jitting.control_flow import install as _install_control_flow
    from calque.tracing import former_names as _former_names
    from calque.upstream.later_names import later as _later

    _register()
    _install_control_flow()
    _install_distributed()
    _former_names.install()
    _uncaught.install()
    _default_backend.install()
    _registering.install()

__version__ = "0.1.0"

if _TYPE_CHECKING:  # at run time they are imported at the first use
    from calque import convert, federated, sharding
    from calque.comparing import diff
    from calque.device.kernels.custom import op
    from calque.explaining import Report, explain
    from calque.interop.export import Exported, export, load_exported
    from calque.interop.from_jax import from_jax
    from calque.interop.functional import functional
    from calque.jitting.api import jit
    from calque.tracing import lower, symbolic_trace, trace
    from calque.tracing.record import Recording, record
    from calque.view import show

del _default_backend, _former_names, _install_control_flow, _install_distributed, _ops, _register
del _jax, _registering, _torch, _uncaught, _warn_of_untested

_PACKAGES = (
    *("comparing", "convert", "device", "distributed", "dynamo", "errors", "explaining"),
    *("federated", "graph", "interop", "jitting", "ops", "program", "sharding", "state"),
    *("tracing", "upstream", "view"),
)
_HOMES = {
    **{name: f".{name}" for name in _PACKAGES},
    "Exported": ".interop.export",
    "Recording": ".tracing.record.recording",
    "Report": ".explaining",
    "diff": ".comparing",
    "explain": ".explaining",
    "export": ".interop.export",
    "from_jax": ".interop.from_jax",
    "functional": ".interop.functional",
    "jit": ".jitting.api",
    "load_exported": ".interop.export",
    "lower": ".tracing",
    "op": ".device.kernels.custom",
    "record": ".tracing.record.api",
    "show": ".view",
    "symbolic_trace": ".tracing",
    "trace": ".tracing.former_names",
}
_imported = _later(__name__, _HOMES)


def __getattr__(name: str) -> _Any:
    """Imports what is not needed for the device at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'calque' has no attribute {name!r}")
    with _collecting_nothing_new():
        return _imported(name)


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
    "keep_host_memory",
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


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
