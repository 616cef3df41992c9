"""Assigns each call of a program to the server, or to a pass over the clients.

Everything that clients compute between two steps of the server is one pass, with all of its
aggregations. A call on the clients runs in the same pass as its users or its inputs, so that
results rarely need to be kept for all clients.
"""

from dataclasses import dataclass

from calque.federated.building_blocks import (
    Block,
    BuildingBlock,
    Call,
    Data,
    Lambda,
    free_references,
)
from calque.federated.compiler.reducers import is_aggregation
from calque.federated.types import CLIENTS, FederatedType, Type, walk


@dataclass(frozen=True)
class Stage:
    """The steps before a pass over the clients, and in the pass.

    Attributes:
        server: calls on the server or without a placement, in order.
        clients: calls on each client, in order.
        aggregations: calls that aggregate clients' values on the server.
        kept: the names of calls on the clients whose results later stages need.
    """

    server: tuple[tuple[str, Call], ...]
    clients: tuple[tuple[str, Call], ...]
    aggregations: tuple[tuple[str, Call], ...]
    kept: tuple[str, ...]


@dataclass(frozen=True)
class StagedPlan:
    """A program in stages.

    Attributes:
        parameter: the name and type of its parameter; None without one.
        data: the data that it uses.
        stages: the stages in order; after the last, the result can be computed.
        result: the block of the result.
    """

    parameter: tuple[str, Type] | None
    data: tuple[Data, ...]
    stages: tuple[Stage, ...]
    result: BuildingBlock


def plan(program: Lambda) -> StagedPlan:
    """Returns the stages of a program in normal form."""
    body = program.result
    calls = (
        [(n, c) for n, c in body.locals if isinstance(c, Call)] if isinstance(body, Block) else []
    )
    result = body.result if isinstance(body, Block) else body
    data = _data(body)
    on_clients = {n for n, c in calls if not is_aggregation(c) and lives_on_clients(c.type)}
    needs = {name: set(free_references(call)) for name, call in calls}
    results = set(free_references(result))
    stage = _stages(calls, needs, on_clients, results)
    runs = {name: stage[name] - is_aggregation(call) for name, call in calls}
    kept = {
        used for name in needs for used in needs[name] & on_clients if runs[name] > stage[used]
    } | (results & on_clients)
    stages = []
    for number in range(max(stage.values(), default=0) + 1):
        here = [(name, call) for name, call in calls if runs[name] == number]
        stages.append(
            Stage(
                tuple((n, c) for n, c in here if not is_aggregation(c) and n not in on_clients),
                tuple((n, c) for n, c in here if n in on_clients),
                tuple((n, c) for n, c in here if is_aggregation(c)),
                tuple(n for n, _ in here if n in kept),
            )
        )
    parameter = None
    if program.parameter is not None and program.parameter_type is not None:
        parameter = (program.parameter, program.parameter_type)
    return StagedPlan(parameter, data, tuple(stages), result)


def _stages(
    calls: list[tuple[str, Call]],
    needs: dict[str, set[str]],
    on_clients: set[str],
    results: set[str],
) -> dict[str, int]:
    """Returns the stage in which each result is available."""
    earliest: dict[str, int] = {}
    for name, call in calls:
        ready = max((earliest.get(used, 0) for used in needs[name]), default=0)
        earliest[name] = ready + is_aggregation(call)
    wanted: dict[str, list[int]] = {name: [earliest[name]] for name in results & set(earliest)}
    for name, call in calls:
        for used in needs[name]:
            wanted.setdefault(used, []).append(earliest[name] - is_aggregation(call))
    stage = dict(earliest)
    for name, _ in calls:
        inputs = needs[name] & on_clients
        if name in on_clients and inputs:  # the stage of its inputs, so that they need not be kept
            stage[name] = max(earliest[name], *(stage[used] for used in inputs))
        elif name in on_clients:  # clients' own values are available in all stages
            stage[name] = min(wanted.get(name, [earliest[name]]))
    return stage


def lives_on_clients(kind: Type) -> bool:
    """Returns True if a type has parts that may differ between clients."""
    return any(
        isinstance(part, FederatedType) and part.placement is CLIENTS and not part.all_equal
        for part in walk(kind)
    )


def _data(block: BuildingBlock) -> tuple[Data, ...]:
    found: dict[str, Data] = {}
    stack = [block]
    while stack:
        one = stack.pop()
        if isinstance(one, Data):
            found[one.uri] = one
        stack.extend(one.children())
    return tuple(found.values())
