"""Generates the lines that check whether the guards of a program hold.

If a line finds a difference, it checks the guard itself, or leaves the call to the general path,
which checks all guards. So a line may fail although the guard holds, but not the other way round.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

import torch

from calque.device.memory.cell import Cell, regeometries
from calque.device.runtime.placement import spread
from calque.jitting.generated.kinds import kinds_of
from calque.jitting.generated.source import LEAVE, GeneratedFunction
from calque.jitting.generated.words import ContainerWords, WatchedTensors
from calque.jitting.guards import CellGuard, GradientGuard, Guard
from calque.program.equal_state import EqualGuard
from calque.program.pinning import PlacementGuard
from calque.state import StateGuard
from calque.state.code_attributes import assignments
from calque.state.identity import Identities
from calque.state.rows import HOOKS_OF_TENSORS
from calque.state.values import MISSING
from calque.state.versions import Versions, own_dict, version_of

_FEW = 64
"""The maximum number of tensors that are checked individually; more are compared as lists."""
_MOST_PLACES = 256
"""The maximum number of other objects that are."""
_PLACES = {
    "variable": "{}.cell_contents is not {}",
}
_ATTRIBUTES = frozenset(("__dict__", "__mro__", "__name__", "default_factory", "maxlen"))
"""The attributes whose names may occur in a line."""
Known = frozenset[int]
"""The ids of tensors whose words are compared."""
_NONES = repeat(None)
_array = attrgetter("array")
_only_none = frozenset((None,)).issuperset
_storage_of = torch.Tensor.untyped_storage
_offset = torch.Tensor.storage_offset
_requires_grad = attrgetter("requires_grad")
_gradient = attrgetter("grad")


def write_guards(
    source: GeneratedFunction,
    guards: Sequence[Guard],
    grad: bool,
    alone: bool,
    watched: WatchedTensors | None = None,
) -> None:
    """Write the lines that leave the function if a guard does not hold.

    Args:
        source: the source of the function.
        guards: the guards, which hold now.
        grad: whether gradients are enabled, now and in each call.
        alone: whether there are no arguments, with which the kinds would have been compared.
        watched: the tensors of the guards.
    """
    watched = watched or WatchedTensors(guards, ())
    source.line("try:")
    source.indent()
    if alone and watched.beside:
        beside = watched.beside
        source.line(f"if not {{}}(*{{}}): {LEAVE}", kinds_of(beside), tuple(beside))
    if watched.words is not None:
        watched.words.write(source)
    seen = watched.known.union(map(id, watched.beside)) if grad else watched.known
    for guard in guards:
        if type(guard) is GradientGuard:
            _write_gradients(source, guard, seen, watched.known)
        elif type(guard) in _WRITERS:
            _WRITERS[type(guard)](source, guard, watched.known)
        else:
            source.line(f"if not {{}}(): {LEAVE}", guard.holds)
    source.indent(-1)
    # For an unbound variable, a container that another thread changes, or a gradient whose class is
    # not hashable.
    errors = "ValueError, RuntimeError, AttributeError, LookupError, TypeError"
    source.line(f"except ({errors}): {LEAVE}")


def _write_gradients(
    source: GeneratedFunction, guard: GradientGuard, seen: Known, known: Known
) -> None:
    """Write the lines that compare gradients, and flags of tensors whose ids are not in `seen`."""
    flags = [pair for pair in zip(guard.leaves, guard.flags) if id(pair[0]) not in seen]
    if len(flags) <= _FEW:
        for leaf, flag in flags:
            source.line(f"if {{}}.requires_grad is not {bool(flag)}: {LEAVE}", leaf)
    else:
        leaves, expected = [leaf for leaf, _ in flags], [flag for _, flag in flags]
        line = f"if [*map({{}}, {{}})] != {{}}: {LEAVE}"
        source.line(line, _requires_grad, leaves, expected)
    without = [leaf for leaf in guard.without if id(leaf) not in known]
    for compare, leaves in (("is not", without), ("is", guard.with_gradient)):
        if len(leaves) <= _FEW:
            for leaf in leaves:
                source.line(f"if {{}}.grad {compare} None: {LEAVE}", leaf)
        elif leaves is without:
            source.line(f"if not {{}}(map({{}}, {{}})): {LEAVE}", _only_none, _gradient, leaves)
        else:
            line = f"if any(map({{}}, map({{}}, {{}}), {{}})): {LEAVE}"
            source.line(line, is_, _gradient, leaves, _NONES)
    for leaf, gradient in guard.fixed:
        source.line(f"if {{}}.grad is not {{}}: {LEAVE}", leaf, gradient)


def _write_cells(source: GeneratedFunction, guard: CellGuard, known: Known) -> None:
    """Write the lines that compare storages and geometries."""
    rows = zip(guard.tensors, guard.storages, guard.cells)
    rows = [row for row in rows if id(row[0]) not in known]
    tensors, storages = [tensor for tensor, _, _ in rows], [storage for _, storage, _ in rows]
    if len(tensors) <= _FEW:
        for tensor, storage in zip(tensors, storages):
            source.line(f"if {{}}({{}}) is not {{}}: {LEAVE}", _storage_of, tensor, storage)
    else:
        line = f"if [*map({{}}, {{}})] != {{}}: {LEAVE}"
        source.line(line, _storage_of, tensors, storages)
    parts = [tensor for tensor, _, cell in rows if tensor.numel() < cell.array.size]
    if parts:  # other tensors cover their whole storage
        offsets = [part.storage_offset() for part in parts]
        line = f"if [*map({{}}, {{}})] != {{}}: {LEAVE}"
        source.line(line, _offset, parts, offsets)
    line = f"if {{}}.count != {{}}.looked_at and not {{}}(): {LEAVE}"
    source.line(line, regeometries, guard, guard.have_shapes)


def _write_placements(source: GeneratedFunction, guard: PlacementGuard, known: Known) -> None:
    if spread.exists:  # otherwise a call leaves as soon as there is a placement (see `placements`)
        source.line(f"if not {{}}(): {LEAVE}", guard.holds)


def _write_equal(source: GeneratedFunction, guard: EqualGuard, known: Known) -> None:
    """Write the lines that compare arrays."""
    groups: dict[Cell, list[Cell]] = defaultdict(list)
    for cell, first in zip(guard.cells, guard.firsts):
        groups[first].append(cell)
    if len(groups) <= _FEW:
        for first, cells in groups.items():
            source.line("first = {}.array", first)
            line = f"if [1 for cell in {{}} if cell.array is not first] and not {{}}(): {LEAVE}"
            source.line(line, cells, guard.holds)
        return
    line = f"if not {{}}(map({{}}, map({{}}, {{}}), map({{}}, {{}}))) and not {{}}(): {LEAVE}"
    source.line(line, all, is_, _array, guard.cells, _array, guard.firsts, guard.holds)


def _write_state(source: GeneratedFunction, guard: StateGuard, known: Known) -> None:
    identities = guard.identities
    if identities.others:
        source.line(f"if not {{}}(): {LEAVE}", guard.holds)
        return
    source.line(f"if {{}}.expected is not {{}}: {LEAVE}", guard, guard.expected)
    empty, versions = identities.empty, identities.versions
    words = ContainerWords.of(empty, versions)
    if words is not None:
        words.write(source)
        empty, versions = words.others, words.versions
    if empty:
        source.line(f"if any({{}}): {LEAVE}", empty)
    for one in versions:
        _write_versions(source, one)
    _write_unhooked(source, identities, known)
    special = identities.special
    if special is not None:
        line = f"if {{}}.count != {{}}.seen and not {{}}(): {LEAVE}"
        source.line(line, assignments, special, special.hold)
    places = identities.places()
    if places is None or len(places) > _MOST_PLACES:
        for compare in identities.values:
            source.line(f"if not {{}}(): {LEAVE}", compare)
        return
    for kind, holder, key, value in places:
        if kind in _PLACES:
            source.line(f"if {_PLACES[kind]}: {LEAVE}", holder, value)
        elif kind == "length":
            source.line(f"if len({{}}) != {value:d}: {LEAVE}", holder)
        elif kind == "item":
            source.line(f"if {{}}[{key:d}] is not {{}}: {LEAVE}", holder, value)
        elif kind == "read":
            source.line(f"if {{}}({{}}) is not {{}}: {LEAVE}", key, holder, value)
        elif kind == "looked up":
            source.line(f"if {{}}({{}}, {{}}) is not {{}}: {LEAVE}", holder, key, MISSING, value)
        elif key in _ATTRIBUTES:
            source.line(f"if {{}}.{key} is not {{}}: {LEAVE}", holder, value)
        else:
            source.line(f"if {{}}({{}}) is not {{}}: {LEAVE}", attrgetter(key), holder, value)


def _write_unhooked(source: GeneratedFunction, identities: Identities, known: Known) -> None:
    """Write the lines that compare the hooks of tensors that had none."""
    tensors = [one for one in identities.unhooked if id(one) not in known]
    if len(tensors) > _FEW:
        source.line(f"if not {{}}(): {LEAVE}", identities.have_no_hooks)
        return
    for one in tensors:
        for name in HOOKS_OF_TENSORS:
            source.line(f"if {{}}.{name} is not None: {LEAVE}", one)


def _write_versions(source: GeneratedFunction, versions: Versions) -> None:
    """Write the line that compares the versions of dicts."""
    held, read = versions.dicts, "{}"
    if versions.owners is not None:
        held, read = versions.owners, "{}.__dict__"
    if len(held) <= _FEW:  # takes a third of the time of a list
        texts = [read.format(source.name(one)) for one in held]
        differ = " or ".join(f"{{0}}({text}) != {{1}}.seen[{i}]" for i, text in enumerate(texts))
        line = f"if ({differ}) and not {{2}}(): {LEAVE}"
        source.line(line, version_of, versions, versions.hold)
        return
    found = source.name(held)
    if versions.owners is not None:
        found = f"map({source.name(own_dict)}, {found})"
    line = f"if [*map({{}}, {found})] != {{}}.seen and not {{}}(): {LEAVE}"
    source.line(line, version_of, versions, versions.hold)


_WRITERS: dict[type, Callable[[GeneratedFunction, Any, Known], None]] = {
    CellGuard: _write_cells,
    EqualGuard: _write_equal,
    PlacementGuard: _write_placements,
    StateGuard: _write_state,
}
