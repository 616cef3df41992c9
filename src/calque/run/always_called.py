"""Hooks that PyTorch runs even where a module raises (`always_call=True`).

Eagerly what such a hook does to Python's state outlives the error. A call of a jitted function that
raises is taken back as a whole, and the hook's part of it with it: that is refused, not lost.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from torch.nn import Module
from torch.nn.modules import module as module_of_torch

from calque.diagnostics import CalqueError, TraceError
from calque.state import Snapshot


def refusal(
    error: BaseException, modules: Iterable[Module], snapshot: Snapshot
) -> TraceError | None:
    """What to raise in the place of an error of the function's; None for the error itself.

    Args:
        error: what the function raised.
        modules: those that it calls.
        snapshot: the state, changed as it was when the error left the function.
    """
    if not isinstance(error, Exception) or isinstance(error, CalqueError):
        return None
    hook = next(_hooks(modules), None)
    if hook is None or not any(row.restored for row, _ in snapshot.changed()):
        return None
    code = getattr(hook, "__code__", None)
    place = f"{code.co_filename}:{code.co_firstlineno}: " if code else ""
    return TraceError(
        f"{place}a forward hook with always_call=True has run because of an error "
        f"({type(error).__name__}: {error}), and what a call of a jitted function changes is "
        "taken back when it raises.\nRaise the error outside of the jitted function, or run this "
        "call without calque.jit."
    )


def _hooks(modules: Iterable[Module]) -> Iterator[Any]:
    owners = [(m._forward_hooks_always_called, m._forward_hooks) for m in modules]
    owners.append(
        (
            module_of_torch._global_forward_hooks_always_called,
            module_of_torch._global_forward_hooks,
        )
    )
    for called, hooks in owners:
        yield from (hooks[key] for key in called if key in hooks)
