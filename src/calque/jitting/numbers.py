"""Decides which numbers of optimizers are inputs of a program and which are guarded.

A learning rate is read from its group in each call. If the traced function assigns it, or reads it
outside the optimizer's step, it is ordinary state.
"""

import dis
import functools
import inspect
import itertools
import re
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
from calque.state.ownership import Owner, owner_of_code, owner_of_name

Group = dict[str, Any]
FLOATS = frozenset((float, np.float64))


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
            and not (type(value) is np.float64 and key in assigned)
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

    NumPy's float64 is a float: a schedule may be an array of learning rates.
    """
    if type(value) is tuple and value:
        return all(type(v) in FLOATS for v in value)
    return type(value) in FLOATS


def is_pytorchs(optimizer: Optimizer) -> bool:
    """Returns True if an optimizer's step is one of PyTorch's own."""
    return type(optimizer).step.__module__.startswith("torch.")


@functools.lru_cache(maxsize=16384)
def asks_for_types(code: CodeType) -> bool:
    """Returns True if code may check the type of a number.

    A traced number has a different type, so `type(step) is int` would be False.

    >>> def scaled(step):
    ...     return step * 0.1 if type(step) is int else step
    >>> def named(self, step):
    ...     return type(self).__name__, step.device.type, isinstance(step, int)
    >>> asks_for_types(scaled.__code__), asks_for_types(named.__code__)
    (True, False)
    """
    if owner_of_code(code) < Owner.PACKAGE:
        return False
    if "SymFloat" in code.co_names:
        return True
    if "type" not in code.co_names:
        return False
    steps = list(dis.get_instructions(code))
    return any(
        one.opname == "LOAD_GLOBAL" and one.argval == "type" and after.argval != "self"
        for one, after in itertools.pairwise(steps)
    )


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


@functools.lru_cache(maxsize=16384)
def handles_errors(code: CodeType) -> bool:
    """Returns True if code may go on after an error, which a traced number may have caused.

    >>> def parsed(text):
    ...     try:
    ...         return int(text)
    ...     except ValueError:
    ...         return None
    >>> def explained(text):
    ...     try:
    ...         return int(text)
    ...     except ValueError as error:
    ...         raise ValueError(f"not a number: {text}") from error
    >>> handles_errors(parsed.__code__), handles_errors(explained.__code__)
    (True, False)
    """
    if "suppress" in code.co_names:
        return True
    steps = list(dis.get_instructions(code))
    for place, (one, after) in enumerate(itertools.pairwise(steps)):
        if one.opname == "CHECK_EG_MATCH":  # `except*`
            return True
        if one.opname == "CHECK_EXC_MATCH" and _may_end(steps, place + 2):
            return True  # the jump after it is taken by other errors
        is_bare = one.opname == "PUSH_EXC_INFO" and after.opname == "POP_TOP"
        if is_bare and _may_end(steps, place + 1):
            return True
    return False


def _may_end(steps: list[dis.Instruction], start: int) -> bool:
    """Returns True if code that runs from an instruction on may return, yield or go back, instead
    of raising an error.
    """
    places = {one.offset: place for place, one in enumerate(steps)}
    ahead, seen = [start], set[int]()
    while ahead:
        place = ahead.pop()
        if place in seen:
            continue
        seen.add(place)
        one = steps[place]
        if one.opname.startswith(("RETURN_V", "RETURN_C", "YIELD", "JUMP_BACK")):
            return True
        if one.opname in ("RAISE_VARARGS", "RERAISE"):
            continue
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            ahead.append(places[one.argval])
        if one.opname not in ("JUMP_FORWARD", "JUMP"):
            ahead.append(place + 1)
    return False


def tells_apart(code: CodeType, names: frozenset[str]) -> bool:
    """Returns True if code may tell traced numbers in variables from others.

    Args:
        code: the code.
        names: the last names of the variables.
    """
    return asks_for_types(code) or handles_errors(code) or asks_which(code, names)


def last_names(paths: Iterable[str]) -> frozenset[str]:
    """Returns the names of the last attributes, keys or lists in the paths of variables.

    >>> sorted(last_names(["self.step", "state['lr']", "self.counts[0]"]))
    ['counts', 'lr', 'step']
    """
    found = (re.findall(r"[^\W\d]\w*", path) for path in paths)
    return frozenset(names[-1] for names in found if names)


_ENDS = ("STORE", "POP", "JUMP", "RETURN", "RESUME")
"""The beginnings of the names of instructions that end an expression."""


@functools.lru_cache(maxsize=16384)
def asks_which(code: CodeType, names: frozenset[str]) -> bool:
    """Returns True if code may ask which object the number of a variable is.

    A traced number is another object than the number, so `self.last is self.step` would be False.

    Args:
        code: the code.
        names: the last names of the variables.

    >>> def changed(self):
    ...     step = self.step
    ...     return step is not self.last
    >>> def missing(self):
    ...     known = id(self.model) in self.seen
    ...     return self.step is None or self.mode is self.last or self.rate(self.step, known)
    >>> names = frozenset(("step",))
    >>> asks_which(changed.__code__, names), asks_which(missing.__code__, names)
    (True, False)
    """
    steps = list(dis.get_instructions(code))
    if not any(one.opname == "IS_OP" or _is_asking(one) for one in steps):
        return False
    holding = set(names)
    for _ in range(2):  # what the end of a loop assigns is read at its beginning
        recent, asked = set[str](), False
        for one, after in itertools.pairwise(steps):
            stores = one.opname.startswith("STORE_")
            if stores and not holding.isdisjoint(recent):
                holding.update(_names_of(one) if "STORE" in one.opname[1:] else _names_of(one)[:1])
            if stores and after.opname.startswith("STORE_"):
                continue  # another target of the same values
            if one.opname.startswith(_ENDS):
                recent, asked = set(), False
            elif asked and one.opname.startswith("CALL") and not holding.isdisjoint(recent):
                return True
            elif _is_asking(one):
                recent, asked = set(), True
            recent.update(_names_of(one))
            asks = after.opname == "IS_OP" and not _is_constant(one)
            if asks and not holding.isdisjoint(recent):
                return True
    return False


def _is_asking(step: dis.Instruction) -> bool:
    """Returns True if an instruction loads a function that asks which object a value is."""
    if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval == "id":
        return True
    return step.opname.startswith("LOAD_") and step.argval in ("is_", "is_not")


def _is_constant(step: dis.Instruction) -> bool:
    return step.opname.startswith("LOAD_CO") and type(step.argval) not in (int, float)


def _names_of(step: dis.Instruction) -> tuple[str, ...]:
    """Returns the names, and the text, that an instruction loads or stores."""
    found = step.argval if type(step.argval) is tuple else (step.argval,)
    return tuple(name for name in found if isinstance(name, str))
