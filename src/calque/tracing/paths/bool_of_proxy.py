"""Decides `if proxy:` when every path through the program is followed."""

import textwrap
from typing import Any

import torch

from calque.tracing.core.bytecode import is_assertion
from calque.tracing.core.origins import program_frame
from calque.tracing.core.refusals import describe, refuse_because
from calque.tracing.paths.decisions import ProgramPath
from calque.tracing.paths.while_loops import while_loop


def truth(tracer: object, path: ProgramPath, obj: Any) -> bool:
    """Returns the answer of this run.

    Args:
        tracer: a SymbolicTracer.
        path: the current path, which decides.
        obj: the proxy that is converted to a bool.

    Raises:
        RuntimeError: it does not have exactly one element, as in PyTorch.
        TraceError: it is the condition of a loop, or there are too many paths.
    """
    node = obj.node
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        amount = "more than one value" if value.numel() else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {amount} is ambiguous")
    frame = program_frame(2)
    loop = while_loop(frame) if frame is not None else None
    if loop is not None:
        refuse_because(
            tracer,
            f"`while {loop.condition}:` depends on {describe(obj).rstrip(',')}, whose value "
            "is known only when the graph runs. Write it as torch.while_loop, with tensors for "
            "everything that changes",
            textwrap.indent(loop.remedy, "    "),
        )
    asserts = frame is not None and is_assertion(frame)
    return path.decide(tracer, node, asserts)
