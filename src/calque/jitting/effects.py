"""The changes that each call of a program makes to Python state."""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from calque.jitting.owned_objects import is_made_key
from calque.program.results import Containers, Made
from calque.program.traced_numbers import TracedFloat
from calque.state import MISSING, Row, Snapshot
from calque.state.created_values import ValuesTemplate
from calque.state.numbers import are_numbers
from calque.state.rows import (
    AttributeRow,
    CellRow,
    ClassRow,
    DictRow,
    InstanceRow,
    LibraryClassRow,
    ListRow,
    NamedRow,
    SlotsRow,
    set_attribute,
    slots_of,
)
from calque.state.values import ATOMIC, same_contents


@dataclass(frozen=True)
class RowChange:
    """The keys of a row that change, or all of its contents, in order, or what is appended to it.

    Attributes:
        row: the row.
        keys: the keys of the new values.
        whole: whether the row then holds only these keys.
        path: the steps to it from a call's (args, kwargs), if it is one of the call's containers,
            or the attributes of one of its tensors.
        counts: whether the values are added to the row's numbers.
        appends: whether they are appended to a list; at its left if `at_left`.
        described: what is appended, in comparable form, if each trace finds it.
        made: the positions of keys that each call creates or finds, whose values follow the others.
    """

    row: Row
    keys: list[Any]
    whole: bool
    path: tuple[Any, ...] | None = None
    counts: bool = False
    appends: bool = False
    at_left: bool = False
    described: tuple[Any, ...] = ()
    made: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """The number of values, with those for the keys that each call creates."""
        return len(self.keys) + len(self.made)

    def numbers(self, values: list[Any]) -> Iterator[tuple[Any, Any]]:
        """Yields the numbers that replace others, by key."""
        row = self.row
        if self.whole or self.appends or self.path is not None or not row.settable:
            return
        for key, value in zip(self.keys, values):
            before = row.before.get(key, MISSING)
            number = before + value if self.counts else value
            if are_numbers(before, number):
                yield key, number

    def apply(self, values: list[Any], containers: Containers | None) -> None:
        """Make the change, in a call with these containers among the arguments."""
        row = self.row
        if self.appends:
            assert isinstance(row, ListRow)
            row.append(values, self.at_left)
            return
        if self.path is not None:
            assert containers is not None
            row = type(row)(containers.at(self.path), row.path)
        keys = self.keys
        if self.made:
            found = dict(zip(self.made, values[len(keys) :], strict=True))
            keys = [found.get(i, key) for i, key in enumerate(keys)]
        if self.whole:
            row.assign(dict(zip(keys, values)))
            return
        for key, value in zip(keys, values):
            row.put(key, row.get(key) + value if self.counts else value)


@dataclass(frozen=True)
class Rebound:
    """A variable to which the function assigned a new tensor, or a container of tensors.

    Attributes:
        holder, key: the variable.
        before: its old leaves, which are read again in each call.
        spec_before: the structure of their container.
        after: its new leaves.
        spec_after: the structure of their container.
    """

    holder: Row
    key: Any
    before: list[Any]
    spec_before: Any
    after: list[Any]
    spec_after: Any


def assigned(
    row: Row,
    now: Mapping[Any, Any],
    whole: bool,
    path: tuple[Any, ...] | None,
    known: Collection[int],
) -> tuple[RowChange, list[Any]]:
    """Returns the change of a row to these values by key, and the values for `RowChange.apply`.

    Args:
        known: the ids of the objects that existed before the trace.
    """
    keys = list(now)
    made = [
        i
        for i, key in enumerate(keys if isinstance(row, DictRow) else ())
        if isinstance(key, torch.Tensor) or is_made_key(key, known)
    ]
    values = [*now.values(), *(keys[i] for i in made)]
    for i in made:
        keys[i] = None
    return RowChange(row, keys, whole, path, made=tuple(made)), values


