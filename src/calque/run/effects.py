"""What a traced function changes in Python: plain values and tensors that its names hold.

The function is run once, its program many times: what it assigned is put back when the trace ends
and assigned again by each call.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from calque.run import signature
from calque.run.places import MISSING, SCALARS, Holder


@dataclass(frozen=True)
class Rebound:
    """A place that the function gave a new tensor, or a container of tensors.

    Attributes:
        holder, key: the place.
        before: the leaves that it held: they are read anew at each call.
        spec_before: their container.
        after: the leaves that it was given.
        spec_after: their container.
    """

    holder: Holder
    key: Any
    before: list[Any]
    spec_before: Any
    after: list[Any]
    spec_after: Any


class PythonState:
    """The holders of a trace, to restore after an error or compare after it.

    Attributes:
        effects: after `collect`, the plain values that the function assigned: holder, key, value.
    """

    def __init__(self, holders: Iterable[Holder]) -> None:
        self.holders = list(holders)
        self.effects: list[tuple[Holder, Any, Any]] = []

    def restore(self) -> None:
        """Put everything back."""
        for holder in self.holders:
            holder.restore()

    def collect(self) -> list[Rebound]:
        """Take note of every assignment; those of tensors are undone and given back."""
        rebound = []
        for holder in self.holders:
            now = holder.items()
            grown = isinstance(holder.container, list) and len(now) != len(holder.before)
            if grown:
                holder.before = now
                continue
            for key, value in now.items():
                before = holder.before.get(key, MISSING)
                if value is before:
                    continue
                if type(value) in SCALARS:
                    self.effects.append((holder, key, value))
                    holder.put(key, before)
                elif (leaves := signature.tensors_in(value)) is not None:
                    old = signature.tensors_in(before) or ([], None)
                    rebound.append(Rebound(holder, key, *old, *leaves))
                    holder.put(key, before)
                else:
                    holder.before[key] = value
        return rebound

    def replay(self) -> None:
        """Assign the plain values as the function would."""
        for holder, key, value in self.effects:
            holder.put(key, value)
