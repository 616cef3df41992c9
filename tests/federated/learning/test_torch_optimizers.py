"""Optimizers of PyTorch on clients and servers step as they do in PyTorch."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

from calque import federated as fed
from calque.errors import TraceError
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
    "RAdam, maximizing": lambda p: optim.RAdam(
        p, lr=0.05, betas=(0.8, 0.99), weight_decay=0.1, maximize=True
    ),
    "RAdam with decay": lambda p: optim.RAdam(
        p, lr=0.05, weight_decay=0.1, decoupled_weight_decay=True
    ),
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


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_pytorchs(name: str) -> None:
    rng = np.random.default_rng(0)
    start = [rng.normal(size=shape).astype(np.float32) for shape in ((3, 2), (4,))]
    gradients = [[rng.normal(size=p.shape).astype(np.float32) for p in start] for _ in range(9)]

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


def by_closures(model: nn.Module, client: Any, settings: dict[str, Any]) -> nn.Module:
    """The model after two epochs, each of one step over all of a client's examples."""
    own = copy.deepcopy(model)
    optimizer = optim.LBFGS(own.parameters(), **settings)
    x, y = torch.tensor(client["x"]), torch.tensor(client["y"])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(own(x), y)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)  # type: ignore[arg-type]
    return own


def linear_model_and_data(*sizes: int) -> tuple[nn.Linear, list[dict[str, Any]]]:
    """A model of three classes, and the examples of clients of these sizes."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    data = [
        {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(0, 3, n)} for n in sizes
    ]
    return nn.Linear(4, 3), data


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 0.2, "max_iter": 4},
        {"lr": 1.0, "max_iter": 4, "line_search_fn": "strong_wolfe"},
        pytest.param({"lr": 0.1, "max_iter": 6, "history_size": 2}, marks=pytest.mark.conformance),
        pytest.param({"lr": 0.2, "max_iter": 7, "max_eval": 5}, marks=pytest.mark.conformance),
        pytest.param({"lr": 0.2, "tolerance_change": 3e-2}, marks=pytest.mark.conformance),
        pytest.param({"lr": 0.2, "tolerance_grad": 0.1}, marks=pytest.mark.conformance),
    ],
    ids=str,
)
def test_lbfgs_asks_for_the_clients_loss_as_often_as_pytorchs(settings: dict[str, Any]) -> None:
    """On a convex loss and all of a client's examples: elsewhere it makes much of each rounding."""
    model, data = linear_model_and_data(12, 7)
    process = learning.fed_avg(
        model, client_optimizer=lambda p: optim.LBFGS(p, **settings), batch_size=12, epochs=2
    )
    state, _ = process.next(process.initialize(), data)
    wanted: dict[str, Any] = {name: 0.0 for name, _ in model.named_parameters()}
    for client in data:
        own = by_closures(model, client, settings)
        for name, p in own.named_parameters():
            wanted[name] += p.detach() * len(client["y"]) / 19
    for name, p in wanted.items():
        np.testing.assert_allclose(state.parameters[name], p, rtol=1e-3, atol=1e-4)


@pytest.mark.conformance
def test_lbfgs_minimizes_with_the_proximal_term() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    rng = np.random.default_rng(0)
    client = {"x": rng.normal(size=(12, 4)).astype(np.float32), "y": rng.integers(0, 3, 12)}
    settings = {"line_search_fn": "strong_wolfe", "max_iter": 4}
    process = learning.fed_prox(
        model,
        proximal=0.5,
        client_optimizer=lambda p: optim.LBFGS(p, **settings),
        batch_size=12,
    )
    state, metrics = process.next(process.initialize(), [client])

    own = copy.deepcopy(model)
    optimizer = optim.LBFGS(own.parameters(), **settings)
    x, y = torch.tensor(client["x"]), torch.tensor(client["y"])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        pairs = zip(own.parameters(), model.parameters(), strict=True)
        away = sum(((a - b.detach()) ** 2).sum() for a, b in pairs)
        loss = F.cross_entropy(own(x), y) + 0.25 * away
        loss.backward()
        return loss

    before = F.cross_entropy(own(x), y).item()
    optimizer.step(closure)  # type: ignore[arg-type]
    assert float(metrics["loss"]) == pytest.approx(before, rel=1e-5)
    for name, p in own.named_parameters():
        np.testing.assert_allclose(state.parameters[name], p.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("client", "server", "error", "message"),
    [
        (lambda p: optim.LBFGS(p, line_search_fn="armijo"), 1.0, RuntimeError, "strong_wolfe"),
        (optim.LBFGS, optim.LBFGS, TypeError, "only gradients"),
    ],
    ids=["another line search", "on the server"],
)
def test_lbfgs_is_refused_where_it_cannot_ask(
    client: Any, server: Any, error: type[Exception], message: str
) -> None:
    data = [{"x": np.ones((2, 2), np.float32), "y": np.array([0, 1])}]

    def trained() -> None:
        model = nn.Linear(2, 2)
        process = learning.fed_avg(model, client_optimizer=client, server_optimizer=server)
        process.next(process.initialize(), data)

    with pytest.raises(error, match=message):
        trained()


