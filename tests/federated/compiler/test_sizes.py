"""Clients of different sizes: those of a chunk are alike, and results are in the clients' order."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from calque import federated as fed
from calque.federated import learning

LENGTHS = (2, 9, 0, 4, 7, 1, 4, 8, 3, 5, 0)
DATA = [np.arange(n, dtype=np.float32) + 10 * i for i, n in enumerate(LENGTHS)]
CHUNKS = pytest.mark.parametrize("chunk", [2, 3, 4, 11])


@fed.local("float32*", framework="jax")
def horner(x: Any) -> Any:
    return x.reduce(jnp.float32(1.0), lambda value, element: 0.5 * value + element)


def wanted(values: np.ndarray) -> float:
    value = 1.0
    for element in values:
        value = 0.5 * value + element
    return value


@fed.computation("{float32*}@CLIENTS")
def everything(x: Any) -> Any:
    each = fed.federated_map(horner, x)
    total = fed.federated_sum(each)
    return {
        "total": total,
        "most": fed.federated_max(each),
        "each": each,
        "all": fed.federated_collect(each),
        "off": each - fed.federated_broadcast(total),
    }


@CHUNKS
def test_results_are_in_the_order_of_the_clients(chunk: int) -> None:
    found = everything.configured(chunk=chunk)(DATA)
    each = np.array([wanted(values) for values in DATA], np.float32)
    np.testing.assert_allclose(found["each"], each, rtol=1e-6)
    np.testing.assert_allclose(found["all"].elements, each, rtol=1e-6)
    np.testing.assert_allclose(found["total"], each.sum(), rtol=1e-6)
    np.testing.assert_allclose(found["off"], each - each.sum(), rtol=1e-5)
    assert float(found["most"]) == found["each"].max()


@CHUNKS
def test_an_aggregation_that_goes_by_the_order_gets_it(chunk: int) -> None:
    @fed.computation("{float32*}@CLIENTS")
    def in_order(x: Any) -> Any:
        each = fed.federated_map(horner, x)
        return fed.federated_reduce(each, 0.0, lambda value, one: 0.5 * value + one)

    each = np.array([wanted(values) for values in DATA])
    value = 0.0
    for one in each:
        value = 0.5 * value + one
    np.testing.assert_allclose(in_order.configured(chunk=chunk)(DATA), value, rtol=1e-6)


@CHUNKS
def test_an_error_names_the_client_and_not_its_turn(chunk: int) -> None:
    bad = [values.copy() for values in DATA]
    bad[4][3] = np.nan
    with pytest.raises(fed.ClientError, match="client 4 passes NaN"):
        everything.configured(chunk=chunk)(bad)


def test_what_no_client_of_a_chunk_has_is_not_computed() -> None:
    """A branch of the program, and no choice between two results."""
    text = everything.configured(chunk=3).lower(DATA).as_text()
    assert "stablehlo.case" in text


@pytest.mark.sampled(2)
@CHUNKS
def test_gradients_are_those_of_clients_one_by_one(chunk: int) -> None:
    @fed.local("float32", "float32*", framework="jax")
    def scaled(scale: Any, x: Any) -> Any:
        return x.reduce(jnp.float32(1.0), lambda value, element: scale * value + element)

    @fed.computation("float32@SERVER", "{float32*}@CLIENTS")
    def total(scale: Any, x: Any) -> Any:
        return fed.federated_sum(fed.federated_map(scaled, (fed.federated_broadcast(scale), x)))

    alone = jax.grad(lambda scale: total(scale, DATA))(0.5)
    together = jax.grad(lambda scale: total.configured(chunk=chunk)(scale, DATA))(0.5)
    np.testing.assert_allclose(together, alone, rtol=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chunk", [2, 5])
def test_what_clients_keep_stays_theirs(chunk: int) -> None:
    rng = np.random.default_rng(0)
    counts = [n for n in LENGTHS if n]
    data = [
        {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(0, 3, n)}
        for n in counts
    ]
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Linear(4, 3))
    states = []
    for size in (1, chunk):
        process = learning.scaffold(
            module, clients=len(data), batch_size=2, epochs=2, shuffle=True, chunk=size
        )
        state = process.initialize()
        for _ in range(2):
            state, _ = process.next(state, data)
        states.append(state)
    for one, other in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chunk", [1, 3])
def test_a_round_of_clients_of_different_sizes_has_a_gradient(chunk: int) -> None:
    rng = np.random.default_rng(0)
    data = learning.stage(
        [
            {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(0, 3, n)}
            for n in (5, 0, 2)
        ]
    )
    torch.manual_seed(0)
    process = learning.fed_avg(torch.nn.Linear(4, 3), batch_size=2, chunk=chunk)
    state = process.initialize()

    def after(weight: Any) -> Any:
        start = replace(state, parameters={**state.parameters, "weight": weight})
        return (process.next(start, data)[0].parameters["weight"] ** 2).sum()

    weight = state.parameters["weight"]
    gradient = jax.grad(after)(weight)
    step = np.zeros_like(weight)
    step[1, 2] = 1e-2
    slope = (after(weight + step) - after(weight - step)) / 2e-2
    np.testing.assert_allclose(gradient[1, 2], slope, rtol=1e-2, atol=1e-3)
    assert np.isfinite(np.asarray(gradient)).all()


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_fields_in_another_order_for_other_sizes_are_refused(framework: Any) -> None:
    @fed.local("float32[?]", framework=framework)
    def totals(x: Any) -> Any:
        found = {"sum": x.sum(), "most": x.max()}
        return found if len(x) < 100 else {name: found[name] for name in ("most", "sum")}

    assert float(totals(np.ones(9, np.float32))["sum"]) == 9.0
    with pytest.raises(fed.FederatedTypeError, match="fields in the same order"):
        totals(np.ones(200, np.float32))
