"""What a traced function leaves in Python's state: tensors that have no value, and die with it."""

from collections.abc import Callable
from typing import Any

import jax
import torch

from calque.errors import TraceError
from calque.federated.constants import Constants
from calque.state import MISSING, Row, Snapshot


def put_back(snapshot: Snapshot) -> None:
    """Put back what a function has made hold tensors of its trace.

    Modules keep such for someone who looks at them while the function runs, as hooks do.

    Raises:
        TraceError: something is read, and given another tensor: it would be kept from call to call.
    """
    _settle(snapshot, lambda row, key: _is_read(row.before.get(key)))


def refuse(snapshot: Snapshot) -> None:
    """As `put_back`, but what is no module, nor in one, must not be given tensors of the trace."""
    of_modules = {
        id(value)
        for row in snapshot.rows.values()
        if _is_of_module(row)
        for value in row.before.values()
    }

    def is_lost(row: Row, key: Any) -> bool:
        own = _is_of_module(row) or id(row.owner) in of_modules
        return not own or _is_read(row.before.get(key))

    _settle(snapshot, is_lost)


def _settle(snapshot: Snapshot, is_lost: Callable[[Row, Any], bool]) -> None:
    lost: list[str] = []
    for row, now in list(snapshot.changed()):
        keys = [key for key, value in now.items() if _is_new(row, key, value)]
        if not (keys and row.restored and row.settable):
            continue
        lost += [row.name(key) for key in keys if is_lost(row, key)]
        row.restore()
    if lost:
        raise TraceError(
            f"{lost[0]} is given a tensor by the function, but lives outside it. The tensor would "
            "be lost, because the function runs only while it is traced, not at each call.\n"
            "A module keeps state in a buffer (register_buffer), which federated.learning trains; "
            "a local function should take such state as an argument and return it."
        )


def _is_new(row: Row, key: Any, value: Any) -> bool:
    return value is not row.before.get(key, MISSING) and _is_of_trace(value)


def _is_of_module(row: Row) -> bool:
    return row.attribute and {"_modules", "_parameters"} <= row.before.keys()


def _is_read(old: Any) -> bool:
    return isinstance(old, torch.Tensor) and Constants.have_read(old)


def _is_of_trace(value: Any) -> bool:
    """Returns True for a tensor that has no value, or a container of such."""
    if isinstance(value, dict | list | tuple):
        return any(map(_is_of_trace, value.values() if isinstance(value, dict) else value))
    if not (isinstance(value, torch.Tensor) and value.device.type == "jax"):
        return False
    cell = getattr(value.untyped_storage(), "cell", None)
    return cell is not None and isinstance(cell.array, jax.core.Tracer)
