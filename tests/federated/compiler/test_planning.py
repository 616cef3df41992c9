"""As few passes over the clients as there must be, and as little kept as can be."""

from typing import Any

import pytest

from calque import federated as fed


def planned(function: Any, *types: str) -> list[tuple[int, int, int]]:
    """How many calls on clients, aggregations, and kept results each stage has."""
    comp = fed.computation(function, *types)
    stages = comp._program.plan.stages
    return [(len(s.clients), len(s.aggregations), len(s.kept)) for s in stages]


def two(x: Any) -> Any:
    return fed.federated_map(lambda v: v * 2.0, x)


PLANS = {
    "nothing": (lambda x: x, [(0, 0, 0)]),
    "a map": (two, [(1, 0, 1)]),
    "a mean of a map": (lambda x: fed.federated_mean(two(x)), [(1, 1, 0), (0, 0, 0)]),
    "two aggregations at once": (
        lambda x: (fed.federated_mean(two(x)), fed.federated_sum(x)),
        [(1, 2, 0), (0, 0, 0)],
    ),
    "a result and an aggregation of it": (
        lambda x: (two(x), fed.federated_mean(two(x))),
        [(1, 1, 1), (0, 0, 0)],
    ),
    "two passes, nothing kept": (
        lambda x: fed.federated_mean(x - fed.federated_broadcast(fed.federated_mean(x))),
        [(0, 1, 0), (2, 1, 0), (0, 0, 0)],
    ),
    "a map that both passes need": (
        lambda x: fed.federated_mean(two(x) - fed.federated_broadcast(fed.federated_mean(two(x)))),
        [(1, 1, 1), (2, 1, 0), (0, 0, 0)],
    ),
    "a map that only the second pass needs": (
        lambda x: fed.federated_sum(two(x) * fed.federated_broadcast(fed.federated_sum(x))),
        [(0, 1, 0), (3, 1, 0), (0, 0, 0)],
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_stages_of(name: str) -> None:
    function, expected = PLANS[name]
    assert planned(lambda x: function(x), "{float32}@CLIENTS") == expected


def test_a_field_of_what_clients_computed_does_not_keep_the_rest() -> None:
    @fed.local("float32[8]", framework="jax")
    def work(x: Any) -> Any:
        return {"big": x * 2, "small": x[0]}

    def function(x: Any) -> Any:
        done = fed.federated_map(work, x)
        return fed.federated_sum(done.big), done.small

    stages = fed.computation(function, "{float32[8]}@CLIENTS")._program.plan.stages
    assert [[str(stages[0].clients[-1][1].type)], len(stages[0].kept)] == [
        ["{float32}@CLIENTS"],
        1,
    ]
