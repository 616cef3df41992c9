"""`calque.diff(...)`."""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.graph_module import GraphModule

from calque.comparing.alignment import Pair, aligned
from calque.comparing.differences import Differences
from calque.comparing.naming import checks_device, vocabulary
from calque.comparing.operands import Side, differing
from calque.comparing.running import copied, moved, on_device, same_random_numbers
from calque.comparing.structure import positions, structural
from calque.errors import with_user_frames
from calque.tracing.core.recursion import deeper_recursion
from calque.tracing.record import Recording, record

Program = GraphModule | ExportedProgram | Recording | torch.nn.Module | Callable[..., Any]


@with_user_frames
def diff(
    a: Program,
    b: Program,
    /,
    *args: Any,
    devices: tuple[str, str] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    **kwargs: Any,
) -> Differences:
    """Finds the first node where two graphs of one program disagree, and its line in the program.

    Like `torch.testing.assert_close` on their results, but it says where the disagreement began.
    Each is run separately, on copies of the arguments and of the state, with the same random
    numbers. If both graphs make the same calls, nodes are compared one by one. If one calls layers
    and the other functions or operators, the outputs of each line in each module call are
    compared.

    Args:
        a: a graph from any tracer, an exported program or a recording; or a module or function,
            which is then recorded.
        b: the graph or program to compare it with.
        *args: the arguments of both. Without any, only the structure is compared.
        devices: the devices that `a` and `b` run on, such as `("cpu", "jax")`; by default those
            they are on.
        rtol: the relative tolerance; by default that of `torch.testing.assert_close`.
        atol: the absolute tolerance; to be passed together with `rtol`.
        **kwargs: the keyword arguments of both.

    Returns:
        The differences, in the order of `a`; true if there is any. Structure is compared if both
        are graphs of calls, or both are graphs of the same kind of operators.

    Raises:
        TraceError: a module or function cannot be recorded.
        ValueError: `devices` does not have two entries.
        Exception: an exception that both programs raise, if nothing differs before it.

    >>> import calque, torch
    >>> def program(x):
    ...     return x.sin() * 2
    >>> def other(x):
    ...     return x.cos() * 2
    >>> found = calque.diff(program, other, torch.ones(2))
    >>> found.first.kind, found.first.a.name, found.first.b.name
    ('structure', 'sin', 'cos')
    >>> bool(calque.diff(program, calque.trace(program, torch.ones(2)), torch.ones(2)))
    False
    """
    if devices is not None and (isinstance(devices, str) or len(devices) != 2):
        raise ValueError(
            f"devices must name one device for each graph, such as ('cpu', 'jax'), not {devices!r}"
        )
    with deeper_recursion():
        return _found(a, b, devices or (None, None), args, kwargs, {"rtol": rtol, "atol": atol})


def _found(
    a: object,
    b: object,
    on: tuple[str | None, str | None],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tolerances: dict[str, float | None],
) -> Differences:
    runs = bool(args or kwargs)
    first, second = _graphs(a, b, on, args, kwargs)
    rows = list(aligned(first, second))
    found = Differences()
    if vocabulary(first) == vocabulary(second):
        found.found += structural(first, second, rows, not runs)
    if runs:
        where = Side(first, on[0], args, kwargs), Side(second, on[1], args, kwargs)
        pairs = [row for row in rows if isinstance(row, Pair)]
        found.compared = len(pairs)
        found.found += differing(*where, pairs, tolerances)
    order = positions(rows, first, second)
    found.found.sort(key=lambda each: order.get(each.a or each.b, len(rows)))  # results come last
    return found


# Graphs of the arguments


def _graphs(
    a: object,
    b: object,
    devices: tuple[str | None, str | None],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[GraphModule, GraphModule]:
    """Returns both as graphs; a program is recorded at the level of the other's graph."""
    made = [_graph_of(each) for each in (a, b)]
    for i, given in enumerate((a, b)):
        if made[i] is not None:
            continue
        try:
            made[i] = _recorded(given, made[1 - i], devices[i], args, kwargs)
        except Exception as error:
            error.add_note(
                f"raised while calque.diff recorded {'ab'[i]}, its {_ORDINALS[i]} program"
            )
            raise
    first, second = made
    assert first is not None and second is not None
    return first, second


_ORDINALS = ("first", "second")


def _graph_of(given: object) -> GraphModule | None:
    if isinstance(given, ExportedProgram):
        return given.module()  # type: ignore[return-value]
    if isinstance(given, Recording):
        return given.graph()
    if isinstance(given, GraphModule):
        return given
    if not callable(given):
        raise TypeError(f"calque.diff expects a graph, a module or a function, not {given!r}")
    return None


def _recorded(
    program: object,
    other: GraphModule | None,
    device: str | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> GraphModule:
    """Returns the graph of a copy of a program, as deep as another graph.

    It is recorded on the device of its arguments, or if it checks their device, on its own.
    """
    if not (args or kwargs):
        raise TypeError(
            "calque.diff has to run a program to compare it: pass the arguments of a call"
        )
    level = "calls" if other is None else vocabulary(other)
    targets = other.graph.find_nodes(op="call_module") if other is not None else ()
    leaves = {str(node.target) for node in targets}

    def graph_on(device: str | None) -> GraphModule:
        recording = _run(program, device, args, kwargs)
        calls = recording.graph(leaf=lambda module, path: path in leaves)
        return calls if level in ("calls", vocabulary(calls)) else recording.graph("aten")

    graph = graph_on(None)
    return graph_on(device) if device is not None and checks_device(graph) else graph


def _run(
    program: Any, device: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Recording:
    """Returns a recording of a copy of a program, on a device."""
    is_method = isinstance(program, types.MethodType)
    owner = program.__self__ if is_method else program
    twin = copied(owner) if isinstance(owner, torch.nn.Module) else None
    if twin is not None:
        twin = twin if device is None else twin.to(device)
        program = types.MethodType(program.__func__, twin) if is_method else twin
    with same_random_numbers("cpu"), on_device(device):
        recording = record(program, *moved(args, device), **moved(kwargs, device))
    if twin is not None:
        twin.load_state_dict(owner.state_dict())  # the recorded run may have changed it
    return recording
