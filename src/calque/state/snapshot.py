"""The Python state that a traced function can reach, before the function changes it.

The contents of each value found are visited (`finding`). When code starts to run, its names decide
which attributes of the user's objects and which global variables are relevant (`running_code`,
`namespaces`). So only state that this code can read is guarded, and it is recorded before the code
runs.
"""

import logging
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn import Module
from torch.nn.modules import module as module_of_torch
from torch.optim import optimizer as optimizer_of_torch

from calque.state import finding
from calque.state.libraries import Libraries
from calque.state.lookups import finds_modules, modules_of_the_user
from calque.state.namespaces import Namespaces
from calque.state.ownership import Owner
from calque.state.package_caches import holds_new_tensors
from calque.state.paths import Path
from calque.state.rows import CacheRow, DictRow, HooksRow, Row
from calque.state.running_code import RunningCode
from calque.state.stand_ins import StandInValue
from calque.state.stores import take_apart_stored
from calque.state.values import ATOMIC

_GLOBAL_HOOKS = [
    (place, name)
    for place in (module_of_torch, optimizer_of_torch)
    for name, value in vars(place).items()
    if name.startswith("_global_") and isinstance(value, dict)
]


STANDING_IN: tuple[type, ...] = (torch.SymFloat, StandInValue)


class Snapshot:
    """Rows for everything that was found.

    Args:
        roots: the values to begin with.
        passes: returns True for an object that is not part of the program.

    Attributes:
        rows: the rows, by the id of their container (and a mark, where one object has several).
        known: every object met, by id; kept alive.
        classes: the classes that were met, by id.
        tensors: those objects that are tensors, by id.
        weak: those that something refers to weakly, by id.
        unnamed: those that something holds under no name, by id.
        given: objects among the arguments, by id.
        moving: rows of what moves on as it is used, and matters where that is read.
        locks: locks, of which no code has asked whether they are held.
        unrepeatable: what the function did that cannot be seen in any state, in words.
        has_differing: whether a builtin function was met whose results differ by nature.
        on_difference: is called where one is met.
        on_tensor: is called with each tensor that is met.
        stack: what is still to be met, and how the program names it.
        code: the code that has run.
        namespaces: the namespaces with relevant names.
        libraries: the state in library modules.
    """

    def __init__(self, *roots: Any, passes: Callable[[Any], bool] = lambda value: False) -> None:
        self.rows: dict[Any, Row] = {}
        self.known: dict[int, Any] = {}
        self.classes: dict[int, type] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.weak: dict[int, Any] = {}
        self.unnamed: set[int] = set()
        self.given: set[int] = set()
        self.moving: list[Row] = []
        self.locks: list[tuple[Any, Path]] = []
        self.unrepeatable: list[str] = []
        self.has_differing = False
        self.on_difference: Callable[[], None] = lambda: None
        self.on_tensor: Callable[[torch.Tensor], object] = lambda tensor: None
        self.stack: list[tuple[Any, Path]] = []
        self._passes = passes
        self.namespaces: Namespaces = Namespaces(self)
        self.libraries: Libraries = Libraries(self)
        self.code: RunningCode = RunningCode(self)
        for place, name in _GLOBAL_HOOKS:
            self.push_items(self.hold(HooksRow(place.__dict__[name], Path(name))))
        for root in roots:
            self.visit(root, "")

    # Values -------------------------------------------------------------------------------------

    def visit(self, value: object, path: Path | str) -> None:
        """Visit a value and everything that it holds."""
        self.stack.append((value, Path(path) if isinstance(path, str) else path))
        self._drain()

    def _drain(self) -> None:
        stack, known = self.stack, self.known
        while stack or self.code.read_unseen():
            if not stack:
                continue
            value, path = stack.pop()
            kind = type(value)
            if kind in ATOMIC or id(value) in known or issubclass(kind, STANDING_IN):
                continue
            known[id(value)] = value
            if self._passes(value):
                continue
            if finds_modules(value):
                stack += [(m, Path(m.__name__)) for m in modules_of_the_user()]
                if value is sys.modules:
                    continue
            finding.handler_of(value)(self, value, path)

    def push_unnamed(self, values: Iterable[Any], path: Path) -> None:
        """Queue values that are not held under a name."""
        for value in values:
            if type(value) not in ATOMIC:
                self.unnamed.add(id(value))
                self.stack.append((value, path))

    def hold(self, row: Row, key: Any = None) -> Row:
        """Add a row under a key, by default the id of its container; returns the row."""
        self.rows[id(row.owner) if key is None else key] = row
        return row

    def push_items(self, row: Row) -> None:
        """Queue the contents of a row."""
        stack, path = self.stack, row.path
        step = path.attribute if row.attribute else path.item
        for key, value in row.before.items():
            kind = type(value)
            if kind not in ATOMIC and id(value) not in self.known:
                stack.append((value, step(key)))

    def hold_dict(self, value: dict[Any, Any], path: Path, attribute: bool = False) -> None:
        """Record a dict, and queue its keys and values.

        Args:
            attribute: whether its keys are names of attributes.
        """
        if id(value) in self.rows:
            return
        self.known[id(value)] = value
        row = self.hold(DictRow(value, path, attribute))
        self.push_items(row)
        if not attribute:
            for key in row.before:
                if type(key) not in ATOMIC and id(key) not in self.known:
                    self.stack.append((key, path.item("...")))

    def visit_generator(self, value: object, path: Path) -> None:
        """Visit a `torch.Generator`."""

    def visit_module(self, value: Module, path: Path) -> None:
        """Visit an `nn.Module`."""
        finding.visit_module(self, value, path)

    def visit_logger(self, value: logging.Logger, path: Path) -> None:
        """Visit a logger."""
        finding.visit_logger(self, value, path)

    def visit_library_cache(self, value: Callable[..., Any], path: Path) -> None:
        """Visit a library's function with a cache of `functools.lru_cache`."""

    # Code that runs -----------------------------------------------------------------------------

    def use(self, words: frozenset[str], of_code: bool = False) -> None:
        """Make names of attributes relevant from now on; see `Namespaces.use`."""
        if "__annotations__" in self.namespaces.use(words, of_code):
            self.code.hold_annotations()

    def visit_name(self, name: str) -> None:
        """Add a name of attributes that code has computed."""
        self.use(frozenset((name,)))
        self._drain()

    @property
    def codes(self) -> dict[types.CodeType, Owner]:
        """The code that has run, with its owner."""
        return self.code.owners

    @property
    def compares_objects(self) -> bool:
        """Returns True if the user's code compares two values by identity."""
        return self.code.compares_objects or self.identifies_any

    @property
    def identifies_any(self) -> bool:
        """Returns True if the user's code may have asked for the identity of any object."""
        unseen = self.namespaces.interception.stopped or self.code.hashes
        return self.asks_identity and unseen

    def identifies(self, values: Iterable[Any]) -> bool:
        """Returns True if the user's code may have asked for the identity of one of these."""
        return any(self.has_identified(id(value)) for value in values)

    def has_identified(self, key: int) -> bool:
        """Returns True if the user's code may have got this number from `id`."""
        return self.identifies_any or key in self.namespaces.interception.identified

    @property
    def asks_identity(self) -> bool:
        """Returns True if the user's code reads the identity of an object."""
        return self.code.asks_identity

    def tells(self, tensors: Iterable[Any]) -> bool:
        """Returns True if code that is not PyTorch's has looked up one of these tensors in a set
        or dict, or has asked for its identity.
        """
        told = self.code.told | self.namespaces.interception.identified
        return bool(told) and any(id(tensor) in told for tensor in tensors)

    def enter(
        self,
        code: types.CodeType,
        held: dict[str, Any],
        caller: object = None,
        closure: Callable[[], dict[str, Any]] = dict,
    ) -> bool:
        """Handle the first run of a code object, with its global variables.

        Args:
            caller: the code that called it, if that is known.
            closure: returns the values of its free variables.

        Returns:
            True if it is the program's code, or Python's code that the program called.
        """
        entered = self.code.enter(code, held, caller, closure)
        self._drain()
        return entered

    def look_into_schedulers(self) -> None:
        """See `Namespaces.look_into_schedulers`."""
        self.namespaces.look_into_schedulers()
        self._drain()

    def follow_all(self) -> None:
        """See `RunningCode.follow_all`."""
        self.code.follow_all()

    def visit_new(self) -> None:
        """Visit modules that were imported meanwhile, and classes that caches hold by now."""
        self.code.visit_new_imports()
        self._drain()
        for row in self.rows.values():
            if isinstance(row, CacheRow):  # the next calls find the same classes there
                self.known.update((id(kind), kind) for kind in row.classes())

    # After the run --------------------------------------------------------------------------------

    def changed(self) -> Iterator[tuple[Row, dict[Any, Any]]]:
        """Yields the rows that have changed, with their contents."""
        take_apart_stored(self)
        for row in list(self.rows.values()):
            now = row.items()
            if row.is_changed(now):
                yield row, now

    def restore(self) -> list[Row]:
        """Restore everything; returns the rows that cannot be restored.

        Caches of libraries stay as they are, unless they hold new tensors of the device: the run is
        abandoned, and its tensors have no values.
        """
        own = [row for row, _ in self.changed() if row.restored]
        others = self.holding_tensors()
        for row in (*own, *others):
            row.restore()
        return [row for row in own if row.is_changed()]

    def holding_tensors(self) -> list[Row]:
        """Returns the rows of libraries in which tensors of the device were stored."""
        changed = [(row, now) for row, now in self.changed() if not row.restored]
        return [row for row, now in changed if holds_new_tensors(row, now)]

    def forget(self) -> None:
        """Release all references; the snapshot cannot be used afterwards.

        It is part of reference cycles. So the visited objects would stay alive until Python's
        garbage collector runs, including those that the program references only weakly.
        """
        for part in (self.namespaces, self.libraries, self.code, self):
            vars(part).clear()
