"""Changes of Python state by a traced function, which are undone after the trace and repeated by
each call.

The function runs once, its program many times. Differences between the rows of the snapshot before
and after the trace are effects: each call creates tensors from the program's outputs, assigns plain
values, and fills containers. If an effect cannot be undone (an iterator that was advanced), the
program is not kept, and the next call is traced again.
"""

import functools
from collections import ChainMap, Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from jax.core import Tracer

from calque.device.backend.printing import refuse_kept
from calque.errors import TraceError
from calque.jitting import effects
from calque.jitting.appended_items import Appending
from calque.jitting.copied_counts import Counts
from calque.jitting.effects import Effects, Rebound, RowChange, assigned, stands_alone
from calque.jitting.kept_objects import LeftContainers, is_or_holds, kept_objects
from calque.jitting.numbers import SteppedNumbers
from calque.jitting.owned_objects import held_by
from calque.program import trees
from calque.program.lazy_arguments import is_unread
from calque.program.results import ArgumentContainer, AttributeStep, Made
from calque.state import MISSING, STANDING_IN, Row, Snapshot, same_value
from calque.state.contents import elements_of, items_of
from calque.state.created_classes import is_created_again
from calque.state.created_values import ValuesTemplate
from calque.state.paths import Path
from calque.state.plain import tells_its_end
from calque.state.rows import DictRow, InstanceRow, ListRow, SetRow, SlotsRow, slots_of
from calque.state.values import ATOMIC, is_of_values, is_same_key, same_keys

_CALLED = (FunctionType, MethodType, functools.partial)
"""Objects that may be created for each call, and belong to the call if the function stores them."""

_DESCRIBED = (torch.Tensor, np.ndarray, bytearray, memoryview, Tracer)  # tracers are then refused


