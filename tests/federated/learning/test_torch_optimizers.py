"""Optimizers of PyTorch on clients and servers step as they do in PyTorch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

from calque.federated import learning
from calque.federated.learning.torch_optimizers import TorchOptimizer

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.05),
    "momentum": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "nesterov": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, lr=0.05),
    "AMSGrad": lambda p: optim.Adam(p, lr=0.05, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.05, weight_decay=0.1),
    "NAdam": lambda p: optim.NAdam(p, lr=0.05),
    "RAdam": lambda p: optim.RAdam(p, lr=0.05),
    "Adamax": lambda p: optim.Adamax(p, lr=0.05),
    "Adadelta": lambda p: optim.Adadelta(p, lr=0.5),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.05, centered=True),
    "ASGD": lambda p: optim.ASGD(p, lr=0.05),
    "Rprop": lambda p: optim.Rprop(p, lr=0.05),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1),
    "Adagrad with decay": lambda p: optim.Adagrad(
        p, lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.3
    ),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.1),
    "Adafactor, maximizing": lambda p: optim.Adafactor(
        p, lr=0.5, weight_decay=0.1, maximize=True, d=1.5, eps=(1e-5, 1e-2)
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_pytorchs(name: str) -> None:
    rng = np.random.default_rng(0)
    start = [rng.normal(size=shape).astype(np.float32) for shape in ((3, 2), (4,))]
    gradients = [[rng.normal(size=p.shape).astype(np.float32) for p in start] for _ in range(4)]

    leaves = [torch.tensor(p, requires_grad=True) for p in start]
    theirs = OPTIMIZERS[name](leaves)
    optimizer = TorchOptimizer(OPTIMIZERS[name])
    params = [jnp.asarray(p) for p in start]
    state = optimizer.init(params)
    step = jax.jit(optimizer.step)
    for some in gradients:
        for leaf, gradient in zip(leaves, some, strict=True):
            leaf.grad = torch.tensor(gradient)
        theirs.step()
        params, state = step(some, state, params)
    for found, wanted in zip(params, leaves, strict=True):
        np.testing.assert_allclose(found, wanted.detach(), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("chunk", [1, 2])
def test_clients_and_the_server_step_by_pytorchs_optimizers(chunk: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    rng = np.random.default_rng(0)
    data = [
        {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(0, 3, n)}
        for n in (6, 4, 3)
    ]
    process = learning.fed_avg(
        model,
        client_optimizer=OPTIMIZERS["AdamW"],
        server_optimizer=OPTIMIZERS["momentum"],
        batch_size=2,
        chunk=chunk,
    )
    state = process.initialize()
    server = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    theirs = OPTIMIZERS["momentum"](server.values())
    for _ in range(3):
        state, _ = process.next(state, data)
        mean = {name: torch.zeros_like(p) for name, p in server.items()}
        for client in data:
            own = {name: p.detach().clone().requires_grad_() for name, p in server.items()}
            by_client = OPTIMIZERS["AdamW"](own.values())
            for first in range(0, len(client["y"]), 2):
                x, y = (torch.tensor(client[key][first : first + 2]) for key in ("x", "y"))
                by_client.zero_grad()
                F.cross_entropy(torch.func.functional_call(model, own, (x,)), y).backward()
                by_client.step()
            for name, p in server.items():
                mean[name] += (p - own[name]).detach() * len(client["y"]) / 13
        for name, p in server.items():
            p.grad = mean[name]
        theirs.step()
    for name, p in server.items():
        np.testing.assert_allclose(state.parameters[name], p.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", ["client", "server"])
def test_parameters_are_given_in_the_order_of_the_module(side: str) -> None:
    """As a maker of groups takes them; JAX would sort them by name."""

    def grouped(parameters: Any) -> optim.Optimizer:
        weight, bias = parameters
        assert (weight.ndim, bias.ndim) == (2, 1)
        return optim.SGD([{"params": [weight], "lr": 0.1}, {"params": [bias], "lr": 0.7}])

    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(size=(6, 4)).astype(np.float32), "y": rng.integers(0, 3, 6)}]
    options: Any = {f"{side}_optimizer": grouped}
    if side == "server":
        options["client_optimizer"] = 1.0
    process = learning.fed_avg(model, batch_size=6, **options)
    state, _ = process.next(process.initialize(), data)
    x, y = (torch.tensor(data[0][name]) for name in ("x", "y"))
    F.cross_entropy(model(x), y).backward()
    for name, rate in (("weight", 0.1), ("bias", 0.7)):
        parameter = getattr(model, name)
        wanted = (parameter - rate * parameter.grad).detach()
        np.testing.assert_allclose(state.parameters[name], wanted, rtol=1e-5, atol=1e-6)


def test_an_optimizer_that_asks_for_a_closure_is_refused() -> None:
    process = learning.fed_avg(nn.Linear(2, 2), client_optimizer=optim.LBFGS)
    data = [{"x": np.ones((2, 2), np.float32), "y": np.array([0, 1])}]
    with pytest.raises(TypeError, match="closure"):
        process.next(process.initialize(), data)
