"""What code may ask about a number, by which it could tell a traced number from another.

Such code gets the number itself. It is found by its instructions, before or after it runs.
"""

import dis
import functools
import itertools
import operator
import re
from collections.abc import Iterable
from types import CodeType

from calque.state.ownership import Owner, owner_of_code


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
    if not asks_at_all(code):
        return False
    steps = list(dis.get_instructions(code))
    holding = set(names)
    for _ in range(2):  # what the end of a loop assigns is read at its beginning
        recent, asked = set[str](), False
        for one, after in itertools.pairwise(steps):
            stores = one.opname.startswith("STORE_")
            if stores and not holding.isdisjoint(recent):
                holding.update(
                    names_loaded(one) if "STORE" in one.opname[1:] else names_loaded(one)[:1]
                )
            if stores and after.opname.startswith("STORE_"):
                continue  # another target of the same values
            if ends_expression(one):
                recent, asked = set(), False
            elif asked and one.opname.startswith("CALL") and not holding.isdisjoint(recent):
                return True
            elif _is_asking(one):
                recent, asked = set(), True
            recent.update(names_loaded(one))
            asks = after.opname == "IS_OP" and not _is_constant(one)
            if asks and not holding.isdisjoint(recent):
                return True
    return False


@functools.lru_cache(maxsize=16384)
def asks_at_all(code: CodeType) -> bool:
    """Returns True if code asks which object any value is, other than a constant."""
    steps = list(dis.get_instructions(code))
    return any(
        _is_asking(one) or (after.opname == "IS_OP" and not _is_constant(one))
        for one, after in itertools.pairwise(steps)
    )


def is_renamed(name: object, value: object) -> bool:
    """Returns True if a variable holds a function that asks which object a value is, under another
    name than `_is_asking` knows.
    """
    return (value is id or value is operator.is_ or value is operator.is_not) and (
        name not in _ASKING
    )


_ASKING = ("id", "is_", "is_not")


def ends_expression(step: dis.Instruction) -> bool:
    """Returns True if an instruction ends an expression."""
    return step.opname.startswith(_ENDS)


def _is_asking(step: dis.Instruction) -> bool:
    """Returns True if an instruction loads a function that asks which object a value is."""
    if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval == "id":
        return True
    return step.opname.startswith("LOAD_") and step.argval in _ASKING[1:]


def _is_constant(step: dis.Instruction) -> bool:
    return step.opname.startswith("LOAD_CO") and type(step.argval) not in (int, float)


def names_loaded(step: dis.Instruction) -> tuple[str, ...]:
    """Returns the names, and the texts, that an instruction loads or stores."""
    found = step.argval if type(step.argval) is tuple else (step.argval,)
    return tuple(name for name in found if isinstance(name, str))


def names_stored(step: dis.Instruction) -> tuple[str, ...]:
    """Returns the names that an instruction stores, which may also load another."""
    names = names_loaded(step)
    return names[:1] if "LOAD" in step.opname else names
