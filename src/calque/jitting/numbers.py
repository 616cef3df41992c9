"""Decides which numbers of optimizers are inputs of a program and which are guarded.

A learning rate is read from its group in each call. If the traced function assigns it, or reads it
outside the optimizer's step, it is ordinary state.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from torch.optim import Optimizer

from calque.jitting.group_reads import reads_all
from calque.program.traced_numbers import Place
from calque.state import MISSING, Row, Snapshot, same_value
from calque.state.names import assigns_item
from calque.state.ownership import Owner, owner_of_name

Group = dict[str, Any]
FLOATS = frozenset((float, np.float32, np.float64))


class SteppedNumbers:
    """The numbers of the optimizers that step in one trace.

    Args:
        snapshot: the state.

    Attributes:
        kept_plain: variables whose numbers an earlier trace could not use as inputs.
        computed: the assignments of each call: the row, the key, and a function that returns the
            number.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.kept_plain: Collection[Place] = ()
        self.computed: list[tuple[Row, Any, Callable[[], Any]]] = []
        self._snapshot = snapshot
        self._left_out: list[Row] = []
        self._groups: set[Row] = set()

    def row_of(self, holder: object) -> Row | None:
        """Returns the row of a dict."""
        return self._snapshot.rows.get(id(holder))

    def traced_keys(self, optimizer: Optimizer, holder: Group, is_group: bool) -> set[str]:
        """Returns the keys of a dict whose numbers are inputs, which the rows do not compare.

        Args:
            optimizer: the optimizer.
            holder: one of its param groups, or the state of a parameter.
            is_group: whether it is a param group.
        """
        found = self._of_group(optimizer, holder) if is_group else self._of_state(optimizer, holder)
        row = self.row_of(holder)
        if row is not None and found:
            row.ignored = found.union(row.ignored)
            self._left_out.append(row)
            if is_group:
                self._groups.add(row)
        return found

    def _of_group(self, optimizer: Optimizer, group: Group) -> set[str]:
        own = self._own(optimizer, group)
        assigned = _assigned_by(optimizer)
        return {
            key
            for key, value in group.items()
            if key not in own
            and (is_number(value) or (type(value) is int and key in assigned))
            # What a step assigns would become a number of Python's.
            and not (type(value) in (np.float32, np.float64) and key in assigned)
        }

    def _of_state(self, optimizer: Optimizer, state: Group) -> set[str]:
        row = self.row_of(state)
        if row is None:
            return set()
        assigned = _assigned_by(optimizer)
        return {
            key
            for key, value in state.items()
            if (isinstance(key, str) and key in assigned and type(value) in (int, float))
            and (same_value(row.before.get(key, MISSING), value))
            and (id(state), key) not in self.kept_plain
        }

    def compare_read(self, reported: bool) -> None:
        """Guard inputs that code also reads outside the optimizer's step.

        Args:
            reported: whether an optimizer has reported all of them.
        """
        codes = self._outside_of_steps()
        for row in self._left_out:
            name = "param_groups" if row in self._groups else "state"
            if reported or self._may_read(name, codes):
                row.ignored = ()
                continue
            read = {key for key in row.ignored if any(key in code.co_consts for code in codes)}
            row.ignored = set(row.ignored) - read

    def leave_out_idle(self, stepped: Collection[Optimizer], reported: bool) -> None:
        """Ignore the numbers of optimizers that do not step in the trace, if no code reads them.

        For example, a schedule may change the learning rate between calls that only accumulate
        gradients.

        Args:
            stepped: the optimizers that stepped.
            reported: whether an optimizer has reported all of them.
        """
        snapshot = self._snapshot
        if reported or snapshot.namespaces.schedulers_run:
            return
        codes = [c for c, owner in snapshot.codes.items() if owner >= Owner.PACKAGE]
        held = [one for one in snapshot.known.values() if issubclass(type(one), Optimizer)]
        for optimizer in (one for one in held if one not in stepped):
            if not self._may_read("param_groups", codes):
                self._leave_out_unread(optimizer, vars(optimizer).get("param_groups", ()), codes)
            states = vars(optimizer).get("state")
            if isinstance(states, dict) and not self._may_read("state", codes):
                self._leave_out_unread(optimizer, states.values(), codes)

    def _may_read(self, name: str, codes: Collection[CodeType]) -> bool:
        """Returns True if code may read anything reachable through an attribute of an optimizer."""
        return self._snapshot.namespaces.computes(name) or any(reads_all(c, name) for c in codes)

    def _leave_out_unread(
        self, optimizer: Optimizer, holders: Iterable[Any], codes: Collection[CodeType]
    ) -> None:
        assigned = _assigned_by(optimizer)
        for holder in holders:
            row = self.row_of(holder)
            if row is not None and type(holder) is dict:
                row.ignored = set(row.ignored).union(
                    key
                    for key, value in holder.items()
                    if is_number(value) or (type(value) is int and key in assigned)
                    if not any(key in code.co_consts for code in codes)
                )

    def _outside_of_steps(self) -> list[CodeType]:
        code = self._snapshot.code
        in_steps = code.in_steps - code.outside  # code of other threads is in neither
        return [c for c, o in code.owners.items() if o >= Owner.PACKAGE and c not in in_steps]

    def _own(self, optimizer: Optimizer, group: Group) -> set[str]:
        """Returns the keys of a param group whose numbers the function itself assigns.

        Such a number is not an input: it is compared, and assigned by each call. If a hook of
        PyTorch's step assigns it, it may compute it from the other numbers, so all are compared.
        """
        kept_plain = {key for place, key in self.kept_plain if place == id(group)}
        numbers = {key for key, value in group.items() if is_number(value)}
        if kept_plain and is_pytorchs(optimizer):
            return numbers
        row = self.row_of(group)
        if row is None:
            return kept_plain
        codes = self._outside_of_steps()
        return kept_plain | {
            key
            for key, value in group.items()
            if (is_number(value) or type(value) is int)
            and (
                not same_value(row.before.get(key, MISSING), value)
                or any(assigns_item(code, key) for code in codes)
            )
        }


