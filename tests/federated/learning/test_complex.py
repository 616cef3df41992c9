"""Complex parameters, against PyTorch and numpy."""

import copy
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from calque import federated as fed
from calque.federated import learning
from calque.federated.learning import aggregators

RNG = np.random.default_rng(0)
DATA = [
    {"x": RNG.normal(size=(4, 4)).astype(np.float32), "y": RNG.integers(0, 3, 4)} for _ in range(2)
]
WEIGHTS = np.array([1, 2, 3, 1], np.float32)
VALUES = {
    "z": (RNG.normal(size=(4, 5)) + 1j * RNG.normal(size=(4, 5))).astype(np.complex64),
    "h": RNG.normal(size=(4, 3)).astype(ml_dtypes.bfloat16),
}


class Wave(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(self.w.dtype) @ self.w).abs()


def averaged(make: Any, proximal: float = 0.0) -> torch.Tensor:
    """The weights after a round of averaging, in batches of 2."""
    found = []
    for one in DATA:
        own = Wave()
        before, optimizer = copy.deepcopy(own.w.detach()), make(own.parameters())
        for start in (0, 2):
            x, y = (torch.tensor(one[name][start : start + 2]) for name in "xy")
            optimizer.zero_grad()
            distance = (own.w - before).abs().square().sum()
            (F.cross_entropy(own(x), y) + proximal / 2 * distance).backward()
            optimizer.step()
        found.append(own.w.detach())
    return torch.stack(found).mean(0)


def test_clients_step_as_in_pytorch() -> None:
    for make, proximal in ((torch.optim.Adam, 0.0), (lambda p: torch.optim.SGD(p, lr=0.1), 0.5)):
        process = learning.fed_avg(Wave(), client_optimizer=make, batch_size=2, proximal=proximal)
        state, _ = process.next(process.initialize(), DATA)
        wanted = averaged(make, proximal)
        np.testing.assert_allclose(state.parameters["w"], wanted, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_all_examples_is_pytorchs() -> None:
    process = learning.fed_sgd(Wave(), server_optimizer=0.1, batch_size=2)
    found = process.next(process.initialize(), DATA)[0].parameters["w"]
    module = Wave()
    x, y = (torch.tensor(np.concatenate([one[name] for one in DATA])) for name in "xy")
    F.cross_entropy(module(x), y).backward()
    assert module.w.grad is not None
    wanted = module.w.detach() - 0.1 * module.w.grad
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_lbfgs_is_refused() -> None:
    process = learning.fed_avg(Wave(), client_optimizer=torch.optim.LBFGS)
    with pytest.raises(TypeError, match="LBFGS does not support complex parameters"):
        process.next(process.initialize(), DATA)


def joined(aggregator: Any, values: Any) -> Any:
    kind = fed.at_clients(fed.to_type({n: v[0] for n, v in values.items()}))
    comp = fed.computation(
        lambda value, weight, key: aggregator(value, weight, key),
        *(kind, "{float32}@CLIENTS", "uint32[2]@SERVER"),
    )
    return comp(values, WEIGHTS, jax.random.key_data(jax.random.key(0)))


def median(own: np.ndarray) -> Any:
    if not np.iscomplexobj(own):
        return np.median(own, 0)
    return np.median(own.real, 0) + 1j * np.median(own.imag, 0)


@pytest.mark.parametrize("name", ["mean", "clipped", "private", "median", "secure", "quantized"])
def test_aggregators_take_complex_and_half_precision(name: str) -> None:
    wide = {n: v.astype(np.complex64 if n == "z" else np.float32) for n, v in VALUES.items()}
    norms = np.sqrt(sum((np.abs(v) ** 2).sum(1) for v in wide.values()))
    small = {n: v * np.minimum(1, 1.5 / norms)[:, None] for n, v in wide.items()}
    aggregator, values, function = {
        "mean": (aggregators.mean(), wide, lambda v: np.average(v, 0, WEIGHTS)),
        "clipped": (aggregators.clipped(1.5), small, lambda v: np.average(v, 0, WEIGHTS)),
        "private": (aggregators.dp_gaussian(0.0, 1.5), small, lambda v: v.mean(0)),
        "median": (aggregators.median(), wide, median),
        "secure": (aggregators.secure(4.0, 20), wide, lambda v: v.mean(0)),
        "quantized": (aggregators.quantized(16), wide, lambda v: np.average(v, 0, WEIGHTS)),
    }[name]
    found = joined(aggregator, VALUES)
    for part, array in values.items():
        assert found[part].dtype == VALUES[part].dtype
        got = np.asarray(found[part]).astype(array.dtype)
        exact = 1e-3 if part == "z" else 2e-2
        np.testing.assert_allclose(got, function(array), rtol=exact, atol=exact)


def test_noise_has_its_deviation_in_both_parts() -> None:
    values = {"z": np.zeros((4, 20_000), np.complex64)}
    noise = joined(aggregators.dp_gaussian(2.0, 0.5), values)["z"]
    for part in (noise.real, noise.imag):
        np.testing.assert_allclose(np.std(part), 2.0 * 0.5 / 4, rtol=0.03)
