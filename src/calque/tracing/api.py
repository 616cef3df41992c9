"""`calque.trace(...)` and `calque.symbolic_trace(...)`."""

import contextlib
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.graph_module import GraphModule
from torch.nn.modules.lazy import LazyModuleMixin

from calque.errors import tidy
from calque.tracing.choosing import TracerName, by_tracer
from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.core.recursion import deeper_recursion
from calque.tracing.graph.branching import in_branches
from calque.tracing.graph.member_source import in_order_of, source_of_members
from calque.tracing.paths import decisions
from calque.tracing.proxies.modules import Scripted
from calque.tracing.symbolic.capture import Capture
from calque.tracing.symbolic.objects import function_of
from calque.tracing.symbolic.restoring import Restoring
from calque.tracing.symbolic.symbolic_tracer import SymbolicTracer
from calque.upstream.torch_internals import copy_attr, make_graph_module


def trace(
    root: torch.nn.Module | Callable[..., Any],
    /,
    *args: Any,
    max_paths: int | None = None,
    tracer: TracerName = "symbolic",
    **kwargs: Any,
) -> GraphModule:
    """Traces a program into a graph, by running it on proxies.

    Like `torch.fx.symbolic_trace`, but with example inputs, shapes and dtypes are known while
    tracing, and what a graph cannot repeat raises an error instead of being frozen.

    Args:
        root: a module, a method of a module, a function or another callable object.
        *args: an example call. Its tensors become inputs of the graph, and only their shape,
            dtype and device are looked at; other values are checked when the graph runs.
            Without any arguments, nothing is known about the inputs, as in torch.fx.
        max_paths: how many paths are followed through a program that branches on tensors; by
            default 64.
        tracer: with `"symbolic"`, the program runs on proxies. With `"record"`, it runs once on
            the arguments (`calque.record`), and its writes to arguments, parameters and buffers
            are undone. `"export"` uses `torch.export`, and is only as faithful as that.
            `"auto"` tries `"symbolic"`, and `"record"` if that is refused.
        **kwargs: the keyword arguments of the example call.

    Returns:
        A `torch.fx.GraphModule` that shares the parameters of `root`. The nodes have `origin`,
        `nn_module_stack` and, where it is known, `val` in their `meta`. In the `meta` of the
        graph module, `"calque.tracer"` says which tracer made it, and `"calque.refused"` why
        others did not.

    Raises:
        TraceError: the program does something that no graph can repeat; the error names its line.

    >>> import calque, torch
    >>> graph = calque.trace(lambda x: x.view(x.shape[0], -1).relu(), torch.ones(2, 3, 4))
    >>> graph(-torch.ones(2, 3, 4)).shape
    torch.Size([2, 12])
    """
    examples = (args, kwargs) if args or kwargs else None
    limit = contextlib.nullcontext() if max_paths is None else decisions.max_paths(max_paths)

    def symbolic() -> GraphModule:
        with limit:
            return _graph_module(lambda: SymbolicTracer(examples), root, None)

    try:
        with deeper_recursion():
            return by_tracer(tracer, symbolic, root, args, kwargs)
    except Exception as error:
        tidy(error).__cause__ = None
        raise  # which adds no frame, unlike `raise error`


def symbolic_trace(
    root: torch.nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None = None
) -> GraphModule:
    """Like `calque.trace` without examples; takes the arguments of `torch.fx.symbolic_trace`.

    Args:
        root: a module, a method of a module, or a function.
        concrete_args: values for some parameters; `calque.tracing.fx.PH` stands for a proxy
            inside a container.

    Returns:
        A `torch.fx.GraphModule` that shares the parameters of `root`.

    Raises:
        TraceError: the program does something that no graph can repeat; the error names its line.

    >>> import calque, torch
    >>> calque.symbolic_trace(lambda x: x + torch.ones(2))(torch.ones(2))
    tensor([2., 2.])
    """
    try:
        with deeper_recursion():
            return _graph_module(SymbolicTracer, root, concrete_args)
    except Exception as error:
        tidy(error).__cause__ = None
        raise  # which adds no frame, unlike `raise error`


def _graph_module(
    make: Callable[[], SymbolicTracer], root: object, concrete_args: object
) -> GraphModule:
    root = _uncompiled(root)
    name = type(root).__name__ if isinstance(root, torch.nn.Module) else _name(root)
    method = "forward"
    if isinstance(root, types.MethodType) and isinstance(root.__self__, torch.nn.Module):
        method = root.__name__
        root = root.__self__
    elif not isinstance(root, (torch.nn.Module, types.FunctionType)):
        if not callable(root):
            raise SymbolicTraceError(
                f"{root!r} is not callable.\nTrace a function, a module, or another callable "
                "object."
            )
        root = function_of(root)
    if isinstance(root, LazyModuleMixin) and root.has_uninitialized_params():
        raise SymbolicTraceError(
            f"{name} has uninitialized parameters, which get their shapes in its first call.\n"
            "Call it once before tracing it."
        )

    def tracer_of_method() -> SymbolicTracer:
        tracer = make()
        tracer.traced_func_name = method
        return tracer

    capture = Capture(tracer_of_method, root, concrete_args)
    graph = capture.graph()
    graph._tracer_cls = Restoring  # the tracer that unpickling uses
    members = source_of_members(capture.tracer)
    module = make_graph_module(members, graph, name)
    for path in in_branches(module, members):
        copy_attr(members, module, path)
    return in_order_of(module, members)


def _uncompiled(root: object) -> Any:
    """Returns the module or function that `calque.jit` or `torch.compile` has wrapped."""
    if isinstance(root, torch.jit.ScriptModule):
        return Scripted(root)
    if isinstance(root, torch.nn.Module):
        return root._modules.get("_orig_mod", root)
    if isinstance(root, types.FunctionType | types.MethodType):
        return root
    return getattr(root, "__wrapped__", root)


def _name(function: object) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() else "Traced"
