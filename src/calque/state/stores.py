"""What the user's code stores in libraries: attributes of their modules, classes and objects.

A library's own changes of its namespaces (a lazily created table, a count of handles) are neither
undone nor repeated. An attribute that the user's code stores there is the program's: it is undone
after the trace, and each call repeats it.
"""

import dis
import types
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from calque.state.names import names_of
from calque.state.ownership import Owner
from calque.state.paths import Path
from calque.state.rows import LibraryClassRow, NamedRow, Row

if TYPE_CHECKING:
    from calque.state.snapshot import Snapshot

_STORES = frozenset(("STORE_ATTR", "DELETE_ATTR"))
_BY_NAME = frozenset(("setattr", "delattr"))
_BY_KEY = frozenset(("vars", "globals", "__dict__", "__setattr__", "__delattr__"))


@lru_cache(maxsize=16384)
def stores_of(code: types.CodeType) -> frozenset[str]:
    """Returns the names of attributes that code may store or delete.

    >>> def count(library):
    ...     library.calls += 1
    ...     setattr(library, "last", library.name)
    >>> sorted(stores_of(count.__code__))
    ['calls', 'last']
    """
    found = {i.argval for i in dis.get_instructions(code) if i.opname in _STORES}
    names = names_of(code)
    used = names.words | names.globals
    if not _BY_KEY.isdisjoint(used):
        return names.words
    if not _BY_NAME.isdisjoint(used):
        found |= names.words - set(code.co_names)
    return frozenset(found)


def _stores_by_name(code: types.CodeType) -> bool:
    """Returns True if code stores attributes by names that it may compute."""
    names = names_of(code)
    return not (_BY_NAME | _BY_KEY).isdisjoint(names.words | names.globals)


class Without(Collection[str]):
    """Some names without others.

    Args:
        names: the names, to which more may be added.
        others: the others.
    """

    def __init__(self, names: Collection[str], others: Collection[str]) -> None:
        self._names = names
        self._others = others

    def __contains__(self, name: object) -> bool:
        return name in self._names and name not in self._others

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name not in self._others)


def take_apart_stored(snapshot: "Snapshot") -> None:
    """Makes what the user's code has stored in libraries' namespaces rows of the program."""
    changed = [
        (key, row)
        for key, row in snapshot.rows.items()
        if isinstance(row, NamedRow) and not row.restored and row.is_changed()
    ]
    if changed:
        stored = _stored_by(snapshot.codes, snapshot.namespaces.computed)
        for key, row in changed if stored else ():
            is_class = type(row.owner) is types.MappingProxyType
            kind = snapshot.known.get(key[1], torch.Tensor) if is_class else None
            _take_apart(snapshot.rows, row, stored, kind, snapshot.namespaces.words)


def _take_apart(
    rows: dict[Any, Row],
    row: NamedRow,
    stored: Collection[str],
    kind: type | None,
    shared: Collection[str],
) -> None:
    """Makes a row of the stored names, which the library's row then leaves out.

    Args:
        rows: all rows, by key.
        row: the library's row.
        stored: the names that the user's code stores.
        kind: the class whose namespace it is, if any.
        shared: the names that several rows share.
    """
    now, before = row.items(), row.before
    every = {**before, **now}
    names = {n for n in every if n in stored and now.get(n, row) is not before.get(n, row)}
    if not names:
        return
    row.before = {name: value for name, value in before.items() if name not in names}
    if isinstance(row.names, set) and row.names is not shared:
        row.names -= names
    else:
        row.names = Without(row.names, names)
    key = ("stored", id(row.owner if kind is None else kind))
    own = rows.get(key)
    if not isinstance(own, NamedRow):
        path = Path(str(row.path))
        if kind is None:
            own = NamedRow(row.owner, path, set())
        else:
            own = LibraryClassRow(kind, path, set())
        rows[key] = own
    assert isinstance(own.names, set)
    own.names |= names
    own.before |= {name: before[name] for name in names if name in before}


def belongs_to(module: types.ModuleType, name: str) -> bool:
    """Returns True if functions of a library's module use a variable of it."""
    held = vars(module)
    return any(
        name in names_of(value.__code__).globals
        for value in list(held.values())
        if isinstance(value, types.FunctionType) and value.__globals__ is held
    )


def _stored_by(codes: dict[types.CodeType, Owner], computed: Collection[str]) -> set[str]:
    """Returns the names of attributes that the user's code stores.

    Args:
        codes: the code that has run.
        computed: the names that it has computed.
    """
    own = [code for code, owner in codes.items() if owner is Owner.USER]
    found = {name for code in own for name in stores_of(code)}
    return found.union(computed) if any(map(_stores_by_name, own)) else found
