"""The Python state around a traced program, as it was before a run.

Like `Snapshot`, but cheaper for modules: a module has one record, shared with the trace's leaf
modules, and no rows until it changes.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import attrgetter, is_
from types import CodeType
from typing import Any

import torch

from calque.state import ATOMIC, Row, Snapshot
from calque.state.finding.classes import hold_kind
from calque.state.ownership import Owner, home_of_class
from calque.state.paths import Path
from calque.state.rows import HOOKS_OF_TENSORS, AttributeRow, CacheRow, DictRow
from calque.state.stores import take_apart_stored
from calque.tracing.core.active import current_trace, suspended
from calque.tracing.symbolic.generators import GeneratorStates
from calque.tracing.symbolic.leaves import ModuleState
from calque.upstream import torch_c

_MEMBERS = frozenset(("_parameters", "_buffers", "_modules"))
_hooks = attrgetter("_backward_hooks")
_late_hooks = attrgetter("_post_accumulate_grad_hooks")


class Surroundings(Snapshot):
    """Tracks the Python state that the traced program reaches.

    Args:
        starts: called before the program's code first runs, with the code, its global variables,
            and whether it is the user's rather than a package's.

    Attributes:
        modules: the modules found so far, by id.
        generators: the states of the `torch.Generator`s found so far.
        of_leaves: the keys of the rows that only leaf functions reach. Leaf functions run in each
            run of the graph, and once for the abstract value.
    """

    def __init__(self, starts: Callable[[CodeType, dict[str, Any], bool], None]) -> None:
        self._starts = starts
        self.modules: dict[int, ModuleState] = {}
        self.of_leaves: set[Any] = set()
        self.generators: GeneratorStates = GeneratorStates()
        self._paths: dict[int, Path] = {}
        self._modules_of_leaves: set[int] = set()
        self._bare: list[tuple[torch.Tensor, Path, str]] = []
        super().__init__(passes=_is_ours)

    def visit_module(self, value: torch.nn.Module, path: Path) -> None:
        found = self.modules[id(value)] = ModuleState(value)
        self._paths[id(value)] = path
        self.known[id(vars(value))] = vars(value)
        for name, container, members in found.full:
            if name in _MEMBERS:
                self.known[id(container)] = container
                self._visit_members(members.items(), path)
            else:
                self.stack.append((container, path.attribute(name)))
        if found.others:
            self._visit_members(found.others, path)
        hold_kind(self, value, path)

    def _visit_members(self, held: Iterable[tuple[str, Any]], path: Path) -> None:
        stack, known = self.stack, self.known
        for name, item in held:
            kind = type(item)
            if kind in ATOMIC or id(item) in known:
                continue
            if kind is torch.nn.Parameter and item.requires_grad and _is_bare(item):
                known[id(item)] = item
                self._bare.append((item, path, name))
            else:
                stack.append((item, path.attribute(name)))

    def visit_generator(self, value: Any, path: Path) -> None:
        """See `Snapshot.visit_generator`."""
        self.generators.visit(value, path)

    def visit_logger(self, value: logging.Logger, path: Path) -> None:
        """See `Snapshot.visit_logger`; includes the logger's cached levels."""
        self.hold(_LevelsRow(value, path))
        super().visit_logger(value, path)

    def visit_library_cache(self, value: Callable[..., Any], path: Path) -> None:
        """See `Snapshot.visit_library_cache`; entries that a trace adds are removed."""
        if id(value) not in self.rows:
            self.hold(_LibraryCacheRow(value, path))

    def enter(self, code: CodeType, held: dict[str, Any], *how: Any) -> bool:
        """See `Snapshot.enter`."""
        rows, modules = len(self.rows), len(self.modules)
        with suspended(), torch_c.DisableTorchFunction():
            entered = super().enter(code, held, *how)
        if entered and self.codes[code] >= Owner.PACKAGE:
            self._starts(code, held, self.codes[code] is Owner.USER)
        if current_trace() is None:
            self.of_leaves.update(islice(self.rows, rows, None))
            self._modules_of_leaves.update(islice(self.modules, modules, None))
        return entered

    def changed(self) -> Iterator[tuple[Row, dict[Any, Any]]]:
        """See `Snapshot.changed`."""
        self._make_rows()
        return super().changed()

    def changed_by_program(self) -> Iterator[tuple[Row, dict[Any, Any]]]:
        """Like `changed`, without the changes of leaf functions."""
        self._make_rows()
        take_apart_stored(self)
        of_leaves = self.of_leaves
        rows = [row for key, row in self.rows.items() if key not in of_leaves]
        for row in rows:
            if type(row) is DictRow and _is_untouched(row.owner, row.before):
                continue
            now = row.items()
            if row.is_changed(now):
                yield row, now

    def _make_rows(self) -> None:
        """Add rows for changes of modules and their parameters."""
        for key, module in self.modules.items():
            if not module.is_same():
                path = self._paths[key]
                rows = [self._row(vars(module.module), path, module.held, attribute=True)]
                empty = [(name, held, {}) for name, held in zip(module.names, module.empty)]
                for name, held, before in (*module.full, *empty):
                    if name in _MEMBERS:
                        rows.append(self._row(held, path.members(name), before, attribute=True))
                    elif not before and isinstance(held, dict):
                        rows.append(self._row(held, path.attribute(name), before))
                if key in self._modules_of_leaves:
                    self.of_leaves.update(id(row.owner) for row in rows)
        tensors = [tensor for tensor, _, _ in self._bare]
        if any(map(_hooks, tensors)) or any(map(_late_hooks, tensors)):
            for tensor, path, name in self._bare:
                if not _is_bare(tensor):
                    row = AttributeRow(tensor, path.attribute(name), HOOKS_OF_TENSORS, None)
                    row.before = dict.fromkeys(HOOKS_OF_TENSORS)
                    self.rows.setdefault(("t", id(tensor)), row)

    def _row(
        self, held: dict[str, Any], path: Path, before: dict[str, Any], attribute: bool = False
    ) -> Row:
        row = self.rows.get(id(held))
        if row is None:
            row = self.rows[id(held)] = DictRow(held, path, attribute)
            row.before = before
        return row


class _LibraryCacheRow(CacheRow):
    """A library's cache, whose entries are not compared, because there may be many."""

    __slots__ = ()

    def __init__(self, owner: Any, path: Path) -> None:
        super().__init__(owner, path)
        self.restored = True

    def items(self) -> dict[Any, Any]:
        return {"misses": self.owner.cache_info().misses}

    def restore(self) -> None:
        if self.is_changed():
            self.owner.cache_clear()
            self.rebase()


class _LevelsRow(CacheRow):
    """A logger's cached levels."""

    __slots__ = ()

    def items(self) -> dict[Any, Any]:
        return {"misses": len(self.owner._cache)}

    def restore(self) -> None:
        if self.is_changed():
            self.owner._cache.clear()


def _is_ours(value: object) -> bool:
    return isinstance(value, torch.fx.Proxy) or home_of_class(type(value)).startswith("calque.")


def _is_bare(tensor: torch.Tensor) -> bool:
    return _hooks(tensor) is None and _late_hooks(tensor) is None


def _is_untouched(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    """Returns True if a dict holds identical objects, a quick check that succeeds for most rows."""
    kind = OrderedDict if isinstance(now, OrderedDict) else dict
    if kind.__len__(now) != len(before):
        return False
    if not all(map(is_, kind.values(now), before.values())):
        return False
    keys = kind.keys(now)
    return all(map(is_, keys, before)) or list(keys) == list(before)
