"""The clients' learning rate over the rounds."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch

from calque.federated import learning


def clients() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(0, 3, n)}
        for n in (5, 0, 7)
    ]


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def averaging(optimizer: Any, **more: Any) -> learning.IterativeProcess:
    return learning.fed_avg(module(), client_optimizer=optimizer, batch_size=3, **more)


ALGORITHMS: dict[str, Callable[..., learning.IterativeProcess]] = {
    "rate": averaging,
    "optax": lambda rate, **more: averaging(optax.adam(rate), **more),
    "torch": lambda rate, **more: averaging(
        lambda p: torch.optim.SGD(p, lr=rate, momentum=0.9, weight_decay=0.1), **more
    ),
    "scaffold": lambda rate, **more: learning.scaffold(
        module(), clients=3, client_learning_rate=rate, batch_size=3, **more
    ),
    "mime_lite": lambda rate, **more: learning.mime_lite(
        module(), learning_rate=rate, batch_size=3, **more
    ),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_schedule_is_another_learning_rate_in_each_round(name: str) -> None:
    made, data = ALGORITHMS[name], clients()
    state = made(0.1).initialize()
    for rate in (0.1, 0.0125):
        state, _ = made(rate).next(state, data)

    def lower(number: int) -> float:
        return 1.0 if number == 0 else 0.125

    found, _ = learning.run(made(0.1, client_schedule=lower), data, 2, progress=False)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_schedule_of_optax_and_one_that_ends_at_zero() -> None:
    schedule = optax.linear_schedule(1.0, 0.0, 1)
    process = learning.scaffold(module(), clients=3, client_schedule=schedule)
    first, _ = process.next(process.initialize(), clients())
    second, _ = process.next(first, clients())
    assert np.abs(first.extra["weight"]).max() > 0
    for a, b in zip(*(jax.tree.leaves((s.parameters, s.extra)) for s in (first, second))):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("found", [-1.0, float("nan"), None])
def test_what_a_schedule_gives_is_a_number_from_0_on(found: Any) -> None:
    process = averaging(0.1, client_schedule=lambda number: found)
    with pytest.raises(ValueError, match="client_schedule returned .* for round 0"):
        process.next(process.initialize(), clients())


def test_what_cannot_have_a_schedule_is_told() -> None:
    with pytest.raises(TypeError, match=r"client_schedule must be .* not 0\.9"):
        averaging(0.1, client_schedule=0.9)
    process = averaging(torch.optim.LBFGS, client_schedule=lambda number: 1.0)
    with pytest.raises(TypeError, match="LBFGS depends on its previous steps"):
        process.next(process.initialize(), clients())
