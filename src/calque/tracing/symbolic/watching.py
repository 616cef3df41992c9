"""Changes of Python state by a traced program.

A graph computes tensors; it cannot append to a list of the program or count in a dictionary. Such a
change would happen once for each traced path, and never when the graph runs.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from calque.errors.handlers import settles
from calque.state import MISSING, Row, Running, same_value
from calque.state.impure_builtins import NAMES
from calque.state.names import names_of
from calque.state.opaque import moves
from calque.state.ownership import Owner, owner_of_class
from calque.state.paths import Path
from calque.state.rows import BytesRow, CacheRow, ListRow, NamedRow, SetRow, StateRow
from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.core.torch_settings import AMBIENT
from calque.tracing.proxies.proxy import has_proxy
from calque.tracing.proxies.wrapping import unpatched
from calque.tracing.symbolic.changed_lines import Lines
from calque.tracing.symbolic.changes import Change, change_of, described, is_same
from calque.tracing.symbolic.generators import GeneratorStates, set_within
from calque.tracing.symbolic.leaves import ModuleState
from calque.tracing.symbolic.objects import of_object
from calque.tracing.symbolic.surroundings import Surroundings
from calque.tracing.symbolic.types import STAND_INS

_DEFAULT = Path("torch.default_generator")
_SETTERS = ("manual_seed", "set_state", "seed", "graphsafe_set_state", "set_offset")
_STATES = frozenset(("getstate", "get_state", "bit_generator"))
_OF_GENERATORS = frozenset(("get_state", "initial_seed"))
_HOOKS_OF_NODES = frozenset(("register_prehook", "register_multi_grad_hook"))
_NODES = frozenset(("grad_fn", "next_functions", "get_gradient_edge"))
_LOGGING = logging.__file__  # reads the time for each message, but no result depends on it


class StateWatch:
    """The state that the program could change, as it was before a run.

    Args:
        root: the module or function that is traced.
        method: the traced method, if the root is a module.
        given: the positional and keyword arguments; None without an example.
        starts: called before the program's code first runs, with the code, its global variables,
            and whether it is the user's rather than a package's.

    Attributes:
        ran: the file and name of the functions that are known to have run.
    """

    def __init__(self, root: Any, method: str, given: Any, starts: Callable[..., None]) -> None:
        self._snapshot = Surroundings(starts)
        self._running = Running(self._snapshot)
        self.ran: set[tuple[str, str]] = set()
        if isinstance(root, torch.nn.Module):
            self._snapshot.visit(root, "self")
            self._snapshot.visit(getattr(type(root), method, None), method)
        else:
            self._snapshot.visit(root, getattr(root, "__name__", ""))
        self._snapshot.visit(of_object(root), "self")
        for name, value in _named(root, method, *(given or ((), {}))):
            self._snapshot.visit(value, name)
        self.generators.visit(torch.default_generator, _DEFAULT)
        self._ambient = {name: read() for name, (read, _) in AMBIENT.items()}

    @property
    def modules(self) -> Mapping[int, ModuleState]:
        """The modules that the program can reach, by id, in their state before the run."""
        return self._snapshot.modules

    @property
    def generators(self) -> GeneratorStates:
        """The states of random number generators."""
        return self._snapshot.generators

    @property
    def names_default_generator(self) -> bool:
        """Whether the program may set the state of PyTorch's default generator directly."""
        if id(torch.default_generator) in self._snapshot.known:
            return True
        return self.asks(lambda code: "default_generator" in names_of(code).words)

    @property
    def known(self) -> Mapping[int, Any]:
        """The objects that the program can reach, by id."""
        return self._snapshot.known

    def running(self) -> AbstractContextManager[None]:
        """A context manager in which running code is searched for state that it could change."""
        return self._running.watching()

    def seen(self) -> tuple[list[Change], list[str]]:
        """Returns the changes, and descriptions of actions that differ from call to call.

        Nothing is undone, because the run was a real one.
        """
        self._forget_patches()
        changed = list(self._snapshot.changed_by_program())
        changes = [change for change, _ in self._changes(changed, lambda value: value)]
        unrepeatable = [w for w in self._snapshot.unrepeatable if not w.startswith(_LOGGING)]
        return changes, [*unrepeatable, *self._reads_of_positions()]

    def leave(self, member_of: Callable[[Any], Any]) -> list[Change]:
        """Undo the changes; returns those that can be reapplied.

        Args:
            member_of: returns the parameter that a proxy represents.

        Raises:
            TraceError: something else was changed, or the program did something that differs from
                call to call.
        """
        self._forget_patches()
        changes: list[Change] = []
        refused: Change | None = None
        changed = list(self._snapshot.changed_by_program())
        for change, may_stay in self._changes(changed, member_of):
            if may_stay:
                changes.append(change)
            else:
                refused = refused or change
        seen = self._snapshot.unrepeatable
        unrepeatable = [what for what in seen if not what.startswith(_LOGGING)][:1]
        unrepeatable += self._reads_of_positions()
        generators = list(self.sets_generators())
        self._restore(bool(changed))
        if refused is not None:
            raise refusal(refused)
        for what in generators:
            raise SymbolicTraceError(what)
        for what in unrepeatable:
            raise SymbolicTraceError(
                f"{what} while tracing, but the graph would not repeat it.\nDo it outside the "
                "program, and pass its result as an argument."
            )
        return changes

    def foresee(self) -> bool:
        """Search all code that could run, instead of code as it runs; returns True if this
        suffices.

        It is cheaper, and costs nothing while the program runs. It does not suffice if the program
        calls something that differs from call to call, such as a clock.
        """
        self._snapshot.follow_all()
        self._snapshot.look_into_schedulers()
        if self._snapshot.has_differing:
            return False
        codes = [code for code, owner in self._snapshot.codes.items() if owner is Owner.USER]
        return all(NAMES.isdisjoint(names_of(code).words) for code in codes)

    def asks(self, question: Callable[[CodeType], bool], whose: Owner = Owner.USER) -> bool:
        """Returns True if `question` is true for any of the program's code that was searched.

        Args:
            whose: the owner furthest from the user whose code counts.
        """
        codes = self._snapshot.codes.items()
        return any(question(code) for code, owner in codes if owner >= whose)

    def sets_generators(self) -> Iterator[str]:
        """Yields messages for generators whose state the program has set."""
        for generator, path in self.generators.all_set():
            if generator is torch.default_generator and not self.names_default_generator:
                continue
            words = (w for w in _SETTERS if self.asks(lambda code: w in names_of(code).words))  # noqa: B023
            yield f"{self._lines().naming(next(words, _SETTERS[0]))}{set_within(str(path))}"

    def hooks_nodes(self) -> Iterator[str]:
        """Yields messages for hooks that the program may register on autograd nodes, which modes do
        not intercept.
        """
        for code, owner in self._snapshot.codes.items():
            names = names_of(code)
            named = names.words | names.globals if owner is Owner.USER else frozenset()
            found = named & _HOOKS_OF_NODES
            if named & _NODES and "register_hook" in named:
                found |= {"register_hook"}
            for word in sorted(found):
                yield (
                    f"{self._lines().naming(word)}{word} is called on an autograd node, which a "
                    "graph would not repeat"
                )

    def forget(self) -> None:
        """Release all references to the program's objects."""
        for held in (self._snapshot.rows, self._snapshot.known, self._snapshot.modules):
            held.clear()

    @settles
    def restore(self) -> None:
        """Undo the changes."""
        self._forget_patches()
        self._restore(any(True for _ in self._snapshot.changed_by_program()))

    def _restore(self, has_changed: bool) -> None:
        self._snapshot.unrepeatable.clear()
        own = torch.default_generator
        self.generators.restore(but=None if self.names_default_generator else own)
        for name, (read, write) in AMBIENT.items():
            if read() != self._ambient[name]:
                write(self._ambient[name])
        if not has_changed and not self._snapshot.of_leaves:
            return
        self._snapshot.restore()
        for row, _ in list(self._snapshot.changed()):
            if isinstance(row, StateRow):
                row.restore()  # includes random numbers that a library draws

    def _forget_patches(self) -> None:
        """Replace patched leaf functions in the recorded state with the originals."""
        for row in self._snapshot.rows.values():
            for key, value in [*row.before.items()] if isinstance(row, NamedRow) else ():
                if id(value) in STAND_INS:
                    del row.before[key]
                else:
                    row.before[key] = unpatched(value)

    def _changes(
        self, changed: list[tuple[Row, dict[Any, Any]]], member_of: Callable[[Any], Any]
    ) -> Iterator[tuple[Change, bool]]:
        """Yields each change, and whether it can be reapplied."""
        for name, (read, write) in AMBIENT.items():
            before, now = self._ambient[name], read()
            if now != before:
                what = f"is left at {now}, but was {before} before"
                place = self._lines().naming(f"set_{name.rpartition('.')[2]}")
                yield Change(name, name, what, place, before, now, write), False
        for row, now in changed:
            if isinstance(row, CacheRow) or not (row.restored or isinstance(row, StateRow)):
                continue  # a library's private state, or a cache that is emptied
            if not row.settable:
                name = str(row.path)
                yield self._change(row, None, "advances", row.before, now, name), False
            elif isinstance(row, (ListRow, SetRow)):
                yield from self._changed_members(row, now)
            else:
                yield from self._changed_names(row, now, member_of)

    def _changed_members(self, row: Row, now: dict[Any, Any]) -> Iterator[tuple[Change, bool]]:
        values, name = list(now.values()), str(row.path)
        what = f"changes in length from {len(row.before)} to {len(now)}"
        if has_proxy(values):
            what = "is assigned a value from the traced program"
        elif len(now) == len(row.before):
            what = "has changed members"
        change = self._change(row, None, what, row.before, now, name)
        filled = not row.before and not has_proxy(values)
        yield change._replace(write=row.assign), filled

    def _changed_names(
        self, row: Row, now: dict[Any, Any], member_of: Callable[[Any], Any]
    ) -> Iterator[tuple[Change, bool]]:
        for key in {**row.before, **now}:
            before, after = row.before.get(key, MISSING), now.get(key, MISSING)
            after_it = member_of(after)
            if key in row.ignored or same_value(before, after_it) or is_same(before, after_it):
                continue
            if after is MISSING:
                what = "is deleted"
            elif isinstance(row, BytesRow):
                what = "is written to"
            elif has_proxy((after,)) and not row.attribute:
                what = "is assigned a value from the traced program"
            elif before is MISSING and not has_proxy((after,)):
                what = f"becomes {described(after)}"
            else:
                what = change_of(before, after)
            if not has_proxy((before,)):
                change = self._change(row, key, what, before, after)
                yield change, not has_proxy((after,)) and self._may_stay(row, before)
        if (
            row.ordered
            and not row.attribute
            and now.keys() == row.before.keys()
            and [*now] != [*row.before]
        ):
            what, name = "has keys in a different order", str(row.path)
            yield self._change(row, None, what, row.before, now, name), False

    def _may_stay(self, row: Row, before: object) -> bool:
        """Returns True if it suffices that a second call, which starts from the state after the
        first, does the same.

        This holds for values that a first call initializes, and for values that a library stores on
        its objects.
        """
        if before is MISSING or before is None:
            return True
        objects = (o for o in self._snapshot.known.values() if _instance_dict(o) is row.owner)
        return any(owner_of_class(type(o)) is Owner.PACKAGE for o in objects)

    def _change(
        self, row: Row, key: object, what: str, before: object, after: object, name: str = ""
    ) -> Change:
        name = name or row.name(key)
        inner = name if row.attribute else str(row.path)
        if ".param_groups[" in name:
            inner = self._scheduler_changed() or inner
        place = self._lines().changing(inner, None if row.attribute else key)
        return Change((id(row.owner), key), name, what, place, before, after, partial(row.put, key))

    def _scheduler_changed(self) -> str:
        """Returns the name of a scheduler that has stepped; "" if none has."""
        for value in self._snapshot.known.values():
            if issubclass(type(value), LRScheduler):
                row = self._snapshot.rows.get(id(vars(value)))
                if row is not None and row.is_changed():
                    return str(row.path)
        return ""

    def _lines(self) -> Lines:
        return Lines(self._snapshot.codes, self.ran)

    def _reads_of_positions(self) -> Iterator[str]:
        """Yields messages for reads of a state that advances, such as that of random numbers."""
        has_generator = self.generators.has_any_but(torch.default_generator)
        has_state = has_generator or any(moves(row.owner) for row in self._snapshot.moving)
        for code, owner in self._snapshot.codes.items():
            if owner is not Owner.USER:
                continue
            words = names_of(code).words
            found = words & _STATES if has_state else frozenset()
            if has_generator or "default_generator" in words:
                found |= words & _OF_GENERATORS
            for word in sorted(found):
                yield f"{self._lines().naming(word)}{word} reads the state of random numbers"


def _named(root: Any, method: str, args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Yields the arguments of a call, under the names of the program's parameters."""
    of_module = isinstance(root, torch.nn.Module)
    program = getattr(type(root), method, None) if of_module else of_object(root) or root
    try:
        bound = inspect.signature(program).bind(*(root,) * of_module, *args, **kwargs)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):  # it has no signature, or cannot be called in this way
        yield from (("the arguments", args), ("the keyword arguments", kwargs))
        return
    yield from [*bound.arguments.items()][of_module:]


def _instance_dict(value: object) -> Any:
    try:
        return object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):  # it has only slots
        return None


def refusal(change: Change) -> SymbolicTraceError:
    """Returns the error for a change that a graph would not make."""
    return SymbolicTraceError(
        f"{change.place}{change.name} {change.what}, which a graph would not repeat.\nReturn the "
        "value and let the caller store it, or write into a tensor that is a buffer. If only "
        "the first call does this, call the program once before tracing."
    )