@pytest.mark.conformance
def test_an_optimizer_that_searches_along_a_line_asks_for_the_clients_loss() -> None:
    optimizer: Any = optax.lbfgs(memory_size=1)
    model, data = linear_model_and_data(6, 6)
    process = learning.fed_avg(model, client_optimizer=optimizer, batch_size=6, epochs=2)
    state, _ = process.next(process.initialize(), data)
    wanted = {name: 0.0 for name, _ in model.named_parameters()}

    @jax.jit
    def trained(params: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            scores = jax.nn.log_softmax(x @ p["weight"].T + p["bias"])
            return -jnp.take_along_axis(scores, y[:, None], 1).mean()

        def step(carry: Any, _: Any) -> Any:
            params, kept = carry
            value, gradient = jax.value_and_grad(loss)(params)
            updates, kept = optimizer.update(
                gradient, kept, params, value=value, grad=gradient, value_fn=loss
            )
            return (optax.apply_updates(params, updates), kept), None

        return jax.lax.scan(step, (params, optimizer.init(params)), length=2)[0][0]

    start = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}
    for client in data:
        y = client["y"]
        params = trained(start, client["x"], y)
        for name in wanted:
            wanted[name] += np.asarray(params[name]) * len(y) / 12
    for name, value in wanted.items():
        np.testing.assert_allclose(state.parameters[name], value, rtol=1e-4, atol=1e-4)


def limited(kind: Any, **settings: Any) -> Callable[[Any], optim.Optimizer]:
    """An optimizer that scales gradients down before each step, by a hook."""

    def make(parameters: Any) -> optim.Optimizer:
        leaves = list(parameters)
        optimizer = kind(leaves, **settings)

        def limit(*_: Any) -> None:
            nn.utils.clip_grad_norm_(leaves, 0.01)

        optimizer.register_step_pre_hook(limit)
        return optimizer

    return make


@pytest.mark.parametrize("kind", [optim.SGD, optim.RAdam, optim.Adafactor])
def test_hooks_of_steps_run_before_them(kind: Any) -> None:
    start, gradient = torch.tensor([1.0, -2.0, 3.0]), np.float32([3.0, 0.2, 1.0])
    optimizer = TorchOptimizer(limited(kind, lr=0.1))
    state, params = optimizer.init([start.numpy()]), [jnp.asarray(start.numpy())]

    def stepped(x: torch.Tensor) -> torch.Tensor:
        own = start.clone().requires_grad_()
        taken = limited(kind, lr=0.1)([own])
        for _ in range(2):
            own.grad = x.clone()
            taken.step()
        return own.detach()

    for _ in range(2):
        params, state = optimizer.step([jnp.asarray(gradient)], state, params)
    wanted = stepped(torch.tensor(gradient))
    np.testing.assert_allclose(params[0], wanted, rtol=1e-5)
    np.testing.assert_allclose(fed.local("float32[3]")(stepped)(gradient), wanted, rtol=1e-5)


class Counting(optim.Optimizer):
    """Counts its steps in Python."""

    def __init__(self, parameters: Any, where: str) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.where = where
        self.count = 0

    def step(self, closure: Any = None) -> Any:
        if self.where == "group":
            self.param_groups[0]["lr"] *= 0.5
        elif self.where == "state":
            self.state["count"] = self.state.get("count", 0) + 1  # type: ignore[call-overload]
        else:
            self.count += 1


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("group", "'lr' of param group 0"),
        ("state", "'count' of a state that belongs to no parameter"),
        ("attribute", "the attribute 'count'"),
    ],
)
def test_an_optimizer_that_counts_in_python_is_refused(where: str, said: str) -> None:
    optimizer = TorchOptimizer(lambda p: Counting(p, where))
    with pytest.raises(TypeError, match=f"a step of Counting changes {said}"):
        optimizer.init([jnp.ones(2)])


def test_what_reads_numbers_in_a_step_is_told_without_a_word_of_jit() -> None:
    def limited(parameters: Any) -> optim.Optimizer:
        optimizer = optim.SGD(parameters, lr=0.1)
        leaf = optimizer.param_groups[0]["params"][0]
        optimizer.register_step_pre_hook(lambda *_: leaf.grad.mul_(float(leaf.grad.norm())))
        return optimizer

    with pytest.raises(TraceError, match="reads a tensor as a Python number") as caught:
        TorchOptimizer(limited).init([jnp.ones(2)])
    assert "jit" not in str(caught.value)
    for kind, said in ((limited, "reads a tensor as a"), (optim.LBFGS, "LBFGS chooses")):

        def fitted(x: torch.Tensor, kind: Any = kind) -> torch.Tensor:
            own = torch.zeros(3, requires_grad=True)
            optimizer = kind([own])

            def loss() -> torch.Tensor:
                found = (own - x).square().sum()
                found.backward()
                return found

            loss()
            optimizer.step(loss) if kind is optim.LBFGS else optimizer.step()
            return own.detach()

        with pytest.raises(TraceError, match=said):
            fed.local("float32[3]")(fitted)
