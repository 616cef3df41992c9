"""Patches for functions that read PyTorch's settings, which modes do not intercept.

The traced path may depend on the setting, and the graph may run under a different one. So the graph
checks that the setting is the same, or contains both branches.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from calque.tracing.core.active import current_trace
from calque.tracing.core.origins import is_engine
from calque.tracing.core.patching import Patches

_ASKED = (
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "is_autocast_enabled",
    "get_autocast_dtype",
    "get_default_dtype",
)


AMBIENT: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "torch.default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch.default_device": (torch.get_default_device, torch.set_default_device),
    "torch.deterministic": (
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
    ),
    "torch.num_threads": (torch.get_num_threads, torch.set_num_threads),
}
"""Settings that a program may change permanently, but a graph does not."""


def hold_settings(patches: Patches) -> None:
    """Patch the functions that read settings, so that the trace knows which ones the program
    reads.
    """
    for name in _ASKED:
        patches.hold(torch, name, functools.partial(_traced, name))


def tracer_of_program(depth: int = 2) -> Any:
    """Returns this thread's strict tracer if the call comes from the program itself; else None.

    Args:
        depth: how many frames above the caller's that call is.
    """
    trace = current_trace()
    tracer = None if trace is None else trace.tracer
    if tracer is None or tracer.contexts is None:
        return None
    caller = sys._getframe(depth).f_code.co_filename
    return None if is_engine(caller) else tracer


def _decided(tracer: Any, question: Callable[[], bool]) -> bool:
    """Returns True if gradients are enabled; traces both branches, since most programs do not
    depend on it.

    All calls count as one condition.
    """
    if tracer.gradients is None:
        node = tracer.create_node("call_function", question, (), {})
        tracer.optional[node] = None
        tracer.gradients = tracer.path.decide(tracer, node, False)
    return tracer.gradients


def _traced(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def ask(*args: Any) -> Any:
        answer = original(*args)
        tracer = tracer_of_program()
        if tracer is None or tracer.contexts.are_open():
            return answer
        if name == "is_grad_enabled" and tracer.path is not None:
            return _decided(tracer, original)
        tracer.assumed.settings[name, args] = answer
        return answer

    return ask
