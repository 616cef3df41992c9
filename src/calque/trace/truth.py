"""What `if proxy:` does, when every way through the program is followed."""

from typing import Any

import torch

from calque.trace.decisions import Path


def truth(tracer: Any, path: Path, obj: Any) -> bool:
    """The answer of this run.

    Args:
        tracer: a SymbolicTracer.
        path: decides.
        obj: the proxy that is asked.

    Raises:
        RuntimeError: it is known to have more than one element, or none, as PyTorch says.
        TraceError: the answer decides how often a loop runs, or there are too many ways.
    """
    node = obj.node
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        amount = "more than one value" if value.numel() else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {amount} is ambiguous")
    return path.decide(tracer, node)