class Effects:
    """The changes of one trace, in a form that each call can repeat.

    Args:
        changes: the changes.
        template: creates their values.
        computed: numbers that are computed from existing ones, with their positions.
        returned: how many of the values the function also returns.
        attributed: tensors whose attributes are the last of the values.
        given: the paths to the containers among the arguments.
    """

    def __init__(
        self,
        changes: list[RowChange],
        template: ValuesTemplate,
        computed: Sequence[tuple[Row, Any, Callable[[], Any]]] = (),
        returned: int = 0,
        attributed: Sequence[Made] = (),
        given: Iterable[tuple[Any, ...]] = (),
    ) -> None:
        self._changes = changes
        self._template = template
        self._computed = computed
        self._returned = returned
        self._attributed = attributed
        changed = {change.path for change in changes if change.path is not None}
        self._paths = [*changed, *given] if changed else []

    def __bool__(self) -> bool:
        return bool(self._changes or self._computed or self._returned or self._attributed)

    @property
    def appended(self) -> tuple[Any, ...]:
        """Returns what is appended to lists, in comparable form."""
        return tuple(c.described for c in self._changes if c.described)

    @property
    def lists(self) -> list[str]:
        """Returns the lists to which items are appended."""
        return [str(change.row.path) for change in self._changes if change.appends]

    def containers(self, given: Any) -> Containers | None:
        """Returns the containers among a call's (args, kwargs); None if it changes none."""
        return Containers(self._paths, given) if self._paths else None

    def apply(self, make: Callable[[Any], Any], containers: Containers | None) -> list[Any]:
        """Make the changes; returns the values that the function also returns.

        Args:
            make: returns the tensor for a description.
            containers: the call's containers, from before.
        """
        # Before the numbers they depend on change.
        numbers = [compute() for _, _, compute in self._computed]
        values = iter(self._template.build(make))
        for change in self._changes:
            change.apply([next(values) for _ in range(change.count)], containers)
        for (row, key, _), number in zip(self._computed, numbers):
            row.put(key, number)
        returned = [next(values) for _ in range(self._returned)]
        for one, attributes in zip(self._attributed, values, strict=True):
            vars(make(one)).update(attributes)
        return returned


def stands_alone(row: Row) -> bool:
    """Returns True if no other object's row describes the same state."""
    if isinstance(row, AttributeRow):
        return row.write is set_attribute
    kinds = (DictRow, ListRow, NamedRow, ClassRow, LibraryClassRow, CellRow)
    return type(row) in kinds


def is_rebuilt(value: object, known: Container[int]) -> bool:
    """Returns True if an object represents an argument whose class is a known container.

    Args:
        value: the object.
        known: the ids of the state's objects.
    """
    is_leaf = id(value) in known or type(value) in ATOMIC
    if is_leaf or isinstance(value, type):
        return False
    return hasattr(value, "__dict__") or bool(slots_of(type(value)))


def release_numbers(rows: Iterable[Row]) -> None:
    """Empty containers that were made for the trace, and may hold traced numbers."""
    for row in rows:
        if type(row) in (DictRow, ListRow):  # others belong to the call's tensors and objects
            row.before = {}
            row.assign({})
        elif type(row) in (InstanceRow, SlotsRow):
            for key in [key for key, value in row.before.items() if type(value) is TracedFloat]:
                row.put(key, row.before.pop(key).node.compute())


@contextmanager
def seen_apart(snapshot: Snapshot, unrepeatable: list[str]) -> Iterator[None]:
    """A context manager for code outside the program, such as signal handlers, whose changes must
    not be repeated.

    Args:
        snapshot: the state of the trace.
        unrepeatable: receives the reason why the program cannot serve a second call, if any.
    """
    before = {id(row): (row, now) for row, now in snapshot.changed()}
    try:
        yield
    finally:
        after = {id(row): (row, now) for row, now in snapshot.changed()}
        for key, (row, now) in (before | after).items():
            then = before.get(key, (row, {}))[1]
            if key not in before or key not in after or not same_contents(then, now):
                unrepeatable.append(f"a signal's handler changes {row.path}")
                break
