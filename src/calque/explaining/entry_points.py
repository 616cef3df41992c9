"""Tries each entry point to XLA on a program, and finds out more by running a copy of it."""

import copy
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Module

from calque.comparing import diff
from calque.device.memory.host_reads import HostRead
from calque.errors.frames import is_library
from calque.errors.handlers import is_of_handler
from calque.explaining.report import EntryPoint
from calque.jitting.assumed_values import ReadObserver
from calque.tracing import trace
from calque.upstream.torch_internals import tree_map

_WORDS = 600


def jit(error: Exception | None, reads: list[HostRead] | None) -> EntryPoint:
    """`calque.jit`.

    Args:
        error: the error of a trace that assumes no values.
        reads: the values that were read in a run; None if the program was not run.
    """
    if error is None:
        return EntryPoint("calque.jit", True)
    if reads and all(is_library(read.file) for read in reads):
        which = f"{len(reads)} value{'s' if len(reads) > 1 else ''}"
        return EntryPoint("calque.jit", True, f"assuming {which} that library code reads")
    return EntryPoint("calque.jit", False, _described(error))


def graph(fn: Callable[..., Any], args: Any, kwargs: Any) -> EntryPoint:
    """`calque.trace`."""
    try:
        found = trace(fn, *args, **kwargs)
    except Exception as error:
        if is_of_handler(error):
            raise
        return EntryPoint("calque.trace", False, _described(error))
    return EntryPoint("calque.trace", True, f"{len(found.graph.nodes)} nodes")


def compiled(fn: Callable[..., Any], args: Any, kwargs: Any) -> EntryPoint:
    """`torch.compile`: how many graphs Dynamo captures of a copy of a module."""
    if not isinstance(fn, Module):
        return EntryPoint(
            "torch.compile", None, "tried for modules only, because dynamo runs what it compiles"
        )
    from calque.upstream import torch_compile  # imports Dynamo

    module, args, kwargs = copied(fn, args, kwargs)
    torch_compile.dynamo.reset()
    log = logging.getLogger("torch._subclasses.fake_tensor")
    heard, log.disabled = log.disabled, True  # the error is in the report
    try:
        found = torch_compile.dynamo.explain(module)(*args, **kwargs)
    except Exception as error:
        if is_of_handler(error):
            raise
        return EntryPoint("torch.compile", False, _described(error))
    finally:
        log.disabled = heard
        torch_compile.dynamo.reset()
    if found.graph_break_count == 0:
        return EntryPoint("torch.compile", True, "one graph")
    break_ = found.break_reasons[0]
    where = break_.user_stack[-1] if break_.user_stack else None
    line = f" at {where.filename}:{where.lineno}" if where else ""
    said = f"{found.graph_count} graphs, the first ends{line}: {_reason(break_.reason)}"
    return EntryPoint("torch.compile", True, said)


def _reason(answer: Any) -> str:
    first = str(answer).strip().splitlines()[0]
    return "a branch on a tensor's value" if first.startswith("generic_jump") else first


def reads_of(module: Module, args: Any, kwargs: Any) -> list[HostRead]:
    """Returns where a copy of a module reads values when it runs."""
    module, args, kwargs = copied(module, args, kwargs)
    observer = ReadObserver()
    with observer.watching():
        module(*args, **kwargs)
    return [seen.asked for seen in observer.seen or ()]


def disagreements(module: Module, args: Any, kwargs: Any) -> list[str]:
    """Returns where a module's results on the device differ from those on the CPU."""
    found = diff(module, module, *args, devices=("cpu", "jax"), **kwargs)
    return [str(difference) for difference in found]


def disagreements_of_traces(fn: Callable[..., Any], args: Any, kwargs: Any) -> list[str]:
    """Like `disagreements`, for a function, but compares the graphs of its traces, because it may
    have side effects.

    Raises:
        TraceError: it cannot be traced on both.
    """
    graphs = [trace(fn, *a, **k) for a, k in (_on("cpu", args, kwargs), _on("jax", args, kwargs))]
    found = diff(*graphs, *args, devices=("cpu", "jax"), **kwargs)
    return [str(difference) for difference in found.of("values", "shape", "dtype", "error")]


def _on(device: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    def moved(value: Any) -> Any:
        return value.detach().to(device) if isinstance(value, torch.Tensor) else value

    return tree_map(moved, (args, kwargs))


def copied(module: Module, args: Any, kwargs: Any) -> tuple[Module, Any, Any]:
    """Returns a copy of a module on the device, and of its arguments."""

    def moved(value: Any) -> Any:
        return value.detach().clone().to("jax") if isinstance(value, torch.Tensor) else value

    args, kwargs = tree_map(moved, (args, kwargs))
    return copy.deepcopy(module).to("jax"), args, kwargs


def _described(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    text = text if len(text) <= _WORDS else text[: _WORDS - 3] + "..."
    if os.environ.get("CALQUE_TRACEBACK") == "full":
        print(f"calque.explain: {type(error).__name__}: {error}", file=sys.stderr)
    named = type(error).__name__
    return text if named == "TraceError" else f"{named}: {text}"
