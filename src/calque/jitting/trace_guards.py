"""Creates the guards of a program from the state that its trace has found."""

from collections.abc import Set
from typing import Any

import torch

from calque.device.memory.cell import Cell, view_of
from calque.jitting.alias_guards import PinnedGuard, StorageGuard
from calque.jitting.appended_items import leave_out_appended
from calque.jitting.finding_implicit import ImplicitFinder
from calque.jitting.guards import (
    CallGuard,
    CellGuard,
    GradientGuard,
    Guard,
    HistoryGuard,
    HostGuard,
    OptimizerGuard,
    WeakGradientGuard,
)
from calque.jitting.known_tensors import Before, KnownTensors
from calque.jitting.python_effects import PythonState
from calque.jitting.recording import TraceRecording
from calque.jitting.state_arguments import Apart
from calque.jitting.variable_numbers import VariableNumbers
from calque.state import guard_of


def guards_of_state(
    known: KnownTensors,
    given: Set[int],
    cells: Set[Cell],
    implicit: ImplicitFinder,
    state: PythonState,
    optimizers: OptimizerGuard | None,
    apart: Apart | None,
    variables: VariableNumbers,
) -> list[Guard]:
    """Returns the guards of the state, cheapest first.

    Args:
        known: the leaves from outside.
        given: the leaves that are arguments of each call, by id.
        cells: the cells of the program's inputs that are state.
        implicit: the implicit arguments.
        state: the Python state.
        optimizers: the guard of the optimizers that stepped.
        apart: the guard that distinguishes arguments from the state.
        variables: the variables whose numbers are read in each call.
    """
    hidden = leave_out_appended(state.snapshot, state.appended, given)
    if apart is not None:
        apart.forget(hidden)
    state.counts.put_back(state.snapshot.rows.values())
    before, weak = known.before, state.snapshot.weak
    found = [(t, before[key]) for key, t in known.tensors.items() if key not in given]
    found = [row for row in found if id(row[0]) not in hidden]
    own, unread = [], []
    for row in found:  # the program keeps the tensors that it reads alive anyway
        (unread if id(row[0]) in weak and row[1].cell not in cells else own).append(row)
    names_them = "grad" in state.snapshot.namespaces.own_words

    def looks_at(tensor: torch.Tensor, one: Before) -> bool:
        can = tensor.is_floating_point() or tensor.is_complex()
        return one.gradient is not None or id(tensor) in known.given or (can and names_them)

    gradients = [one.gradient is not None for _, one in own]
    looked_at = [looks_at(t, one) for t, one in own]
    computed = [(t, one) for key, (t, one) in known.computed.items() if key not in given | hidden]
    rows = [(t, one.cell, view_of(one.alias)) for t, one in own if one.cell in cells]
    rows += [(t, one.cell, one.view) for t, one in computed if one.cell in cells]
    guards: list[Guard] = [
        GradientGuard([t for t, _ in own], gradients, implicit.fixed, looked_at),
        CellGuard(rows),
        guard_of(
            state.snapshot,
            [*implicit.free, *variables.variables],
            *(state.counted, state.assigned, state.kept, state.counts.places),
        ),
    ]
    if computed:
        guards.append(HistoryGuard((t, one.origin, one.cell in cells) for t, one in computed))
    if unread:
        weakly = [(t, one.gradient is not None, looks_at(t, one)) for t, one in unread]
        guards.append(WeakGradientGuard(weakly))
    others = optimizers, variables.guard()
    return guards + [one for one in others if one is not None]


def guards_of_calls(
    leaves: list[Any],
    looked_at: list[tuple[torch.Tensor, torch.Tensor]],
    apart: Apart | None,
    recording: TraceRecording,
    pinned_hosts: list[tuple[int, torch.Tensor]],
) -> list[CallGuard]:
    """Returns the guards of arguments.

    Args:
        leaves: the leaves of the trace.
        looked_at: the CPU tensors whose values Python code has read, with these values.
        apart: the guard that distinguishes arguments from the state.
        recording: the recording of the trace.
        pinned_hosts: CPU tensors that are both arguments and state, with their index.
    """
    guards: list[CallGuard] = []
    if looked_at:
        hosts = {id(t): i for i, t in enumerate(leaves) if isinstance(t, torch.Tensor)}
        guards.append(HostGuard((t, hosts.get(id(t)), value) for t, value in looked_at))
    if apart is not None:
        guards.append(apart)
    if recording.kept_ids is not None:
        guards.append(recording.kept_ids)
    if recording.pinned or pinned_hosts:
        guards.append(PinnedGuard(recording.pinned, pinned_hosts))
    if recording.stored:
        guards.append(StorageGuard(recording.stored))
    return guards
