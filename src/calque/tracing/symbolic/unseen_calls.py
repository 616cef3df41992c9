"""Calls of the traced program that do not reach its proxies.

A `TorchFunctionMode` sees every PyTorch call in this thread, with or without proxies and however
the program refers to the function. So creation functions become nodes instead of constants.
"""

from typing import TYPE_CHECKING, Any

from torch.overrides import TorchFunctionMode

from calque.tracing.core.active import current_trace

if TYPE_CHECKING:
    from calque.tracing.symbolic.symbolic_tracer import SymbolicTracer


class CallCatcher(TorchFunctionMode):
    """Passes each call of a PyTorch function to the tracer, while its trace is the current one."""

    def __init__(self, tracer: "SymbolicTracer") -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        trace = current_trace()
        if trace is None or trace.tracer is not self._tracer:
            return func(*args, **(kwargs or {}))
        return self._tracer.torch_call(func, args, kwargs or {})
