"""Which numbers of an optimizer's param groups are inputs of a program, and which are compared.

A learning rate is read from its group at each call. Where the traced function assigns it itself, or
reads it outside of the optimizer's step, it is state as any other.
"""

import functools
import inspect
from collections.abc import Collection
from types import CodeType, FunctionType
from typing import Any

from torch.optim import Optimizer

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

    def leave_out(self, optimizer: Optimizer) -> None:
        """The numbers of an optimizer that steps are inputs: no row compares them."""
        for group in optimizer.param_groups:
            row = self._snapshot.rows.get(id(group))
            if row is not None:
                own = self.own(optimizer, group)
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

    def own(self, optimizer: Optimizer, group: dict[str, Any]) -> set[str]:
        """The keys of a param group whose numbers the function itself, or the step, assigns.

        Such a number is none that each call brings: it is compared, and assigned by each call. If
        the step assigns one, it computes it from the others, so that all are compared.
        """
        row = self._snapshot.rows.get(id(group))
        if row is None:
            return set()
        codes = [code for code, owner in self._snapshot.codes.items() if owner >= Owner.PACKAGE]
        numbers = [key for key, value in group.items() if is_number(value)]
        of_step = step_codes(type(optimizer))
        is_assigned = any(assigns_item(code, key) for code in of_step for key in numbers)
        if is_assigned or any(owner == id(group) for owner, _ in self.assigned):
            return set(numbers)
        return {
            key
            for key in numbers
            if (
                not same_value(row.before.get(key, MISSING), group[key])
                or any(assigns_item(code, key) for code in codes)
            )
        }


@functools.lru_cache(maxsize=256)
def step_codes(kind: type[Optimizer]) -> tuple[CodeType, ...]:
    """The code of an optimizer's step, and of the methods and functions that it names.

    PyTorch's own optimizers assign no numbers of their groups.
    """
    if kind.step.__module__.startswith("torch."):
        return ()
    found: dict[CodeType, None] = {}
    stack: list[Any] = [inspect.unwrap(kind.step)]
    while stack:
        function = stack.pop()
        if isinstance(function, staticmethod | classmethod):
            function = function.__func__
        if not isinstance(function, FunctionType) or function.__code__ in found:
            continue
        found[function.__code__] = None
        module = function.__module__
        for name in function.__code__.co_names:
            named = inspect.getattr_static(kind, name, function.__globals__.get(name))
            if getattr(named, "__module__", module) == module:
                stack.append(named)
    return tuple(found)
