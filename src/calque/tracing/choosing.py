"""Chooses the tracer that makes a graph: the requested one, or the first that is faithful."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch.fx.graph_module import GraphModule

from calque.errors import TraceError, tidy
from calque.errors.handlers import is_of_handler
from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.record.api import run_once
from calque.tracing.record.keeping import Keeper
from calque.upstream.torch_internals import pytree

TracerName = Literal["symbolic", "record", "export", "auto"]
Trace = Callable[[], GraphModule]

_log = logging.getLogger("calque.tracing")
_ORDER = ("symbolic", "record")


def by_tracer(
    name: TracerName, symbolic: Trace, root: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> GraphModule:
    """Returns the graph of a tracer; its `meta` says which tracer made it, and why others refused.

    Args:
        name: the tracer; `"auto"` is the first of `_ORDER` that does not refuse.
        symbolic: traces on proxies.
        root, args, kwargs: the program and an example call.

    Raises:
        TraceError: the tracer refuses the program, or each of them does.
    """
    tracers: dict[str, Trace] = {
        "symbolic": symbolic,
        "record": lambda: _recorded(root, args, kwargs),
        "export": lambda: _exported(root, args, kwargs),
    }
    if name not in (*tracers, "auto"):
        raise ValueError(f"tracer must be one of {', '.join((*tracers, 'auto'))}, not {name!r}")
    if name not in ("symbolic", "auto") and not (args or kwargs):
        raise TypeError(f"tracer={name!r} needs example inputs")
    if name != "auto":
        graph, refused = tracers[name](), {}
    else:
        order = _ORDER if args or kwargs else _ORDER[:1]
        name, graph, refused = _first({each: tracers[each] for each in order})
    graph.meta["calque.tracer"] = name
    graph.meta["calque.refused"] = refused
    return graph


def _first(tracers: dict[str, Trace]) -> tuple[Any, GraphModule, dict[str, str]]:
    """Returns the first graph that a tracer can make, its tracer, and why earlier ones refused."""
    refused: dict[str, str] = {}
    errors: list[Exception] = []
    for name, tracer in tracers.items():
        try:
            graph = tracer()
        except Exception as error:
            if is_of_handler(error):
                raise
            refused[name] = f"{type(error).__name__}: {error}"
            errors.append(tidy(error))
            continue
        for other, why in refused.items():
            _log.info("traced by %r; %r refused: %s", name, other, why)
        return name, graph, refused
    last = errors[-1]
    if len(errors) == 1 or not isinstance(last, TraceError):
        raise last  # the program's own exception
    listed = "\n".join(f"{name}: {why}" for name, why in refused.items())
    raise SymbolicTraceError(f"no tracer can capture this program faithfully.\n{listed}") from None


def _recorded(root: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GraphModule:
    """Returns the graph of a run, and undoes what the run has changed."""
    owner = getattr(root, "__self__", root)
    with _state_put_back(owner), torch.random.fork_rng(devices=()):
        args, kwargs = _copies((args, kwargs))
        return run_once(root, args, kwargs, False, Keeper((), {}), put_back=True).graph("module")


def _copies(given: object) -> Any:
    """Returns the arguments with copies of their tensors; a tensor passed twice is copied once."""
    made: dict[int, torch.Tensor] = {}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            copy = tensor.detach().clone()
            made[id(tensor)] = copy.requires_grad_(tensor.requires_grad)
        return made[id(tensor)]

    return pytree.tree_map_only(torch.Tensor, copied, given)


@contextlib.contextmanager
def _state_put_back(owner: object) -> Iterator[None]:
    """A context manager that restores the values and gradients of parameters and buffers."""
    members = [*owner.parameters(), *owner.buffers()] if isinstance(owner, torch.nn.Module) else []
    gradients = [(tensor, tensor.grad) for tensor in members if tensor.is_leaf]
    members += [gradient for _, gradient in gradients if gradient is not None]
    before = [(tensor, tensor.detach().clone()) for tensor in members]
    try:
        yield
    finally:
        for tensor, gradient in gradients:
            tensor.grad = gradient
        with torch.no_grad():
            for tensor, value in before:
                # Compared by value: batch_norm writes without incrementing the version.
                if not torch.equal(tensor, value):
                    tensor.copy_(value)


def _exported(root: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GraphModule:
    """`torch.export`'s graph of a module, or of a function as a module."""
    module = root if isinstance(root, torch.nn.Module) else _Function(root)
    return torch.export.export(module, args, kwargs).module()  # type: ignore[return-value]


class _Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        return self._function(*args, **kwargs)