class PythonState:
    """The Python state of a trace, to restore after an error or compare after it.

    Attributes:
        snapshot: the rows.
        unrepeatable: the reasons why the program cannot serve a second call; empty if it can.
        given: the path to each container among the arguments, by id.
        numbers: the numbers of the optimizers that step.
        freed: variables that held tensors, to which `effects` assigns different ones.
        counted: variables whose number each call increments.
        assigned: other variables of the state that change, with None for all keys of a row.
        appended: lists to which each call appends.
        kept: the ids of objects of the state that each call returns or stores.
        counts: the counts for which other numbers stand.
        left: the containers that `look` found replaced in their variables.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.numbers: SteppedNumbers = SteppedNumbers(snapshot)
        self.unrepeatable: list[str] = []
        self.given: dict[int, tuple[Any, ...]] = {}
        self._arguments: list[tuple[tuple[Any, ...], Row]] = []
        self._kept: list[Any] = []
        self._passed: list[Any] = []
        self._own: Collection[tuple[Any, ...]] = ()
        self._changes: list[tuple[RowChange, list[Any]]] = []
        self._changed: list[tuple[Row, dict[Any, Any]]] = []
        self._holders: Counter[int] = Counter()
        self.freed: list[Rebound] = []
        self.counted: set[tuple[Row, Any]] = set()
        self.assigned: set[tuple[Row, Any]] = set()
        self.appended: set[Row] = set()
        self.kept: set[int] = set()
        self.counts: Counts = Counts()
        self.left: LeftContainers = LeftContainers()

    @property
    def changes_containers(self) -> bool:
        """Returns True if the function changes lists or dicts."""
        return any(isinstance(change.row, DictRow | ListRow) for change, _ in self._changes)

    def changed_numbers(self) -> list[tuple[Row, Any, Any]]:
        """Returns the numbers that each call assigns in place of others, as (row, key, number)."""
        changes = ((change.row, change.numbers(values)) for change, values in self._changes)
        return [(row, *one) for row, numbers in changes for one in numbers]

    def expect_arguments(
        self, args: Any, kwargs: Any, own: Collection[tuple[Any, ...]] = ()
    ) -> None:
        """Record the containers among the function's arguments.

        Args:
            args, kwargs: the arguments.
            own: the paths to those that are part of the state.
        """
        self._own = own
        for index, value in enumerate(args):
            self._expect(value, (0, index), Path("arguments").item(index))
        for name, value in kwargs.items():
            self._expect(value, (1, name), Path(name))

    def _expect(self, value: object, steps: tuple[Any, ...], path: Path) -> None:
        if steps in self._own or issubclass(type(value), STANDING_IN):
            return
        if is_unread(value) or type(value) in _CALLED:
            self.given[id(value)] = steps
            if id(value) not in self.snapshot.known:  # it represents a container of the call
                self.snapshot.code.bring(value)
            return
        if isinstance(value, torch.Tensor):
            self._arguments.append((steps, InstanceRow(value, path)))
            return
        inner: list[tuple[Any, Any]] = []
        if isinstance(value, dict):
            self._arguments.append((steps, DictRow(value, path)))
            inner += items_of(value)
        elif isinstance(value, list | deque):
            inner += enumerate(elements_of(value))
            self._arguments.append((steps, ListRow(value, path)))
        elif isinstance(value, tuple):
            inner += enumerate(elements_of(value))
            self._kept += [value] if inner else []
        elif type(value) is set:
            self._arguments.append((steps, SetRow(value, path)))
        elif not effects.is_rebuilt(value, self.snapshot.known):
            self._passed.append(value)
            return
        if id(value) in self.given:
            return
        rows: list[Row] = [InstanceRow(value, path)] if hasattr(value, "__dict__") else []
        if slots_of(type(value)):
            rows.append(SlotsRow(value, path))
        for row in rows:
            self._arguments.append((steps, row))
            self._kept.append(value)
            inner += ((AttributeStep(name), item) for name, item in row.before.items())
        if rows:
            self.snapshot.visit(type(value), type(value).__name__)
        self.given[id(value)] = steps
        for key, item in inner:
            inside = path.attribute(key) if type(key) is AttributeStep else path.item(key)
            self._expect(item, (*steps, key), inside)

    def release_arguments(self) -> None:
        """Release the numbers in containers among the arguments."""
        self._kept.clear()
        effects.release_numbers(row for _, row in self._arguments)

    def keys_changed(self, rebound: Iterable[Rebound]) -> set[tuple[int, Any]]:
        """Returns what the function changes: the id of a row and a key, or None for all keys."""
        found = {(id(place.holder), place.key) for place in rebound}
        for change, _ in self._changes:
            whole = change.whole or change.appends
            found.update((id(change.row), key) for key in ([None] if whole else change.keys))
        return found

    def restore(self) -> None:
        """Restore everything.

        Raises:
            TraceError: something cannot be restored.
        """
        left = self.snapshot.restore()
        if left:
            self.counts.lost, row = True, left[0]
            raise TraceError(
                f"{row.path} was advanced while the function was traced, in a trace that failed or "
                "has to be repeated.\nAdvance it outside the jitted function, and pass the items."
            )

    def look(self) -> set[int]:
        """Find the changes; returns the ids of the containers and objects in the new values."""
        self.snapshot.visit_new()
        self.counts.find(self.snapshot.rows.values())
        self._changed = list(self.snapshot.changed())
        arguments = [(row, row.items()) for _, row in self._arguments]
        for row, now in (*self._changed, *arguments):
            if row.restored and row.settable:
                new = (v for k, v in now.items() if v is not row.before.get(k, MISSING))
                for value in new:
                    self._holders.update(map(id, self._held_by(value, True)))
                self.left.look(row, now, self.snapshot.known)
        known = self.snapshot.known
        return {key for key in self._holders if key not in known and key not in self.given}

    def places(self) -> set[int]:
        """Returns the ids of the state's containers, and of the objects that `look` found."""
        found = {id(row.owner) for row in self.snapshot.rows.values()}
        return found.union(id(now) for _, now in self._changed)

    def collect(self, returned: Iterable[Any] = ()) -> list[Rebound]:
        """Record every change, undo those that can be undone, and return the tensors.

        Args:
            returned: what the function also returns.
        """
        rebound: list[Rebound] = []
        for value in returned:
            self._holders.update(map(id, self._held_by(value, True)))
        self.unrepeatable += self.snapshot.unrepeatable
        changed, self._changed = self._changed, []
        given = self.given.keys() | {id(row.owner) for _, row in self._arguments}
        appending = Appending(self.snapshot, [row for row, _ in changed], given, self.counts)
        collected: list[tuple[Row, dict[Any, Any]]] = []
        for row, now in changed:
            if not row.restored:  # a library's private state
                row.guarded = False
            elif not row.settable:
                self.unrepeatable.append(f"{row.path} moves on")
            elif (found := appending.change(row, now.values())) is not None:
                self._changes.append(found)
                self.appended.add(row)
            else:
                collected.append((row, now))
        arguments = [(row, row.items(), steps) for steps, row in self._arguments]
        arguments = [one for one in arguments if one[0].is_changed(one[1])]
        # Everything is restored first, because what a variable held may have changed, too.
        for row in (*self.appended, *(row for row, *_ in (*collected, *arguments))):
            row.restore()  # the arguments' tensors belong to the trace
        for row, now in collected:
            self._collect(row, now, rebound, None)
        for row, now, steps in arguments:
            self._collect(row, now, None, steps)
        return rebound

    def _collect(
        self,
        row: Row,
        now: dict[Any, Any],
        rebound: list[Rebound] | None,
        path: tuple[Any, ...] | None,
    ) -> None:
        before = row.before
        kept = [key for key in before if key in now]
        order = kept + [key for key in now if key not in before]
        resized = isinstance(row, ListRow) and len(now) != len(before)
        if resized or (row.ordered and not same_keys(order, now)):
            self._changes.append(assigned(row, now, True, path, self.snapshot.known))
            self.assigned.add((row, None))
            return
        changed: dict[Any, Any] = {}
        for key in before:
            if key not in now and key not in row.ignored:
                changed[key] = MISSING
        for key, value in now.items():
            old = before.get(key, MISSING)
            if value is old or key in row.ignored or same_value(value, old):
                continue
            if path is None and type(value) is type(old) is int and stands_alone(row):
                self._count(row, key, value - old)
                continue
            self.assigned.add((row, key))
            held = None if rebound is None else trees.tensors_in(old)
            leaves = None if held is None else self._leaves_of(value)
            if held is None or leaves is None:
                changed[key] = value
                if held is not None and self._is_made_here(value):
                    self.freed.append(Rebound(row, key, *held, [], None))
            else:
                assert rebound is not None
                rebound.append(Rebound(row, key, *held, *leaves))
        if changed:
            self._changes.append(assigned(row, changed, False, path, self.snapshot.known))

    def _count(self, row: Row, key: Any, by: int) -> None:
        """Record a changed number; if code does not read it, each call adds the same amount."""
        known = any(one.owner is row.owner and is_same_key(name, key) for one, name in self.counted)
        self.counted.add((row, key))
        if not known:  # no other row has this variable
            self._changes.append((RowChange(row, [key], False, counts=True), [by]))

    def _held_by(self, value: object, attributes: bool = False) -> Iterator[Any]:
        """Yields the containers and objects in a value that may also be referenced elsewhere,
        itself first; not what is in those that existed before.

        Args:
            attributes: whether the attributes of tensors are searched.
        """
        if type(value) in ATOMIC:
            return iter(())
        found = held_by([value], self.snapshot.known, attributes)
        return (one for one in found if not is_of_values(one))

    def _leaves_of(self, value: object) -> tuple[list[Any], Any] | None:
        """Returns the new tensors of a variable that held tensors; None if it holds other
        values.
        """
        if id(value) in self.given:
            return [value], None
        if is_or_holds(value, self.given) or self.counts.occur_in(value):
            return None
        for one in self._held_by(value):  # keep the identity of containers referenced elsewhere
            is_known = id(one) in self.snapshot.known and id(one) not in self.left.moving
            if is_known or self._holders[id(one)] > 1:
                return None
            if tells_its_end(one) or is_created_again(type(one), self.snapshot.known):
                return None
        return trees.tensors_in(value)

    def _is_made_here(self, value: object) -> bool:
        """Returns True if a value consists of tensors that each call creates."""
        known = self.snapshot.known
        if any(id(one) in known or id(one) in self.given for one in self._held_by(value)):
            return False
        return trees.tensors_in(value) is not None

    def describing(self, describe: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns a function like `describe`, which describes tensors, that also describes the
        call's containers.
        """

        def description(value: object) -> Any:
            steps = self.given.get(id(value))
            return describe(value) if steps is None else ArgumentContainer(steps)

        return description

    def described(
        self,
        describe: Callable[[Any], Any],
        returned: list[Any],
        same: Mapping[int, Any],
        attributed: list[tuple[Made, dict[str, Any]]],
    ) -> Effects:
        """Returns the changes, without `Rebound`s.

        Args:
            describe: returns the description of a tensor.
            returned: objects that the function also returns, and each call creates.
            same: other objects that are the same in each call, by id.
            attributed: the described tensors that have attributes, with these; describing more
                tensors may add to the list.
        """
        self.counts.check(self.snapshot, self.assigned, self.counted)
        found, changes = list(self._stored()), self._changes
        self._changes = []
        # Storing what an argument already holds changes nothing, and must not be forgotten.
        self.kept.update(id(one) for one in self._passed if id(one) in self.snapshot.known)
        self._passed.clear()
        given = {key: ArgumentContainer(steps) for key, steps in self.given.items()}
        known: Any = ChainMap(self.snapshot.known, dict(same)) if same else self.snapshot.known
        if self.left.moving:
            known = {key: one for key, one in known.items() if key not in self.left.moving}
        template = ValuesTemplate(
            lambda: found + returned + [held for _, held in attributed],
            known,
            describe,
            given,
            _DESCRIBED,
            self.counts.copied if self.counts else None,
        )
        self.counts.refuse_any(key for change, _ in changes for key in change.keys)
        refuse_kept(template.texts)
        self.keep(template.kept)
        self.unrepeatable += self.left.stored(self.kept)
        for value in template.unmade:
            is_class = isinstance(value, type)
            what = f"the class {value.__qualname__}" if is_class else f"a {type(value).__name__}"
            why = "is stored or returned, which cannot be created again in each call"
            self.unrepeatable.append(f"{what} {why}")
        made, tensors = [change for change, _ in changes], [one for one, _ in attributed]
        attributed.clear()
        paths, computed = self.given.values(), self.numbers.computed
        return Effects(made, template, computed, len(returned), tensors, paths)

    def keep(self, values: Iterable[Any]) -> None:
        """Record what each call returns or stores."""
        self.kept |= kept_objects(values, self.snapshot.known)

    def kept_by_calls(self) -> set[int]:
        """Returns the ids of the known objects that each call returns or stores."""
        return self.kept | kept_objects(self._stored(), self.snapshot.known)

    def _stored(self) -> Iterator[Any]:
        return (value for _, values in self._changes for value in values)

    def prepared(self, optimizer: object, made: list[tuple[Any, Any]], is_new: bool) -> None:
        """Mark what was prepared for an optimizer's step as existing before the trace.

        Args:
            made: the containers and keys.
            is_new: whether the function may have created it. Later calls would find its state.
        """
        self.snapshot.visit(optimizer, type(optimizer).__name__)
        for container, key in made:
            row = self.snapshot.rows.get(id(container))
            if row is not None and key in container:
                row.before[key] = container[key]
                self.snapshot.visit(container[key], row.path.item(key))
        if is_new and any(container is not vars(optimizer) for container, _ in made):
            self.unrepeatable.append(
                f"the function creates the state of {type(optimizer).__name__}"
            )
