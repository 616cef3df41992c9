"""Namespaces with relevant names: those that code contains, or all names if code computes names."""

import builtins
import sys
import types
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from calque.state.attribute_lookups import ADDED, Interception
from calque.state.grown import Grown, reaches_variables, takes_objects_apart
from calque.state.lookups import AllNames
from calque.state.named import Named, Place
from calque.state.names import MATCHED, Names, asks_for_ids, calls_by_name, names_of
from calque.state.opaque import is_read_by
from calque.state.ownership import Owner, owner_of_class, owner_of_module, owner_of_name
from calque.state.patched import FUNCTIONAL, METHODS_OF_TENSORS, extend_with
from calque.state.paths import Path
from calque.state.rows import ClassRow, DictRow, NamedRow, Row, StateRow
from calque.state.settings import is_setting
from calque.state.stand_ins import original
from calque.state.unread import Unread, is_by_name, replaces_getattr, words_of_class
from calque.state.values import ATOMIC
from calque.upstream.torch_internals import pytree

if TYPE_CHECKING:
    from calque.state.snapshot import Snapshot

_CALLED = frozenset(
    ("forward", "backward", "setup_context")
    + ("__call__", "__getattr__", "__getitem__", "__iter__", "__len__")
)
"""Methods that PyTorch or Python calls, although no code of the program contains their names."""
_FAMILY = "__subclasses__"


