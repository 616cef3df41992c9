"""The error of a symbolic trace."""

import torch.fx.proxy

from calque.errors import TraceError


class SymbolicTraceError(TraceError, torch.fx.proxy.TraceError):
    """Like `calque.TraceError`; also a `torch.fx.proxy.TraceError`, so that code that catches
    torch.fx's error (a ValueError) catches this one.

    >>> issubclass(SymbolicTraceError, ValueError)
    True
    """
