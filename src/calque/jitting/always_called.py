"""Hooks that PyTorch runs even if a module raises (`always_call=True`).

PyTorch skips them while a function is traced, and a call of a jitted function that raises is undone
as a whole: what such a hook would do on an error is refused, not lost.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from torch.nn import Module

from calque.errors import CalqueError, TraceError
from calque.upstream import torch_internals


def refusal(error: BaseException, modules: Iterable[Module]) -> TraceError | None:
    """Returns the exception to raise instead of the function's own; None to keep that one.

    Args:
        error: what the function raised.
        modules: those that it calls.
    """
    if not isinstance(error, Exception) or isinstance(error, CalqueError):
        return None
    hook = next(_hooks(modules), None)
    if hook is None:
        return None
    code = getattr(hook, "__code__", None)
    place = f"{code.co_filename}:{code.co_firstlineno}: " if code else ""
    return TraceError(
        f"{place}a forward hook with always_call=True has to run after an error "
        f"({type(error).__name__}: {error}), but a call of a jitted function that raises must "
        "not change anything.\nRaise the error outside the jitted function, or run this call "
        "without calque.jit."
    )


def _hooks(modules: Iterable[Module]) -> Iterator[Any]:
    owners = [(m._forward_hooks_always_called, m._forward_hooks) for m in modules]
    owners.append(
        (
            torch_internals.nn_module._global_forward_hooks_always_called,
            torch_internals.nn_module._global_forward_hooks,
        )
    )
    for called, hooks in owners:
        yield from (hooks[key] for key in called if key in hooks)
