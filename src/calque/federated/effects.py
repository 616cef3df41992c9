"""Handles tensors without values that a traced function stores in Python state.

A function runs only while it is traced. So its side effects must not affect its next call, which is
checked (`interop.repeated_calls`).
"""

import dis
from collections.abc import Callable
from typing import Any

import jax
import torch

from calque.errors import Origin, TraceError
from calque.errors.frames import is_library
from calque.federated.closures import GENERATORS, state_of, states_of_all
from calque.interop.functional import Repeats
from calque.state import MISSING, Row, Snapshot

_MANY = 2**10 * 3**2 * 5**3 * 7
"""The number of calls after which a counter is tried: a number with many divisors, so that most
periods of counters divide it.
"""


def put_back(snapshot: Snapshot, repeats: Repeats) -> None:
    """Restore the state in which a function has stored tensors of its trace.

    Modules may store such tensors for code that reads them while the function runs, such as hooks.

    Args:
        snapshot: the state before the call.
        repeats: returns True if a second call would compute the same; see `Functional.settle`.

    Raises:
        TraceError: it would not, because the next call reads the changed state.
    """
    _settle(snapshot, repeats, lambda row: False)


class Draws:
    """Refuses random numbers of Python and NumPy in a module.

    They would be drawn once, while the module is traced, and be the same in each call.

    Args:
        module: the module, which may have its own generators.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._before: dict[str, bytes] = {}

    def note(self) -> None:
        """Record the states of generators before a trace."""
        self._before = self._states()

    def settle(self, snapshot: Snapshot, repeats: Repeats) -> None:
        """Like `put_back`, after a trace that began with `note`."""
        drawn = [name for name, state in self._states().items() if state != self._before.get(name)]
        if drawn:
            same = repeats(None)
            snapshot.restore()
            if not same:
                raise TraceError(
                    f"the module or its loss draws from {drawn[0]!r} while it is traced, so the "
                    "numbers would be the same in every step.\nDraw with PyTorch (torch.rand), "
                    "which gives different numbers in each step and for each client."
                )
        put_back(snapshot, repeats)

    def _states(self) -> dict[str, bytes]:
        own = {
            f"{name}.{key}".lstrip("."): value
            for name, part in self._module.named_modules()
            for key, value in vars(part).items()
            if isinstance(value, GENERATORS)
        }
        return {name: state_of(one) for name, one in own.items()} | states_of_all()


def refuse(snapshot: Snapshot, repeats: Repeats) -> None:
    """Like `put_back`, but refuses tensors of the trace stored outside modules."""
    of_modules = {
        id(value)
        for row in snapshot.rows.values()
        if _is_of_module(row)
        for value in row.before.values()
    }
    _settle(
        snapshot, repeats, lambda row: not _is_of_module(row) and id(row.owner) not in of_modules
    )


def _settle(snapshot: Snapshot, repeats: Repeats, is_outside: Callable[[Row], bool]) -> None:
    changed = [
        (row, now, [key for key, value in now.items() if _is_new(row, key, value)])
        for row, now in list(snapshot.changed())
        if row.restored and row.settable
    ]
    if not changed:
        return
    snapshot.restore()
    lost = [(row, key) for row, _, keys in changed for key in keys if is_outside(row)]
    if lost:
        raise _lost(
            snapshot, *lost[0], "is assigned a tensor by the function, but lives outside it"
        )
    if not _same_whenever_called(snapshot, [(row, now) for row, now, _ in changed], repeats):
        row, now, keys = max(changed, key=lambda one: bool(one[2]))
        key = keys[0] if keys else _changed_key(row, now)
        raise _lost(snapshot, row, key, "is changed by the function and read by its next call")
    for row, now, keys in changed:
        if not keys:
            row.assign(now)


def _same_whenever_called(
    snapshot: Snapshot, changed: list[tuple[Row, dict[Any, Any]]], repeats: Repeats
) -> bool:
    """Returns True if the next call, and a call after many more, compute the same."""
    counts = [
        (row, key, row.before[key], value)
        for row, now in changed
        for key, value in now.items()
        if type(value) is type(row.before.get(key)) is int and value != row.before[key]
    ]

    def later(calls: int) -> Callable[[], None]:
        def count_on() -> None:
            for row, key, first, second in counts:
                row.put(key, first + (second - first) * calls)

        return count_on

    # Code may increment a counter before comparing it, so try one call earlier too.
    tried = [None, *map(later, (_MANY, _MANY - 1) if counts else ())]
    for between in tried:
        same = repeats(between)
        snapshot.restore()
        if not same:
            return False
    return True


def _lost(snapshot: Snapshot, row: Row, key: object, what: str) -> TraceError:
    """Returns the error for state that would have to be kept between calls."""
    line = _written_at(snapshot, key) if row.attribute else None
    at = "" if line is None else f" ({line})"
    return TraceError(
        f"{row.name(key)}{at} {what}. It would be lost, because the function runs only while it is "
        "traced, not at each call.\nA module keeps state in a buffer (register_buffer), which "
        "federated.learning trains; a local function should take such state as an argument and "
        "return it."
    )


def _written_at(snapshot: Snapshot, name: object) -> Origin | None:
    """Returns the user's line that assigned an attribute, among the code that ran."""
    for code in snapshot.codes:
        if is_library(code.co_filename):
            continue
        for step in dis.get_instructions(code):
            if step.opname == "STORE_ATTR" and step.argval == name and step.positions is not None:
                return Origin(code.co_filename, step.positions.lineno or 0, code.co_name)
    return None


def _changed_key(row: Row, now: dict[Any, Any]) -> Any:
    """Returns the first key of a row whose value has changed or is missing."""
    found = row.difference(now)
    return next(iter({**row.before, **now})) if found is None else found[0]


def _is_new(row: Row, key: object, value: object) -> bool:
    return value is not row.before.get(key, MISSING) and _is_of_trace(value)


def _is_of_module(row: Row) -> bool:
    return row.attribute and {"_modules", "_parameters"} <= row.before.keys()


def _is_of_trace(value: object) -> bool:
    """Returns True for a tensor without a value, or a container of such tensors."""
    if isinstance(value, dict | list | tuple):
        return any(map(_is_of_trace, value.values() if isinstance(value, dict) else value))
    if not (isinstance(value, torch.Tensor) and value.device.type == "jax"):
        return False
    cell = getattr(value.untyped_storage(), "cell", None)
    return cell is not None and isinstance(cell.array, jax.core.Tracer)
