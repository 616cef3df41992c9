"""Hooks that PyTorch runs even where a module raises (`always_call=True`).

PyTorch leaves them out while a function is traced, and a call of a jitted function that raises is
taken back as a whole: what such a hook would have done for the error is refused, not lost.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from torch.nn import Module
from torch.nn.modules import module as module_of_torch

from calque.errors import CalqueError, TraceError


def refusal(error: BaseException, modules: Iterable[Module]) -> TraceError | None:
    """What to raise in the place of an error of the function's; None for the error itself.

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
        f"{place}a forward hook with always_call=True has to run for an error "
        f"({type(error).__name__}: {error}), and a call of a jitted function that raises changes "
        "nothing.\nRaise the error outside of the jitted function, or run this call without "
        "calque.jit."
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
