"""What is caught of the traced program beside its proxies.

A `TorchFunctionMode` sees every call of PyTorch in this thread, by whatever name the program got
hold of the function, proxies or not: creation functions become nodes, instead of constants that
were drawn once.
"""

from typing import Any

from torch.overrides import TorchFunctionMode

from calque.tracing.core.active import current_trace


class CallCatcher(TorchFunctionMode):
    """Hands each call of PyTorch to the tracer, while its trace is the one that runs."""

    def __init__(self, tracer: Any) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        trace = current_trace()
        if trace is None or trace.tracer is not self._tracer:
            return func(*args, **(kwargs or {}))
        return self._tracer.torch_call(func, args, kwargs or {})
