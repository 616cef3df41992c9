"""Decides which calls of modules can be one node of a graph."""

from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple

import torch

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.record.events import Begin, Event, ModuleCall, RecordedCall
from calque.tracing.record.keeping import Keeper
from calque.tracing.record.values import RunValue, values_in
from calque.tracing.symbolic.leaves import has_backward_hooks
from calque.upstream.torch_internals import pytree


class LeafCalls(NamedTuple):
    """Calls of modules that are one node each.

    Attributes:
        calls: the calls.
        within: the same calls, and the calls inside them.
    """

    calls: set[ModuleCall]
    within: set[ModuleCall]


def collapsible(
    tape: Any,
    is_leaf: Callable[[ModuleCall], bool],
    keeper: Keeper,
    whole: bool = False,
) -> LeafCalls:
    """Returns the calls that can be one node, among those that should be.

    A call can be one node if the program did not change the module before it, if it uses no values
    but its arguments and its own members (`torch.func.functional_call` may replace those), and if
    nothing else uses its intermediate results. Values that the module reads into Python are read
    again when the node runs, but numbers that it returns could not be guarded.

    A module with backward hooks is one node too, because otherwise the graph would not call the
    hooks.

    Args:
        keeper: edits the results of some calls; a call that contains such a call is opened.
        whole: whether the call of the program itself may be one node.
    """
    refused = _edited(tape, keeper)
    while True:
        leaves = _outermost(tape, is_leaf, refused, whole)
        found = _that_leak(tape, leaves)
        if not found:
            return leaves
        refused |= found


def _outermost(
    tape: Any, is_leaf: Callable[[ModuleCall], bool], refused: set[ModuleCall], whole: bool
) -> LeafCalls:
    calls: set[ModuleCall] = set()
    within: set[ModuleCall] = set()
    changed = _changed(tape)
    for event in tape.events:
        if not isinstance(event, Begin):
            continue
        call = event.call
        if call.parent in within:
            within.add(call)
            continue
        if call in changed:
            continue
        is_root = call.module is tape.root and call.parent is None
        fits = not ((is_root and not whole) or call.is_open or call in refused)
        if fits and (is_leaf(call) or has_backward_hooks(call.module)):
            calls.add(call)
            within.add(call)
    return LeafCalls(calls, within)


def why_opened(
    tape: Any, leaves: LeafCalls, is_leaf: Callable[[ModuleCall], bool], whole: bool
) -> dict[ModuleCall, str]:
    """Returns the calls that should be one node but are opened, with the reason for each."""
    changed = _changed(tape)
    found: dict[ModuleCall, str] = {}
    for event in tape.events:
        call = event.call if isinstance(event, Begin) else None
        if call is None or call in leaves.within or not is_leaf(call):
            continue
        if call.is_open:
            found[call] = _HELD
        elif call in changed:
            found[call] = _CHANGED
        elif whole or call.parent is not None or call.module is not tape.root:
            found[call] = _USED
    return found


_HELD = "it takes or returns an object that may hold tensors, or a value in it is edited"
_CHANGED = "the program changes it, or a module in it, before the call"
_USED = "it uses values that are not its arguments, or values computed in it are used outside"


def _changed(tape: Any) -> set[ModuleCall]:
    """Returns the calls of modules that the program has changed, or that contain such a call."""
    found: set[ModuleCall] = set()
    for event in tape.events:
        call = event.call if isinstance(event, Begin) and event.call.is_changed else None
        while call is not None:
            found.add(call)
            call = call.parent
    return found


def mark_changed(events: Iterable[Event], changed: Container[torch.nn.Module]) -> None:
    """Mark the calls of modules that have changed since they were first called."""
    for event in events:
        if isinstance(event, Begin) and event.call.module in changed:
            event.call.is_changed = True


def refuse_lost_hooks(tape: Any, leaves: LeafCalls) -> None:
    """Raise for a module with backward hooks that is not a node of the graph.

    Raises:
        TraceError: names the module.
    """
    for event in tape.events:
        if isinstance(event, Begin) and event.call not in leaves.within:
            if has_backward_hooks(event.call.module):
                raise SymbolicTraceError(
                    f"{event.call.origin()}: {event.call!r} has backward hooks, which the graph "
                    "would not run, because the module cannot be a single node here.\nRecord a "
                    "module that contains it, or register the hooks after recording."
                )


