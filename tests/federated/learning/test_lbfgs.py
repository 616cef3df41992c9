"""Steps of LBFGS in double precision against PyTorch's, where each of them decides by rounding."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from calque.federated.learning.lbfgs import Lbfgs


def rosenbrock(x: Any, power: Any) -> Any:
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum() + 0 * power


def quartic(x: Any, power: Any) -> Any:
    return ((x - 0.3) ** power).sum() + (x[0] * x[1] - 0.1) ** 2


def steps_of_pytorch(f: Any, start: list[float], settings: dict[str, Any]) -> list[np.ndarray]:
    x = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([x], **settings)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = f(x, 4)
        loss.backward()
        return loss

    found = []
    for _ in range(3):
        optimizer.step(closure)
        found.append(x.detach().numpy().copy())
    return found


def steps(f: Any, start: list[float], settings: dict[str, Any]) -> list[np.ndarray]:
    made = torch.optim.LBFGS([torch.zeros(len(start), requires_grad=True)], **settings)
    lbfgs = Lbfgs(made)
    leaves = [jnp.array(start)]
    memory = lbfgs.init(leaves)

    def loss(leaves: list[Any]) -> Any:
        return f(leaves[0], 4)

    @jax.jit
    def step(leaves: list[Any], memory: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(leaves)
        return lbfgs.step(leaves, memory, value, gradients, loss)

    found = []
    for _ in range(3):
        leaves, memory = step(leaves, memory)
        found.append(np.asarray(leaves[0]))
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("f", [rosenbrock, quartic])
@pytest.mark.parametrize(
    "settings",
    [
        {"max_iter": 6},
        {"max_iter": 6, "history_size": 1},
        {"max_iter": 6, "lr": 1e-2},  # grows until a bracket is found
        {"max_iter": 6, "lr": 1e3},  # starts far outside
        {"max_iter": 6, "max_eval": 4, "lr": 1e-3},  # stops while it grows
        {"max_iter": 6, "max_eval": 3, "lr": 1e3},  # stops inside the bracket
        {"max_iter": 6, "max_eval": 1},
        {"max_iter": 100, "tolerance_grad": 1e-3},
        {"max_iter": 100, "tolerance_change": 1e-3},
    ],
    ids=str,
)
def test_the_line_search_takes_pytorchs_steps(f: Any, settings: dict[str, Any]) -> None:
    settings = {**settings, "line_search_fn": "strong_wolfe"}
    start = [-1.2, 1.0, 0.7]
    with jax.enable_x64(True):
        found = steps(f, start, settings)
    for ours, pytorchs in zip(found, steps_of_pytorch(f, start, settings), strict=True):
        np.testing.assert_allclose(ours, pytorchs, rtol=1e-7, atol=1e-9)
