"""Which numbers of an optimizer's param groups are inputs of a program, and which are compared.

A learning rate is read from its group at each call. Where the traced function assigns it itself, or
reads it outside of the optimizer's step, it is state as any other.
"""

from collections.abc import Collection, Iterable
from types import CodeType
from typing import Any

from calque.jitting.optimizers import is_number
from calque.state import MISSING, Row, Snapshot, same_value
from calque.state.names import assigns_item
from calque.state.whose import Owner


class Assigned(BaseException):
    """A step has assigned numbers that were lent to it: the function is traced again without them.

    Attributes:
        places: which, as (id of the group, key).
    """

    def __init__(self, places: Collection[tuple[int, str]]) -> None:
        super().__init__()
        self.places: frozenset[tuple[int, str]] = frozenset(places)


class Numbers:
    """The numbers of the optimizers that step in one trace.

    Args:
        snapshot: the state.

    Attributes:
        assigned: those that an optimizer's step was seen to assign (its hooks, perhaps), as (id of
            the group, key).
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.assigned: Collection[tuple[int, str]] = ()
        self._snapshot = snapshot
        self._left_out: list[Row] = []

    def leave_out(self, groups: Iterable[dict[str, Any]]) -> None:
        """The numbers of an optimizer that steps are inputs: no row compares them."""
        for group in groups:
            row = self._snapshot.rows.get(id(group))
            if row is not None:
                own = self.own(group)
                row.ignored = {k for k, v in group.items() if is_number(v) and k not in own}
                self._left_out.append(row)

    def compare_read(self, in_steps: Collection[CodeType]) -> None:
        """Numbers of optimizers that code reads by itself are compared, though they are inputs.

        Args:
            in_steps: code that ran in a step of an optimizer, where it was lent the inputs.
        """
        ran = self._snapshot.codes.items()
        codes = [c for c, owner in ran if owner >= Owner.PACKAGE and c not in in_steps]
        for row in self._left_out:
            read = {key for key in row.ignored if any(key in code.co_consts for code in codes)}
            row.ignored = set(row.ignored) - read

    def own(self, group: dict[str, Any]) -> set[str]:
        """The keys of a param group whose numbers the function itself assigns.

        Such a number is none that each call brings: it is compared, and assigned by each call.
        """
        row = self._snapshot.rows.get(id(group))
        if row is None:
            return set()
        codes = [code for code, owner in self._snapshot.codes.items() if owner >= Owner.PACKAGE]
        return {
            key
            for key, value in group.items()
            if is_number(value)
            and (
                (id(group), key) in self.assigned
                or not same_value(row.before.get(key, MISSING), value)
                or any(assigns_item(code, key) for code in codes)
            )
        }
