"""Aggregators where clients have no examples, against numpy on those that have some."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch

from calque import federated as fed
from calque.federated import learning
from calque.federated.learning import aggregators

COUNT = 8
ABSENT = np.array([1, 4, 7])
PRESENT = np.setdiff1d(np.arange(COUNT), ABSENT)
RNG = np.random.default_rng(0)
VALUES = {
    "a": (RNG.normal(size=(COUNT, 3)) + 1).astype(np.float32),
    "b": (RNG.normal(size=(COUNT,)) - 1).astype(np.float32),
}
WEIGHTS = RNG.uniform(1, 4, COUNT).astype(np.float32)
WEIGHTS[ABSENT] = 0
for _array in VALUES.values():
    _array[ABSENT] = 0
OWN = {name: array[PRESENT] for name, array in VALUES.items()}
OWN_WEIGHTS = WEIGHTS[PRESENT]
NORMS = np.sqrt((OWN["a"] ** 2).sum(1) + OWN["b"] ** 2)


def joined(aggregator: Any, state: Any = None) -> Any:
    kinds = [
        fed.at_clients(fed.to_type({n: v[0] for n, v in VALUES.items()})),
        fed.to_type("{float32}@CLIENTS"),
        fed.to_type("uint32[2]@SERVER"),
    ]
    arguments = [VALUES, WEIGHTS, jax.random.key_data(jax.random.key(3))]
    if state is not None:
        kinds.append(fed.to_type("float32@SERVER"))
        arguments.append(np.float32(state))
    comp = fed.computation(lambda *values: aggregator(*values), *kinds)
    return comp.configured(chunk=3)(*arguments)


def check(got: Any, wanted: Callable[[np.ndarray], Any], atol: float = 1e-6) -> None:
    for name, own in OWN.items():
        np.testing.assert_allclose(got[name], wanted(own), rtol=1e-5, atol=atol)


def clipped(own: np.ndarray, norm: float) -> np.ndarray:
    return own * np.minimum(1, norm / NORMS).reshape(-1, *[1] * (own.ndim - 1))


def trimmed(own: np.ndarray, fraction: float) -> Any:
    left_out = int(fraction * len(own))
    return np.sort(own, 0)[left_out : len(own) - left_out].mean(0)


def test_they_do_not_move_the_result() -> None:
    check(joined(aggregators.mean()), lambda own: np.average(own, 0, OWN_WEIGHTS))
    check(joined(aggregators.median()), lambda own: np.median(own, 0))
    for fraction in (0.0, 0.2, 0.45):
        by_trimming = joined(aggregators.trimmed_mean(fraction))
        check(by_trimming, lambda own, fraction=fraction: trimmed(own, fraction))
    check(joined(aggregators.secure(8.0, 20)), lambda own: own.mean(0), atol=2e-5)
    inner = aggregators.clipped(0.7, aggregators.median())
    check(joined(inner), lambda own: np.median(clipped(own, 0.7), 0))
    fine = aggregators.quantized(16, aggregators.median())
    check(joined(fine), lambda own: np.median(own, 0), atol=1e-3)


def test_only_private_means_count_them() -> None:
    check(joined(aggregators.dp_gaussian(0.0, 0.7)), lambda own: clipped(own, 0.7).sum(0) / COUNT)
    private = aggregators.adaptive_dp_gaussian(0.0, count_deviation=0.0, quantile=0.3)
    norm = float(np.median(NORMS))
    found, new = joined(private, norm)
    check(found, lambda own: clipped(own, norm).sum(0) / COUNT)
    surplus = (norm >= NORMS).sum() - 0.3 * len(NORMS)
    np.testing.assert_allclose(new, norm * np.exp(-0.2 * surplus / COUNT), rtol=1e-5)


def test_they_do_not_move_an_adaptive_norm() -> None:
    norm = float(np.median(NORMS))
    found, new = joined(aggregators.adaptive_clipped(0.3), norm)
    check(found, lambda own: np.average(clipped(own, norm), 0, OWN_WEIGHTS))
    within = (norm >= NORMS).mean()
    np.testing.assert_allclose(new, norm * np.exp(-0.2 * (within - 0.3)), rtol=1e-5)


def test_nan_of_a_client_stays_what_numpy_makes_of_it() -> None:
    values = {"a": np.array([3.0, np.nan, 1.0, 2.0], np.float32)}
    for aggregator, wanted in (
        (aggregators.median(), np.nan),
        (aggregators.trimmed_mean(0.25), 2.5),
    ):
        comp = fed.computation(
            lambda value, weight, key, aggregator=aggregator: aggregator(value, weight, key),
            "{<a=float32>}@CLIENTS",
            "{float32}@CLIENTS",
            "uint32[2]@SERVER",
        ).configured(check=False)
        found = comp(values, np.ones(4, np.float32), np.zeros(2, np.uint32))
        np.testing.assert_equal(float(found["a"]), wanted)


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_a_round_is_that_of_the_clients_with_examples(drop_remainder: bool) -> None:
    rng = np.random.default_rng(1)
    sizes = (4, 0, 4, 1 if drop_remainder else 0, 8, 0)
    data = [
        {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(0, 3, n)} for n in sizes
    ]
    process = learning.fed_avg(
        torch.nn.Linear(4, 3),
        aggregator=aggregators.median(),
        batch_size=4,
        drop_remainder=drop_remainder,
    )
    state = process.initialize()
    found, _ = process.next(state, data)
    wanted, _ = process.next(state, [one for one in data if len(one["y"]) >= 4])
    for name, array in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[name], array, rtol=1e-6, atol=1e-7)
        assert np.abs(array - state.parameters[name]).max() > 1e-3
