"""The code that has run in a function; its names determine the relevant state."""

import functools
import gc
import sys
import types
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from calque.state.finding.waiting import LOCKING, hold_locks
from calque.state.library_values import is_program
from calque.state.lookups import hands_over
from calque.state.names import names_of
from calque.state.ownership import Owner, owner_of_code, owner_of_module, serves_engine
from calque.state.paths import Path
from calque.state.rows import AttributeRow, set_attribute

if TYPE_CHECKING:
    from calque.state.snapshot import Snapshot

_IDENTITY = frozenset(("id", "hash"))
"""Functions whose results code may keep, to tell objects apart later."""
_DESCRIPTIVE: dict[str, Callable[[Any], Any]] = {
    name: attrgetter(name) for name in ("__name__", "__qualname__", "__doc__", "__module__")
}
"""Attributes that describe a function, and that programs rarely read."""
_CONTAINERS = (dict, list, set, types.MappingProxyType)


class RunningCode:
    """The code objects that have run, and the functions that were found.

    Args:
        snapshot: the snapshot in which to record the state that they name.

    Attributes:
        owners: the code that has run, with its owner.
        in_steps, outside: the code that has run in the steps of optimizers, and outside.
        compares_objects: whether the user's code compares objects by identity.
        asks_identity: whether it reads the identity of objects.
        hashes: whether it calls `hash`.
        told: the ids of tensors that it has looked up in sets and dicts.
        hands_over: whether it passes work to another thread, or waits for one.
    """

    def __init__(self, snapshot: "Snapshot") -> None:
        self.owners: dict[types.CodeType, Owner] = {}
        self.in_steps: set[types.CodeType] = set()
        self.outside: set[types.CodeType] = set()
        self.compares_objects: bool = False
        self.asks_identity: bool = False
        self.hashes: bool = False
        self.told: set[int] = set()
        self.hands_over: bool = False
        self._snapshot = snapshot
        self._functions: dict[types.CodeType, list[types.FunctionType]] = {}
        self._nested: set[types.CodeType] = set()
        self._brought: set[types.CodeType] = set()
        self._elsewhere = False
        self._tells = False
        self._unseen: list[tuple[types.CodeType, dict[str, Any]]] = []

    # Code ---------------------------------------------------------------------------------------

    def enter(
        self,
        code: types.CodeType,
        held: dict[str, Any],
        caller: object,
        closure: Callable[[], dict[str, Any]],
    ) -> bool:
        """See `Snapshot.enter`."""
        owner = owner_of_code(code, held)
        if owner is Owner.ENGINE:
            return False
        if owner is Owner.PYTHON or serves_engine(code.co_filename):
            if caller is not None and caller not in self.owners:
                return False
        self.owners[code] = owner
        if owner is Owner.PYTHON and hands_over(code, held):
            self.hands_over = True
            self.follow_all()
        self._read_names(code, held, owner, closure)
        return True

    def follow_all(self) -> None:
        """Treat each of the user's functions that is found as if it had run.

        This is for functions that another thread may run unobserved.
        """
        if not self._elsewhere:
            self._elsewhere = True
            self._snapshot.namespaces.stop_intercepting()
            self._unseen += [(f.__code__, f.__globals__) for f in self._all_functions()]

    def read_unseen(self) -> bool:
        """Read one of the functions that other threads may run; returns False if none is left."""
        if not self._unseen:
            return False
        code, held = self._unseen.pop()
        if code not in self.owners and owner_of_code(code, held) is Owner.USER:
            self.owners[code] = Owner.USER
            self._unseen += [(nested, held) for nested in names_of(code).nested]
            self._read_names(code, held, Owner.USER)
        return True

    def visit_new_imports(self) -> None:
        """Visit modules that were imported meanwhile."""
        for code, owner in self.owners.items():
            if owner is Owner.USER:
                self._imports(code)

    def _read_names(
        self,
        code: types.CodeType,
        held: dict[str, Any],
        owner: Owner,
        closure: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        names, namespaces = names_of(code), self._snapshot.namespaces
        self._nested.update(names.nested)
        if owner is Owner.USER:
            namespaces.own_words |= names.words
            if not LOCKING.isdisjoint(names.words):
                hold_locks(self._snapshot)
            self._imports(code)
            # `sys.modules`, in which it may look up the modules that it names.
            if "modules" in names.words:
                namespaces.expect_modules(c for c in code.co_consts if isinstance(c, str))
        self._variables_of(names.globals, held, owner)
        functions = self._functions_with(code, owner)
        if not functions and owner is not Owner.USER and code not in self._nested:
            self.wrapped(closure().values(), code.co_name)
        for function in functions:
            self.variables(function)
            if function.__globals__ is not held:  # the same code, executed in two namespaces
                self._variables_of(names.globals, function.__globals__, owner)
        self._snapshot.use(names.words, of_code=True)
        if owner is Owner.USER:
            if not (self._tells or names.words.isdisjoint(_DESCRIPTIVE)):
                self._tells = True
                for function in self._all_functions():
                    self._hold_descriptions(function)
            self.compares_objects |= names.compares
            self.asks_identity |= not _IDENTITY.isdisjoint(names.globals)
            self.hashes |= "hash" in names.globals
            other = any(f.__globals__ is not held for f in functions)
            namespaces.look_into(code, held, not (self._elsewhere or other))

    def _variables_of(self, names: frozenset[str], held: dict[str, Any], owner: Owner) -> None:
        """Visit the global variables that code names."""
        if owner is Owner.USER:
            self._snapshot.namespaces.hold_variables(names, held)
        else:
            self._snapshot.libraries.hold_variables(names, held, owner)

    def _imports(self, code: types.CodeType) -> None:
        """Visit modules that the code imports, if they are already loaded."""
        for name in code.co_names:
            module = sys.modules.get(name)
            if module is not None and owner_of_module(module) is Owner.USER:
                self._snapshot.stack.append((module, Path(name)))
                # An import statement finds it by name, and it may be replaced later.
                row = self._snapshot.namespaces.expect_modules((name,))
                row.before.setdefault(name, module)

    # Functions ----------------------------------------------------------------------------------

    def add(self, function: types.FunctionType, owner: Owner) -> bool:
        """Record a function that was found; returns True if its code has already run."""
        code = function.__code__
        self.keep(function)
        if self._tells:
            self._hold_descriptions(function)
        if self._elsewhere and owner is Owner.USER:
            self._unseen.append((code, function.__globals__))
        if code not in self.owners:
            return False
        self.variables(function)
        self._variables_of(names_of(code).globals, function.__globals__, owner)
        return True

    def bring(self, function: object) -> None:
        """Record a function from the call's arguments, and the functions in its closure.

        Their closure values, and those of other functions with the same code, are not state.
        """
        stack, seen = [function], set[int]()
        while stack:
            one = stack.pop()
            if id(one) in seen:
                continue
            seen.add(id(one))
            if isinstance(one, functools.partial):
                stack += [one.func, *one.args, *one.keywords.values()]
            elif isinstance(one, types.FunctionType) and id(one) not in self._snapshot.known:
                self._brought.add(one.__code__)
                stack += [v for cell in one.__closure__ or () for v in _contents(cell)]
                stack += [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]

    def keep(self, function: types.FunctionType) -> None:
        """Store a function until its code runs."""
        self._functions.setdefault(function.__code__, []).append(function)

    def variables(self, function: types.FunctionType) -> None:
        """Visit the closure and the defaults of a function that runs."""
        if owner_of_code(function.__code__, function.__globals__) is not Owner.USER:
            cells = function.__closure__ or ()
            self.wrapped([v for cell in cells for v in _contents(cell)], function.__name__)
            return
        name, stack = Path(function.__name__), self._snapshot.stack
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        stack += [(cell, Path(variable)) for variable, cell in cells]
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self._snapshot.push_unnamed(defaults, name)

    def wrapped(self, values: Iterable[Any], name: str) -> None:
        """Visit the closure of a library's function, such as a decorator's."""
        for value in values:
            if is_program(value):
                self._snapshot.stack.append((value, Path(name)))
            elif isinstance(value, functools._lru_cache_wrapper):
                self._snapshot.visit_library_cache(value, Path(name, foreign=True))
            elif isinstance(value, _CONTAINERS):
                self._snapshot.push_unnamed((value,), Path(name, foreign=True))

    def hold_annotations(self) -> None:
        """Record the annotations of the user's functions, because some code reads them."""
        for function in self._all_functions():
            if owner_of_code(function.__code__, function.__globals__) is Owner.USER:
                self._snapshot.hold_dict(function.__annotations__, Path(function.__name__))

    def _hold_descriptions(self, function: types.FunctionType) -> None:
        if owner_of_code(function.__code__, function.__globals__) is Owner.USER:
            row = AttributeRow(function, Path(function.__name__), _DESCRIPTIVE, set_attribute)
            self._snapshot.hold(row, ("w", id(function)))

    def _all_functions(self) -> list[types.FunctionType]:
        return [function for functions in self._functions.values() for function in functions]

    def _functions_with(self, code: types.CodeType, owner: Owner) -> list[types.FunctionType]:
        known = self._functions.get(code, [])
        if (
            known
            or code in self._brought
            or owner is not Owner.USER
            or not code.co_freevars
            or code in self._nested
        ):
            return known
        # The program's own function, which was not found before. Only a search of all objects
        # yields the cells of its variables.
        return [f for f in gc.get_referrers(code) if isinstance(f, types.FunctionType)]


def _contents(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []
