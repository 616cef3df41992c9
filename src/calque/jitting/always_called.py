"""Hooks that PyTorch runs even if a module raises (`always_call=True`).

PyTorch skips them while a function is traced, and a jitted call that raises is undone completely,
so the effects of such a hook after an error would be lost. It is refused instead.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from torch.nn import Module

from calque.errors import CalqueError, TraceError
from calque.upstream import torch_internals


def refusal(error: BaseException, modules: Iterable[Module]) -> TraceError | None:
    """Returns the exception to raise instead of the function's own; None to keep the original.

    Args:
        error: the exception that the function raised.
        modules: the modules that it calls.
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
