"""`calque.explain(fn, *args)`."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Module

from calque.errors.handlers import is_of_handler
from calque.explaining import entry_points
from calque.explaining.inspecting import Inspection
from calque.explaining.report import Report
from calque.jitting.jitted import Jitted
from calque.jitting.module import JittedModule
from calque.upstream.torch_internals import tree_map


def explain(
    fn: Module | Callable[..., Any], /, *args: Any, compare: bool = True, **kwargs: Any
) -> Report:
    """Explains how a program runs on XLA, or why it cannot and what to do.

    Like `torch._dynamo.explain`, but it leaves the program unchanged: the program is traced, and
    only copies of modules, or graphs, are run.

    Args:
        fn: a module or a function, jitted by `calque.jit` or not. CPU tensors among its arguments,
            and a module on the CPU, are copied to the device.
        *args: an example call.
        compare: whether to compare the results on the CPU and on the device.
        **kwargs: the keyword arguments of the example call.

    Returns:
        Which entry points (`calque.jit`, `calque.trace`, `torch.compile`) capture the program, or
        the error that says why not; how its operators run; where Python reads values; inputs,
        guards and traces; the floating-point operations and the memory, as reported by XLA; and
        where the CPU and the device disagree.

    Raises:
        TypeError: `fn` is neither a module nor a function.

    >>> import calque, torch
    >>> report = calque.explain(torch.nn.Linear(3, 2), torch.ones(4, 3))
    >>> report.captured, report.entry_points[0].name, report.operators[0].served
    (True, 'calque.jit', 'rule')
    """
    if not callable(fn):
        raise TypeError(
            "calque.explain expects a module or a function and example arguments, not "
            f"{type(fn).__name__}: `calque.explain(model, x)`"
        )
    traces = list(fn.history) if isinstance(fn, Jitted | JittedModule) else []
    if isinstance(fn, JittedModule):
        fn = fn._orig_mod
    elif isinstance(fn, Jitted):
        fn = fn._fn
    name = getattr(fn, "__qualname__", type(fn).__name__)
    report = Report(name, traces=traces)
    fn, args, kwargs = _on_device(fn, args, kwargs)
    inspection = Inspection(fn, args, kwargs)
    reads = _reads(report, fn, args, kwargs)
    report.entry_points = [
        entry_points.jit(inspection.error, reads),
        entry_points.graph(fn, args, kwargs),
        entry_points.compiled(fn, args, kwargs),
    ]
    report.operators = inspection.operators
    if inspection.lowered is not None:
        described = inspection.described
        report.lifted, report.guards = described["lifted"], described["guards"]
        report.written, report.donated = described["written"], described["donated"]
        report.flops, report.memory = inspection.costs()
    if compare:
        _compare(report, fn, inspection.is_random, args, kwargs)
    return report


def _on_device(fn: object, args: object, kwargs: object) -> tuple[Any, Any, Any]:
    """Returns the program on the device: a copy if it is a module on the CPU."""
    if isinstance(fn, Module) and any(t.device.type != "jax" for t in _state(fn)):
        return entry_points.copied(fn, args, kwargs)

    def moved(value: Any) -> Any:
        elsewhere = isinstance(value, torch.Tensor) and value.device.type == "cpu"
        return value.detach().to("jax") if elsewhere else value

    args, kwargs = tree_map(moved, (args, kwargs))
    return fn, args, kwargs


def _state(module: Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _reads(report: Report, fn: object, args: object, kwargs: object) -> Any:
    if not isinstance(fn, Module):
        report.notes.append(
            "values read by Python: a function is not run, because it may have side effects; "
            "calque.jit's error names the first line that reads a value"
        )
        return None
    try:
        reads = entry_points.reads_of(fn, args, kwargs)
    except Exception as error:
        if is_of_handler(error):
            raise
        report.notes.append(f"values read by Python: the module raises {error!r}")
        return None
    report.host_reads = list(dict.fromkeys(map(str, reads)))
    return reads


def _compare(report: Report, fn: Any, is_random: bool, args: Any, kwargs: Any) -> None:
    if isinstance(fn, Module) and is_random:
        fn = copy.deepcopy(fn).eval()
        report.notes.append(
            "CPU against device in training mode: each draws its own random numbers, so they are "
            "compared in eval mode"
        )
    elif is_random:
        report.notes.append("CPU against device: each draws its own random numbers")
        return
    compare = (
        entry_points.disagreements
        if isinstance(fn, Module)
        else entry_points.disagreements_of_traces
    )
    try:
        report.differences = compare(fn, args, kwargs)
    except Exception as error:
        if is_of_handler(error):
            raise
        what = "" if isinstance(fn, Module) else "a function is compared through its traced graph; "
        report.notes.append(f"CPU against device: {what}{error}")