def _edited(tape: Any, keeper: Keeper) -> set[ModuleCall]:
    """Returns the calls of modules in which a value is edited."""
    found: set[ModuleCall] = set()
    for event in tape.events if keeper.patterns else ():
        if isinstance(event, RecordedCall):
            around = event.module
            name = f"{around.path if around is not None else ''}:{event.name}"
        else:
            around, name = event.call.parent, event.call.path
        if keeper.is_edited(name):
            while around is not None:
                found.add(around)
                around = around.parent
    return found


def _leaf_of(call: ModuleCall | None, leaves: LeafCalls) -> ModuleCall | None:
    while call is not None and call not in leaves.calls:
        call = call.parent
    return call


def _that_leak(tape: Any, leaves: LeafCalls) -> set[ModuleCall]:
    """Returns the calls whose inner values are used outside or were read into Python, and the calls
    that use values other than their arguments.
    """
    home: dict[RunValue, ModuleCall] = {}
    given: dict[ModuleCall, set[RunValue]] = {}
    members: dict[torch.nn.Module, set[int]] = {}
    elsewhere: set[RunValue] = set(tape.values_given())
    found: set[ModuleCall] = set()
    for event in tape.events:
        inner = event.module if isinstance(event, RecordedCall) else event.call.parent
        leaf = _leaf_of(inner, leaves)
        if isinstance(event, RecordedCall):
            found |= _used((event.args, event.kwargs), home) - {leaf}
            if leaf is not None:
                used = values_in((event.args, event.kwargs))
                is_known = all(v in given[leaf] or home.get(v) is leaf for v in used)
                if not is_known or _uses_of_others(event, members):
                    found.add(leaf)
            if leaf is None:
                elsewhere.update(values_in(event.result))
            else:
                if (event.reads or event.is_counted) and _has_numbers(leaf.result):
                    found.add(leaf)
                inside = [v for v in values_in(event.result) if v not in elsewhere]
                home.update((value, leaf) for value in inside if value not in home)
        elif leaf is None and event.call in leaves.calls:
            call = event.call
            if isinstance(event, Begin):
                given[call] = set(values_in((call.args, call.kwargs)))
                found |= _used((call.args, call.kwargs), home)
            else:
                elsewhere.update(values_in(call.result))
                for value in values_in(call.result):
                    home.pop(value, None)
    found |= _used(tape.values_of_result(), home)
    return found


def _uses_of_others(event: RecordedCall, members: dict[torch.nn.Module, set[int]]) -> bool:
    """Returns True if a PyTorch layer computes with a tensor that is not its member, because it was
    replaced for the call.

    Args:
        members: a cache of the ids of each module's tensors.
    """
    if event.module is None or not is_layer(event.module.module):
        return False
    module = event.module.module
    if module not in members:
        members[module] = {id(t) for t in (*module.parameters(), *module.buffers())}
    tensors = pytree.tree_leaves((event.args, event.kwargs))
    return any(isinstance(t, torch.Tensor) and id(t) not in members[module] for t in tensors)


def is_layer(module: torch.nn.Module) -> bool:
    """Returns True if a module is one of PyTorch's own layers."""
    own = type(module).__module__.startswith(("torch.nn", "torch.ao.nn"))
    return own and not isinstance(module, torch.nn.Sequential)


def _has_numbers(result: Any) -> bool:
    """Returns True if the result of a module contains something other than tensors."""
    if isinstance(result, dict):
        return any(map(_has_numbers, result.values()))
    if isinstance(result, (tuple, list)):
        return any(map(_has_numbers, result))
    return not (result is None or isinstance(result, (RunValue, torch.Tensor)))


def _used(template: Any, home: dict[RunValue, ModuleCall]) -> set[ModuleCall]:
    return {home[value] for value in values_in(template) if value in home}
