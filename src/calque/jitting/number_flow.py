"""Where code hands the numbers of variables on: under which other names they are met.

`same(self.step, self.last)` asks in `same`, whose parameters have other names, which objects they
are. Names lead from code to code: functions and classes are known by the names by which they are
called, and by which they were defined.
"""

import dis
import inspect
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable
from types import CodeType

from calque.jitting.error_handlers import handles_errors
from calque.jitting.number_questions import (
    asks_at_all,
    ends_expression,
    names_loaded,
    names_stored,
)

_ROUNDS = 8
_UNNAMED = ("__call__", "<lambda>", "forward")
_UNNAMED += ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
"""Code that is called by other names than its own."""
_HANDING = ("LOAD_", "STORE_", "CALL", "PRECALL", "KW_NAMES", "BUILD_", "RETURN", "YIELD", "SWAP")
_HANDING += ("COPY", "GET_ITER", "FOR_ITER", "LIST_", "DICT_", "PUSH_NULL", "POP_JUMP", "JUMP_IF")
"""The beginnings of the names of instructions that take a value as it is, or leave it there."""
_OWN = ("self", "cls")


class NumberNames:
    """The names under which pieces of code may meet the numbers of variables.

    Args:
        codes: the code that ran.
        names: the last names of the variables.
        functions: other names of code, as (name, code).

    >>> def same(a, b):
    ...     return a is b
    >>> def step(self):
    ...     return same(self.n, self.m)
    >>> names = NumberNames((same.__code__, step.__code__), frozenset(("n",)))
    >>> sorted(names.of(same.__code__)), sorted(names.of(step.__code__))
    (['a', 'b', 'n'], ['n'])
    """

    def __init__(
        self,
        codes: Collection[CodeType],
        names: frozenset[str],
        functions: Iterable[tuple[str, CodeType]] = (),
    ) -> None:
        self._common = set(names)  # attributes, and functions that return a number
        self._own: defaultdict[CodeType, set[str]] = defaultdict(set)
        self._returning: set[str] = set()
        self._called: defaultdict[str, list[CodeType]] = defaultdict(list)
        for code in codes:
            self._called[code.co_name].append(code)
            if code.co_name in ("__init__", "__new__"):
                self._called[code.co_qualname.split(".")[-2:][0]].append(code)
        for name, code in functions:
            if code.co_name != name:
                self._called[name].append(code)
        self._steps: dict[CodeType, list[tuple[dis.Instruction, dis.Instruction]]] = {}
        if not any(asks_at_all(code) or handles_errors(code) for code in codes):
            return
        for _ in range(_ROUNDS):
            before = self._size()
            for code in codes:
                self._follow(code)
            if self._size() == before:
                break

    @property
    def ran(self) -> Collection[str]:
        """The names by which the code is called."""
        return self._called.keys()

    def of(self, code: CodeType) -> frozenset[str]:
        """Returns the names in a piece of code."""
        return frozenset(self._common | self._own.get(code, set()))

    def _size(self) -> int:
        return len(self._common) + sum(map(len, self._own.values()))

    def _follow(self, code: CodeType) -> None:
        """Find where code hands numbers on, in calls, assignments and results."""
        holding, recent, handed = self.of(code), set[str](), False
        if code not in self._steps:
            self._steps[code] = list(itertools.pairwise(dis.get_instructions(code)))
        for one, after in self._steps[code]:
            if one.opname.startswith("LOAD_") and after.opname.startswith("STORE_"):
                self._rename(one, after)
            if one.opname.startswith("STORE_"):
                if handed:
                    self._store(code, one)
                if not after.opname.startswith("STORE_"):
                    recent, handed = set(), False
                continue
            if handed and one.opname.startswith("RETURN"):
                self._common.add(code.co_name)
                self._returning.add(code.co_name)
            if ends_expression(one):
                recent, handed = set(), False
            elif handed and one.opname.startswith("CALL"):
                self._call(recent)
                handed = not recent.isdisjoint(self._returning)
            if one.opname.startswith("LOAD_"):
                loaded = names_loaded(one)
                recent.update(loaded)
                handed |= not holding.isdisjoint(loaded) and after.opname.startswith(_HANDING)

        for nested in code.co_consts:
            if isinstance(nested, CodeType):
                self._own[nested].update(self._own[code].intersection(nested.co_freevars))

    def _store(self, code: CodeType, step: dis.Instruction) -> None:
        known = self._own[code] if "FAST" in step.opname else self._common
        known.update(names_stored(step))

    def _rename(self, loaded: dis.Instruction, stored: dis.Instruction) -> None:
        """Follow a function into a variable: `fn = same`."""
        for name in names_loaded(loaded):
            for other in names_stored(stored) if name in self._called else ():
                known = self._called[other]
                known += [code for code in self._called[name] if code not in known]

    def _call(self, names: Iterable[str]) -> None:
        for code in [code for name in (*names, *_UNNAMED) for code in self._called.get(name, ())]:
            count = code.co_argcount + code.co_kwonlyargcount
            count += bool(code.co_flags & inspect.CO_VARARGS)
            count += bool(code.co_flags & inspect.CO_VARKEYWORDS)
            self._own[code].update(n for n in code.co_varnames[:count] if n not in _OWN)
