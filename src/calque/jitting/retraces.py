"""Warnings about functions that are traced repeatedly, with the difference and a remedy."""

from collections.abc import Callable, Iterable
from typing import Any

from calque.errors import RetraceWarning
from calque.errors.warning import warn_of_function
from calque.program.signature import Attributes, Called

WARNED = (4, 16)
"""The numbers of traces at which a warning is given."""

NEEDED = "code needs the value of one of these numbers, which has changed"
ON_CPU = "values of CPU tensors"

_NUMBER = (
    'Pass the number as a tensor, `torch.tensor(value, device="jax")`: it is then an input, and '
    "one program serves all its values."
)
_SHAPE = (
    "Pad the tensor to a few sizes, or compile with torch.compile(fn, backend='calque', "
    "dynamic=True, options={'buckets': 'pow2'}), which pads automatically."
)
_OTHER = (
    "Pass the same kinds of arguments at each call, and keep what changes in a tensor. "
    "fn.explain() lists every trace and its reason."
)
_HOST = (
    "computes with CPU tensors, whose values are compiled into the program, so each new value "
    "needs a new trace.\n"
    'Move the model and its inputs to the device: `model.to("jax")`, `x.to("jax")`. Lengths for '
    "`pack_padded_sequence` have to stay on the CPU: instead, leave the sequences padded and "
    "mask the layers' outputs, `torch.arange(n) < lengths[:, None]`, so that one program serves "
    "all lengths."
)


def remedy(before: Any, now: Any) -> str:
    """Returns advice about two signatures that differ.

    Args:
        before, now: keys of two calls (`calque.program.signature`); None if there was no call.
    """
    if before is None or len(before) != len(now):
        return _OTHER
    for a, b in zip(before[3:], now[3:]):
        if a == b or not (isinstance(a, tuple) and isinstance(b, tuple)):
            continue
        if len(a) == len(b) == 2 and a[0] in (int, float) and b[0] in (int, float):
            return _NUMBER
        if _is_tensors(a) and _is_tensors(b) and a[1] != b[1]:
            return _SHAPE
    return _OTHER


def _is_tensors(key: Any) -> bool:
    return len(key) >= 6 and not isinstance(key, Attributes | Called)


class Retraces:
    """Warns once at each number of traces of a jitted function in `WARNED`."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._said_host = False
        self._remedy = _OTHER

    def compare(self, before: object, now: object) -> None:
        """Record the difference between the signatures of two calls, before a trace."""
        self._remedy = remedy(before, now)

    def traced(self, history: list[str], guarded: Iterable[str], compilations: int) -> None:
        """Handle a finished trace.

        Args:
            history: the reason for each trace, including this one.
            guarded: descriptions of the program's guards.
            compilations: the number of programs that were compiled.
        """
        remedy, self._remedy = self._remedy, _OTHER
        if history[-1].startswith(NEEDED):
            remedy = _NUMBER
        if len(history) < 2:
            return
        if ON_CPU in guarded and not self._said_host:
            self._said_host = True
            self._warn(_HOST)
        elif len(history) in WARNED and not self._said_host:
            programs = "one program" if compilations == 1 else f"{compilations} programs"
            self._warn(
                f"was traced {len(history)} times, and {programs} compiled; the last time because "
                f"{history[-1]}.\n{remedy}"
            )

    def _warn(self, text: str) -> None:
        warn_of_function(self._fn, text, RetraceWarning)
