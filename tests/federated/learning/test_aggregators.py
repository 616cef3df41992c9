"""Aggregators against numpy."""

from typing import Any

import jax
import numpy as np
import pytest
import torch

from calque import federated as fed
from calque.federated import learning
from calque.federated.learning import aggregators

RNG = np.random.default_rng(0)
VALUES = {
    "a": RNG.normal(size=(9, 3)).astype(np.float32),
    "b": RNG.normal(size=(9,)).astype(np.float32),
}
WEIGHTS = RNG.uniform(1, 4, 9).astype(np.float32)
KEY = jax.random.key_data(jax.random.key(3))


def joined(aggregator: Any, values: Any = VALUES, key: Any = KEY, **options: Any) -> Any:
    kind = fed.at_clients(fed.to_type({n: v[0] for n, v in values.items()}))
    comp = fed.computation(
        lambda value, weight, key: aggregator(value, weight, key),
        kind,
        "{float32}@CLIENTS",
        "uint32[2]@SERVER",
    )
    count = len(next(iter(values.values())))
    return comp.configured(**options)(values, WEIGHTS[:count], key)


def check(got: Any, wanted: dict[str, Any], **tolerances: float) -> None:
    for name in wanted:
        np.testing.assert_allclose(
            got[name], wanted[name], **{"rtol": 1e-4, "atol": 1e-6, **tolerances}
        )


def clip(values: dict[str, np.ndarray], norm: float) -> dict[str, np.ndarray]:
    norms = np.sqrt((values["a"] ** 2).sum(1) + values["b"] ** 2)
    scale = np.minimum(1, norm / norms)
    return {"a": values["a"] * scale[:, None], "b": values["b"] * scale}


@pytest.mark.parametrize("bits", [25, 29])
def test_values_at_the_bound_have_no_more_than_the_bits(bits: int) -> None:
    values = {"a": np.array([[0.5, -0.5, 0.7], [0.5, 0.5, -0.7]], np.float32)}
    wanted = {"a": np.clip(values["a"], -0.5, 0.5).mean(0)}
    check(joined(aggregators.secure(0.5, bits), values), wanted)


def test_mean() -> None:
    check(joined(aggregators.mean()), {n: np.average(v, 0, WEIGHTS) for n, v in VALUES.items()})


@pytest.mark.parametrize("norm", [0.5, 100.0])
def test_clipped(norm: float) -> None:
    wanted = {n: np.average(v, 0, WEIGHTS) for n, v in clip(VALUES, norm).items()}
    check(joined(aggregators.clipped(norm), chunk=2), wanted)


def test_dp_gaussian_without_noise_is_the_unweighted_mean_of_clipped_values() -> None:
    wanted = {n: v.mean(0) for n, v in clip(VALUES, 0.7).items()}
    check(joined(aggregators.dp_gaussian(0.0, 0.7)), wanted)


def test_dp_gaussian_noise_is_of_the_promised_size_and_from_the_key() -> None:
    values = {"a": np.zeros((9, 20_000), np.float32)}
    first = joined(aggregators.dp_gaussian(2.0, 0.5), values)["a"]
    assert abs(float(np.std(first)) - 2.0 * 0.5 / 9) < 0.002
    again = joined(aggregators.dp_gaussian(2.0, 0.5), values)["a"]
    np.testing.assert_array_equal(first, again)
    other = jax.random.key_data(jax.random.key(4))
    assert not np.array_equal(first, joined(aggregators.dp_gaussian(2.0, 0.5), values, other)["a"])


@pytest.mark.parametrize(("fraction", "left_out"), [(0.0, 0), (0.25, 2), (0.45, 4)])
def test_trimmed_mean(fraction: float, left_out: int) -> None:
    wanted = {n: np.sort(v, 0)[left_out : 9 - left_out].mean(0) for n, v in VALUES.items()}
    for chunk in (1, 4):
        check(joined(aggregators.trimmed_mean(fraction), chunk=chunk), wanted)


def test_median() -> None:
    check(joined(aggregators.median(), chunk=2), {n: np.median(v, 0) for n, v in VALUES.items()})


def test_one_malicious_client_does_not_move_the_median() -> None:
    values = {n: v.copy() for n, v in VALUES.items()}
    values["a"][4] = 1e9
    got = joined(aggregators.median(), values)
    assert float(np.abs(got["a"]).max()) < 3


@pytest.mark.parametrize("bits", [1, 8])
def test_quantized(bits: int) -> None:
    def rounded(row: np.ndarray) -> np.ndarray:
        least, most = row.min(), row.max()
        step = (most - least) / (2**bits - 1) if most > least else 1
        return least + np.round((row - least) / step) * step

    wanted = {n: np.average([rounded(r) for r in v], 0, WEIGHTS) for n, v in VALUES.items()}
    check(joined(aggregators.quantized(bits)), wanted, atol=1e-4)


def test_secure_is_the_mean_up_to_rounding() -> None:
    wanted = {n: np.clip(v, -2, 2).mean(0) for n, v in VALUES.items()}
    check(joined(aggregators.secure(2.0, bits=20), chunk=2), wanted, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: aggregators.trimmed_mean(0.5),
        lambda: aggregators.quantized(0),
        lambda: aggregators.clipped(0.0),
        lambda: aggregators.dp_gaussian(1.0, 0.0),
        lambda: aggregators.secure(0.0),
        lambda: aggregators.secure(1.0, bits=0),
    ],
)
def test_parameters_out_of_range_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="not 0"):
        make()


def test_noise_is_not_negative() -> None:
    with pytest.raises(ValueError, match="at least 0, not -1"):
        aggregators.dp_gaussian(-1.0, 1.0)


@pytest.mark.parametrize(
    ("aggregator", "message"),
    [
        (lambda value, weight, key: value, "expects a value at SERVER"),
        (
            lambda value, weight, key: fed.federated_sum(weight),
            "the aggregator returned float32 for",
        ),
        (
            lambda value, weight, key: {n: fed.federated_sum(weight) for n in ("bias", "weight")},
            "the aggregator returned <bias=float32,weight=float32> for",
        ),
        ("mean", r"an aggregator must be a function of .value, weight, key."),
        (learning.aggregators.median, "an aggregator must be a function of .value, weight, key."),
    ],
)
def test_what_does_not_join_the_changes_is_refused(aggregator: Any, message: str) -> None:
    data = [{"x": np.eye(2, dtype=np.float32), "y": np.array([0, 1])}]

    def one_round() -> None:
        process = learning.fed_avg(torch.nn.Linear(2, 2), aggregator=aggregator)
        process.next(process.initialize(), data)

    with pytest.raises(TypeError, match=message):
        one_round()


def test_the_order_of_an_aggregators_fields_does_not_matter() -> None:
    def mean(value: Any, weight: Any, key: Any) -> Any:
        return {name: fed.federated_mean(value[name], weight) for name in ("weight", "bias")}

    data = [{"x": np.eye(2, dtype=np.float32), "y": np.array([0, 1])}]
    module, states = torch.nn.Linear(2, 2), []
    for aggregator in (mean, None):
        process = learning.fed_avg(module, aggregator=aggregator)
        states.append(process.next(process.initialize(), data)[0].parameters)
    for name, array in states[0].items():
        np.testing.assert_array_equal(array, states[1][name])
