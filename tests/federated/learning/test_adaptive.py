"""Adaptive clipping against numpy, round by round."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from calque.federated import federated_mean, learning
from calque.federated.learning import aggregators

COUNTS = (5, 3, 4, 8, 7)


def data() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(0, 3, n)}
        for n in COUNTS
    ]


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def changes(state: Any, clients: Any) -> list[dict[str, np.ndarray]]:
    """What each client sends, from a loop of PyTorch."""
    found = []
    for client in clients:
        local = module()
        learning.load(local, state)
        optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
        x, y = torch.tensor(client["x"]), torch.tensor(client["y"])
        for start in range(0, len(y), 2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                local(x[start : start + 2]), y[start : start + 2]
            ).backward()
            optimizer.step()
        after = {name: parameter.detach().numpy() for name, parameter in local.named_parameters()}
        found.append({n: np.asarray(state.parameters[n]) - after[n] for n in after})
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chunk", [1, 2])
def test_the_norm_follows_the_quantile(chunk: int) -> None:
    quantile, rate, norm = 0.6, 0.3, 0.05
    joined = aggregators.adaptive_clipped(quantile, norm=norm, learning_rate=rate)
    process = learning.fed_avg(module(), batch_size=2, aggregator=joined, chunk=chunk)
    state, clients = process.initialize(), data()
    weights = np.array(COUNTS) / sum(COUNTS)
    for _ in range(3):
        sent = changes(state, clients)
        norms = np.array([np.sqrt(sum((part**2).sum() for part in one.values())) for one in sent])
        scales = np.minimum(1, norm / norms) * weights
        wanted = {
            name: np.asarray(before) - sum(s * one[name] for s, one in zip(scales, sent))
            for name, before in state.parameters.items()
        }
        state, _ = process.next(state, clients)
        for name, value in wanted.items():
            np.testing.assert_allclose(state.parameters[name], value, rtol=1e-4, atol=1e-6)
        norm *= np.exp(-rate * ((norms <= norm).mean() - quantile))
        np.testing.assert_allclose(state.aggregator, norm, rtol=1e-5)


def test_without_noise_the_gaussian_aggregator_is_the_mean_of_clipped_values() -> None:
    still = aggregators.adaptive_dp_gaussian(0.0, count_deviation=0.0, norm=0.05)
    fixed = aggregators.dp_gaussian(0.0, 0.05)
    found = []
    for aggregator in (still, fixed):
        process = learning.fed_avg(module(), batch_size=2, aggregator=aggregator)
        found.append(process.next(process.initialize(), data())[0].parameters)
    for name in found[0]:
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-6, atol=1e-7)


def test_the_noise_has_the_deviation_that_the_count_leaves() -> None:
    clients, deviation, noise, norm = 4, 0.8, 1.2, 0.5
    joined = aggregators.adaptive_dp_gaussian(noise, count_deviation=deviation, norm=norm)
    still = nn.Linear(50, 50)
    process = learning.fed_avg(still, client_optimizer=0.0, aggregator=joined)
    none = [{"x": np.zeros((1, 50), np.float32), "y": np.array([0])}] * clients
    state, norms = process.initialize(), []
    after, _ = process.next(state, none)
    drawn = np.concatenate(
        [np.ravel(after.parameters[n] - state.parameters[n]) for n in after.parameters]
    )
    wanted = (noise**-2 - (2 * deviation) ** -2) ** -0.5 * norm / clients
    np.testing.assert_allclose(drawn.std(), wanted, rtol=0.05)
    for seed in range(200):
        norms.append(float(process.next(process.initialize(seed), none)[0].aggregator))
    fractions = 0.5 - np.log(np.array(norms) / norm) / 0.2
    np.testing.assert_allclose(fractions.mean(), 1.0, atol=0.05)
    np.testing.assert_allclose(fractions.std(), deviation / clients, rtol=0.2)


@pytest.mark.parametrize(
    "options",
    [
        {"noise_multiplier": -1.0, "count_deviation": 1.0},
        {"noise_multiplier": 1.0, "count_deviation": 0.5},
        {"noise_multiplier": 1.0, "count_deviation": float("inf")},
        {"noise_multiplier": 1.0, "count_deviation": 1.0, "norm": 0.0},
        {"noise_multiplier": 1.0, "count_deviation": 1.0, "quantile": 1.5},
        {"noise_multiplier": 1.0, "count_deviation": 1.0, "learning_rate": -0.1},
    ],
)
def test_numbers_out_of_range_are_refused(options: Any) -> None:
    with pytest.raises(ValueError):
        aggregators.adaptive_dp_gaussian(**options)


def test_an_aggregator_of_ones_own_sees_changes_by_name() -> None:
    class Momentum:
        def initial(self) -> Any:
            return {"bias": np.zeros(3, np.float32), "weight": np.zeros((3, 4), np.float32)}

        def __call__(self, value: Any, weight: Any, key: Any, state: Any) -> Any:
            new = state * 0.5 + federated_mean(value, weight)
            return {"weight": new["weight"], "bias": new.bias}, new

    torch.manual_seed(0)
    process = learning.fed_avg(module(), batch_size=2, aggregator=Momentum())
    state = process.initialize()
    weights = np.array(COUNTS) / sum(COUNTS)
    momentum = {"weight": 0.0, "bias": 0.0}
    wanted = dict(state.parameters)
    for _ in range(2):
        sent = changes(state, data())
        state, _ = process.next(state, data())
        for name in momentum:
            mean = sum(w * one[name] for w, one in zip(weights, sent, strict=True))
            momentum[name] = 0.5 * momentum[name] + mean
            wanted[name] = wanted[name] - momentum[name]
    for name in momentum:
        np.testing.assert_allclose(state.parameters[name], wanted[name], rtol=1e-5, atol=1e-6)