def is_number(value: Any) -> bool:
    """Returns True if a setting is a float or a tuple of floats, which are inputs of a program.

    So are NumPy's: a schedule may be an array of learning rates.
    """
    if type(value) is tuple and value:
        return all(type(v) in FLOATS for v in value)
    return type(value) in FLOATS


def is_pytorchs(optimizer: Optimizer) -> bool:
    """Returns True if an optimizer's step is one of PyTorch's own."""
    return type(optimizer).step.__module__.startswith("torch.")


_learned: WeakKeyDictionary[type[Optimizer], set[str]] = WeakKeyDictionary()
"""The keys to which steps of optimizers were seen to assign numbers."""


def learn(optimizer: Optimizer, keys: Collection[str]) -> None:
    """Record that an optimizer's step assigns numbers, which are inputs from now on."""
    _learned.setdefault(type(optimizer), set()).update(keys)


def _assigned_by(optimizer: Optimizer) -> Collection[str]:
    return assigned_keys(type(optimizer)) | _learned.get(type(optimizer), frozenset())


@functools.lru_cache(maxsize=256)
def assigned_keys(kind: type[Optimizer]) -> frozenset[str]:
    """Returns the keys by which an optimizer's step may assign items.

    PyTorch's own optimizers do not assign numbers in their groups.
    """
    codes = [function.__code__ for function in step_functions(kind)]
    keys = {key for code in codes for key in code.co_consts if isinstance(key, str)}
    return frozenset(key for key in keys if any(assigns_item(code, key) for code in codes))


@functools.lru_cache(maxsize=256)
def step_functions(kind: type[Optimizer]) -> tuple[FunctionType, ...]:
    """Returns an optimizer's step, and the methods and functions of its package that it refers
    to.
    """
    if kind.step.__module__.startswith("torch."):
        return ()
    root = kind.step.__module__.partition(".")[0]
    found: dict[FunctionType, None] = {}
    stack: list[Any] = [inspect.unwrap(kind.step)]
    while stack:
        function = stack.pop()
        if isinstance(function, staticmethod | classmethod):
            function = function.__func__
        if isinstance(function, FunctionType):
            function = inspect.unwrap(function)
        if not isinstance(function, FunctionType) or function in found:
            continue
        if owner_of_name(function.__module__ or "") < Owner.PACKAGE:
            continue
        found[function] = None
        for name in function.__code__.co_names:
            method = inspect.getattr_static(kind, name, None)
            other = function.__globals__.get(name)
            home = getattr(other, "__module__", None)
            if isinstance(home, str) and home.partition(".")[0] == root:
                stack.append(other)
            stack.append(method)
    return tuple(found)
