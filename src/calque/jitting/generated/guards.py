"""The lines that see whether the guards of a program hold.

A line that finds a difference asks the guard itself, or leaves the call to the general path, which
asks all guards. So these lines may fail where a guard would hold, but never the other way round.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter, is_, is_not
from typing import Any

import torch

from calque.device.memory.cell import regeometries
from calque.device.runtime.placement import spread
from calque.jitting.generated.source import LEAVE, Source
from calque.jitting.guards import CellGuard, GradientGuard, Guard
from calque.program.pinning import PlacementGuard
from calque.state import StateGuard
from calque.state.values import MISSING
from calque.state.versions import version_of

_FEW = 16
"""Up to how many tensors are looked at one by one."""
_MOST_PLACES = 64
_PLACES = {
    "variable": "{}.cell_contents is not {}",
    "class": "type({}) is not {}",
}
_ATTRIBUTES = frozenset(
    (
        *("__dict__", "__mro__", "__name__", "__code__", "__defaults__", "__kwdefaults__"),
        *("_backward_hooks", "_post_accumulate_grad_hooks", "default_factory", "maxlen"),
    )
)
"""The attributes whose names may stand in a line."""
_NONES = repeat(None)
_storage_of = torch.Tensor.untyped_storage
_requires_grad = attrgetter("requires_grad")
_gradient = attrgetter("grad")


def write_guards(source: Source, guards: Sequence[Guard]) -> None:
    """Write the lines that leave the function where a guard does not hold."""
    source.line("try:")
    source.indent()
    for guard in guards:
        write = _WRITERS.get(type(guard))
        if write is None:
            source.line(f"if not {{}}(): {LEAVE}", guard.holds)
        else:
            write(source, guard)
    source.indent(-1)
    # A variable that is not bound any more; a container that another thread has changed.
    source.line(f"except (ValueError, RuntimeError, AttributeError, LookupError): {LEAVE}")


def _gradients(source: Source, guard: GradientGuard) -> None:
    few = len(guard.leaves) <= _FEW
    if few:
        for leaf, flag in zip(guard.leaves, guard.flags):
            source.line(f"if {{}}.requires_grad is not {flag!s}: {LEAVE}", leaf)
    else:
        flags = f"if [*map({{}}, {{}})] != {{}}: {LEAVE}"
        source.line(flags, _requires_grad, guard.leaves, guard.flags)
    for compare, leaves in (("is not", guard.without), ("is", guard.with_gradient)):
        if few:
            for leaf in leaves:
                source.line(f"if {{}}.grad {compare} None: {LEAVE}", leaf)
        elif leaves:
            line = f"if any(map({{}}, map({{}}, {{}}), {{}})): {LEAVE}"
            source.line(line, _COMPARISONS[compare], _gradient, leaves, _NONES)
    for leaf, gradient in guard.fixed:
        source.line(f"if {{}}.grad is not {{}}: {LEAVE}", leaf, gradient)


_COMPARISONS = {"is": is_, "is not": is_not}


def _cells(source: Source, guard: CellGuard) -> None:
    if len(guard.tensors) <= _FEW:
        for tensor, storage in zip(guard.tensors, guard.storages):
            source.line(f"if {{}}({{}}) is not {{}}: {LEAVE}", _storage_of, tensor, storage)
    else:
        line = f"if [*map({{}}, {{}})] != {{}}: {LEAVE}"
        source.line(line, _storage_of, guard.tensors, guard.storages)
    line = f"if {{}}.count != {{}}.looked_at and not {{}}(): {LEAVE}"
    source.line(line, regeometries, guard, guard.holds)


def _placements(source: Source, guard: PlacementGuard) -> None:
    source.line(f"if {{}}.exists and not {{}}(): {LEAVE}", spread, guard.holds)


def _state(source: Source, guard: StateGuard) -> None:
    identities = guard.identities
    if identities.others:
        source.line(f"if not {{}}(): {LEAVE}", guard.holds)
        return
    source.line(f"if {{}}.expected is not {{}}: {LEAVE}", guard, guard.expected)
    if identities.empty:
        source.line(f"if any({{}}): {LEAVE}", identities.empty)
    versions = identities.versions
    if versions is not None:
        line = f"if [*map({{}}, {{}})] != {{}}.seen and not {{}}(): {LEAVE}"
        source.line(line, version_of, versions.dicts, versions, versions.hold)
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
        elif kind == "looked up":
            source.line(f"if {{}}({{}}, {{}}) is not {{}}: {LEAVE}", holder, key, MISSING, value)
        elif key in _ATTRIBUTES:
            source.line(f"if {{}}.{key} is not {{}}: {LEAVE}", holder, value)
        else:
            source.line(f"if {{}}({{}}) is not {{}}: {LEAVE}", attrgetter(key), holder, value)


_WRITERS: dict[type, Callable[[Source, Any], None]] = {
    GradientGuard: _gradients,
    CellGuard: _cells,
    PlacementGuard: _placements,
    StateGuard: _state,
}