class Namespaces:
    """Namespaces of modules, classes and objects (see the module).

    Args:
        snapshot: the snapshot for their rows.

    Attributes:
        words: the relevant names of attributes.
        own_words: those that the user's own code contains.
        whole: whether all attributes of the user's objects are relevant.
        schedulers_run: whether all attributes of PyTorch's schedulers are.
        interception: the functions that report the names that code computes.
    """

    def __init__(self, snapshot: "Snapshot") -> None:
        self.words: set[str] = set(_CALLED)
        self.own_words: set[str] = set()
        self.whole: bool = False
        self.schedulers_run: bool = False
        self._anywhere = False
        self._unnamed_hooks: dict[str, list[tuple[Any, Path]]] = {}
        self._layers: list[Row] = []
        self._words_of_layers: set[str] = set()
        self._objects: list[tuple[Row, Any]] = []
        self._otherwise: set[str] = set()
        self._computes = False
        self.computed: set[str] = set()
        self.interception: Interception = Interception(self._on_computed_name)
        self._everything = AllNames(self.words)
        self._snapshot = snapshot
        self._rows: list[NamedRow] = []
        path = Path("Tensor", foreign=True)
        self._methods = self._named(vars(torch.Tensor), path, ("x", id(torch.Tensor)))

    def _named(self, held: Any, path: Path, key: object) -> NamedRow:
        """Returns the row of a namespace with single relevant names, creating it if needed."""
        row = self._snapshot.rows.get(key)
        if not isinstance(row, NamedRow):
            row = NamedRow(held, path, set())
            self._snapshot.hold(row, key)
        return row

    # Recording ------------------------------------------------------------------------------------

    def hold(
        self,
        held: dict[str, Any],
        path: Path,
        key: Any,
        everything: bool = False,
        kind: type[NamedRow] = NamedRow,
    ) -> None:
        """Record the relevant names of a namespace, or everything, in a row of a given kind."""
        if key in self._snapshot.rows:
            return
        row = kind(held, path, self._everything if everything else self.words)
        self._snapshot.hold(row, key)
        self._rows.append(row)
        if not path.foreign:
            self._snapshot.push_items(row)

    def hold_module(self, module: types.ModuleType, path: Path) -> None:
        """Record a module of the user."""
        self.hold(vars(module), path, ("m", id(module)), self._anywhere)

    def hold_class(self, kind: type, path: Path) -> None:
        """Record a class of the user."""
        if MATCHED in self.words:
            self._use_matched(kind)
        row = ClassRow(kind, path, self._everything if self.whole else self.words)
        self._snapshot.hold(row, ("c", id(kind)))
        if _FAMILY in self.words:
            self._hold_subclasses(kind, path)
        self._rows.append(row)
        self.read_by_name(row, kind)
        self._snapshot.push_items(row)

    def _hold_subclasses(self, kind: type, path: Path) -> None:
        row = StateRow(kind, path.attribute(_FAMILY), lambda k: tuple(type.__subclasses__(k)))
        self._snapshot.hold(row, ("b", id(kind)))
        self._snapshot.stack += [(below, Path(below.__name__)) for below in row.before[None]]

    def _use_matched(self, kind: type) -> None:
        """Make the attributes relevant that patterns of a class read by position."""
        self.use(frozenset(getattr(kind, MATCHED, ())))

    def hold_functional(self, names: frozenset[str]) -> None:
        """Record functions that PyTorch's modules call, which the user may have replaced."""
        path = Path(FUNCTIONAL.__name__, foreign=True)
        row = self._named(vars(FUNCTIONAL), path, ("x", id(FUNCTIONAL)))
        extend_with(row, names, self._snapshot.stack)

    def hold_variables(self, names: frozenset[str], held: dict[str, Any]) -> None:
        """Record the global variables that the user's code names."""
        row = self._named(held, Path(""), ("g", id(held)))
        if not isinstance(row.names, set):
            return
        for name in names.difference(row.names):
            row.names.add(name)
            if name in held and type(held[name]) not in ADDED:
                value = row.before[name] = original(held[name])
                self._snapshot.stack.append((value, Path(name)))
                if is_setting(value, name) and owner_of_name(value.__module__ or "") < Owner.USER:
                    self._snapshot.libraries.hold_setting(value, Path(name))
            else:
                self._hold_builtin(name)

    def _hold_builtin(self, name: str) -> None:
        """Record a builtin that code names, which a program may have replaced."""
        held = vars(builtins)
        if name not in held:
            return
        row = self._named(held, Path("builtins", foreign=True), ("g", id(held)))
        extend_with(row, (name,), self._snapshot.stack)
        if not isinstance(held[name], types.BuiltinFunctionType | type):
            self._snapshot.stack.append((held[name], Path(name)))

    def expect_modules(self, names: Iterable[str]) -> NamedRow:
        """Record which modules exist under some names, or that there are none."""
        path = Path("sys.modules", foreign=True)  # imports are not undone
        row = self._named(sys.modules, path, ("g", id(sys.modules)))
        extend_with(row, names, self._snapshot.stack)
        return row

    def hold_hooks(self, name: str, value: dict[Any, Any], path: Path) -> None:
        """Record a dict of a module's hooks, but not its attributes as an object, unless code names
        it.

        PyTorch's code, which runs the hooks, reads no attributes of the dict. Other code reaches it
        by the name of the module's attribute, or by searching all attributes; through other
        references, the whole dict is visited.
        """
        snapshot = self._snapshot
        if self.whole or name in self.words or id(value) in snapshot.rows:
            snapshot.stack.append((value, path))
            return
        snapshot.push_items(snapshot.hold(DictRow(value, path)))
        self._unnamed_hooks.setdefault(name, []).append((value, path))

    def read_by_name(self, row: Row, kind: type) -> None:
        """Register the attributes of an object of a user's class."""
        words = words_of_class(kind)
        if words is not None:
            self._layers.append(row)
            self._words_of_layers |= words

    def reach_by_name(self, row: Row, value: object) -> None:
        """Register the attributes of an object without methods."""
        if id(value) not in self._snapshot.weak:
            self._objects.append((row, value))

    def unread(
        self,
        counted: Collection[Place],
        assigned: Collection[Place],
        copied: Collection[Place] = (),
    ) -> Unread:
        """Returns the variables that no code reads.

        Args:
            counted: the variables that each call increments.
            assigned: other variables that the function changes.
            copied: numbers that each call copies into what it appends.
        """
        return Unread(self._named_by_code(counted, assigned, copied))

    def grown(self) -> Grown:
        """Returns what finds the lists to which code only appends."""
        named = self._named_by_code((), ())
        named.look()
        return Grown(named, self._snapshot.rows.values())

    def _named_by_code(
        self,
        counted: Collection[Place],
        assigned: Collection[Place],
        copied: Collection[Place] = (),
    ) -> Named:
        if self.whole:
            return Named()
        snapshot = self._snapshot
        codes, rows = snapshot.codes, snapshot.rows.values()
        searching = {o for c, o in codes.items() if names_of(c).whole}
        taking = any(takes_objects_apart(c) for c, o in codes.items() if o is Owner.USER)
        taking = taking or not pytree.SUPPORTED_NODES.keys().isdisjoint(self._users_classes())
        variables = [] if self._computes else [row for row in rows if is_by_name(row)]
        return Named(
            codes=tuple(codes),
            words=self._otherwise | self._words_of_layers | _CALLED,
            computed=self.computed,
            rows=[*self._layers, *variables],
            dicts=Owner.PACKAGE not in searching,
            searched=taking or not searching.isdisjoint((Owner.PACKAGE, Owner.PYTHON)),
            reached=any(map(reaches_variables, (c for c, o in codes.items() if o > Owner.PYTHON))),
            objects=self._objects,
            unnamed=snapshot.unnamed,
            given=snapshot.given,
            counted=counted,
            assigned=assigned,
            copied=copied,
            replaced=replaces_getattr(rows),
        )

    def _users_classes(self) -> list[type]:
        found = self._snapshot.classes.values()
        return [kind for kind in found if owner_of_class(kind) is Owner.USER]

    # Relevant names -------------------------------------------------------------------------------

    def computes(self, name: str) -> bool:
        """Returns True if code may have looked up an attribute by this computed name."""
        return self.whole or name in self.computed

    def use(self, words: frozenset[str], of_code: bool = False) -> frozenset[str]:
        """Make more names of attributes relevant; returns those that were not before.

        Args:
            of_code: whether code that ran contains them.
        """
        if not of_code:
            self._otherwise |= words
        fresh, snapshot = words - self.words, self._snapshot
        if not fresh:
            return fresh
        for row in snapshot.moving:
            row.guarded = row.guarded or is_read_by(row.owner, fresh)
        self.words |= fresh
        for name in fresh & self._unnamed_hooks.keys():
            snapshot.stack += self._unnamed_hooks.pop(name)
        extend_with(self._methods, fresh - METHODS_OF_TENSORS, snapshot.stack)
        if _FAMILY in fresh:
            for row in [row for row in snapshot.rows.values() if isinstance(row, ClassRow)]:
                self._hold_subclasses(row.kind, row.path)
        if MATCHED in fresh:
            for row in [row for row in snapshot.rows.values() if isinstance(row, ClassRow)]:
                self._use_matched(row.kind)
        for row in self._rows:
            for name in fresh & row.owner.keys():
                if type(row.owner[name]) in ADDED:
                    continue
                value = row.before.setdefault(name, original(row.owner[name]))
                if row.path.foreign:
                    continue
                if type(value) not in ATOMIC and id(value) not in snapshot.known:
                    snapshot.stack.append((value, row.path.attribute(name)))
        snapshot.libraries.use(fresh)
        return fresh

    # Computed names -------------------------------------------------------------------------------

    def look_into(self, code: types.CodeType, held: dict[str, Any], here: bool) -> None:
        """Handle user code, which may look up values by computed names.

        Args:
            here: whether it runs in the watched thread.
        """
        by_name = calls_by_name(code)
        if by_name is not None and asks_for_ids(code, held):
            by_name |= {"id"}
        reported = False
        if not self.interception.stopped:
            reported = here and by_name is not None and not self.whole
            reported = reported and (not by_name or self.interception.intercept(by_name, held))
            if not reported:
                self.stop_intercepting()
        self._look_up(names_of(code, reported), held)

    def stop_intercepting(self) -> None:
        """Stop intercepting, after which any name may be a computed one."""
        if not self.interception.stopped:
            self.interception.stop()
            if self.interception.was_used:
                self.look_anywhere()

    def _on_computed_name(self, name: str | None) -> None:
        """Handle the lookup of an attribute by a computed name."""
        if name is None:
            self.stop_intercepting()
        else:
            self.computed.add(name)
            self._snapshot.visit_name(name)

    def _look_up(self, names: Names, held: dict[str, Any]) -> None:
        if names.anywhere:
            self.look_anywhere()
        elif names.whole:
            self._look_into_objects()
        for name in names.looked_into:
            value = held.get(name)
            if isinstance(value, types.ModuleType) and owner_of_module(value) is Owner.USER:
                self.hold(vars(value), Path(name), ("m", id(value)))
                self._extend(("m", id(value)))
        self._computes |= names.namespace or bool(names.looked_into)
        if names.namespace:
            self._extend(("g", id(held)))

    def look_anywhere(self) -> None:
        """Make all attributes of the user's objects, and all variables of the user's modules,
        relevant.
        """
        self._look_into_objects()
        if not self._anywhere:
            self._anywhere = True
            for key in [k for k in self._snapshot.rows if isinstance(k, tuple) and k[0] == "m"]:
                self._extend(key)

    def _look_into_objects(self) -> None:
        """Make all attributes of the user's objects and classes relevant."""
        if self.whole:
            return
        self.whole = True
        self.schedulers_run = True
        while self._unnamed_hooks:
            self._snapshot.stack += self._unnamed_hooks.popitem()[1]
        for key, row in list(self._snapshot.rows.items()):
            mark = key[0] if isinstance(key, tuple) else None
            if mark in ("d", "u") and isinstance(row, NamedRow):
                self._widen(key, row)
            elif mark == "c" and isinstance(row, ClassRow):
                self._extend(key)

    def look_into_schedulers(self) -> None:
        """Make all attributes of schedulers relevant, because a method of PyTorch's schedulers
        runs, whose names are not read.
        """
        if self.schedulers_run:
            return
        self.schedulers_run = True
        known, rows = self._snapshot.known, self._snapshot.rows
        for key, row in list(rows.items()):
            mark = key[0] if isinstance(key, tuple) else None
            if mark == "d" and isinstance(known.get(key[1]), LRScheduler):
                self._widen(key, row)

    def _widen(self, key: object, row: Row) -> None:
        """Make all attributes of an object relevant, instead of single ones."""
        if isinstance(row, NamedRow):
            self._rows = [r for r in self._rows if r is not row]
            new = DictRow(row.owner, row.path, attribute=True)
            # One dict, because a traced number in it is replaced again after the trace.
            row.before = new.before = _as_before(row, new.before)
            self._snapshot.rows[key] = new
            self._snapshot.push_items(new)

    def _extend(self, key: object) -> None:
        """Make all names of a user's namespace relevant."""
        row = self._snapshot.rows[key]
        if isinstance(row, NamedRow) and not row.path.foreign:
            names, row.names = row.names, self._everything
            if names is not self.words and names is not self._everything:
                self._rows.append(row)  # global variables: special names may yet become relevant
            row.before = _as_before(row, row.items(), names)
            self._snapshot.push_items(row)


def _as_before(row: NamedRow, now: dict[str, Any], names: Any = None) -> dict[str, Any]:
    """Returns what a namespace held before, given what it holds: code that ran can have set only
    names that were relevant.
    """
    names = row.names if names is None else names
    kept = {k: v for k, v in now.items() if k in row.before or k not in names}
    return {**kept, **row.before}
