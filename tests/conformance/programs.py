"""Whole training programs as tutorials write them: `PROGRAMS`.

A program is given a device and a decorator for its step, and returns what it computed.
"""

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.checkpoint import checkpoint

Wrap = Callable[[Any], Any]
Program = Callable[[str, Wrap], list[torch.Tensor]]
PROGRAMS: list[Program] = []


def program(function: Program) -> Program:
    PROGRAMS.append(function)
    return function


def data(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(device)


def network(device: str, *sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).to(device)


@program
def variational_autoencoder(device: str, wrap: Wrap) -> list[torch.Tensor]:
    encoder, decoder = network(device, 6, 8, 4), network(device, 2, 8, 6)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2, eps=1e-2)

    @wrap
    def step(x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        mean, log_variance = encoder(x).chunk(2, dim=1)
        code = mean + noise * (0.5 * log_variance).exp()
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
        loss = F.binary_cross_entropy_with_logits(decoder(code), x.sigmoid()) + divergence / 60
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(data(device, 5, 6), data(device, 5, 2)) for _ in range(4)]
    return [*losses, *encoder.parameters()]


@program
def adversarial_pair(device: str, wrap: Wrap) -> list[torch.Tensor]:
    maker, judge = network(device, 3, 8, 4), network(device, 4, 8, 1)
    first = torch.optim.Adam(maker.parameters(), lr=1e-2, betas=(0.5, 0.9), eps=1e-2)
    second = torch.optim.RMSprop(judge.parameters(), lr=1e-2, eps=1e-2)

    @wrap
    def step(real: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fake = maker(noise)
        second.zero_grad()
        right = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        right.backward()
        second.step()
        first.zero_grad()
        wrong = F.softplus(-judge(fake)).mean()
        wrong.backward()
        first.step()
        return right.detach(), wrong.detach()

    losses = [step(data(device, 5, 4), data(device, 5, 3)) for _ in range(4)]
    return [*sum(losses, ()), *maker.parameters(), *judge.parameters()]


@program
def accumulated_and_clipped(device: str, wrap: Wrap) -> list[torch.Tensor]:
    model = network(device, 4, 8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=10)

    @wrap
    def accumulate(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean() / 2
        loss.backward()
        return loss

    @wrap
    def update() -> torch.Tensor:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()
        return norm

    results = []
    for _ in range(3):
        results += [accumulate(data(device, 3, 4)) for _ in range(2)]
        results.append(update())
        scheduler.step()
    return [*results, *model.parameters()]


@program
def value_clipping_and_groups(device: str, wrap: Wrap) -> list[torch.Tensor]:
    model = network(device, 4, 8, 2)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "lr": 0.5},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, eps=1e-2, amsgrad=True)

    @wrap
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).pow(4).mean()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    return [*[step(data(device, 3, 4)) for _ in range(3)], *model.parameters()]


@program
def averaged_weights(device: str, wrap: Wrap) -> list[torch.Tensor]:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).to(device)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    stochastic = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @wrap
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses = []
    for _ in range(3):
        losses.append(step(data(device, 5, 4)))
        averaged.update_parameters(model)
        stochastic.update_parameters(model)
    update_bn([data(device, 5, 4) for _ in range(2)], stochastic)
    return [*losses, *averaged.parameters(), *averaged.buffers(), *stochastic.buffers()]


@program
def average_by_hand(device: str, wrap: Wrap) -> list[torch.Tensor]:
    model = network(device, 4, 8, 2)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1, eps=1e-2)

    @wrap
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = (model(x) - average(x + 1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        return loss

    return [*[step(data(device, 3, 4)) for _ in range(3)], *average.parameters()]


@program
def normalized_weights(device: str, wrap: Wrap) -> list[torch.Tensor]:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 6)),
        nn.Tanh(),
        parametrizations.spectral_norm(nn.Linear(6, 5)),
        nn.Tanh(),
        parametrizations.orthogonal(nn.Linear(5, 5)),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @wrap
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return [*[step(data(device, 3, 4)) for _ in range(3)], *model.parameters(), *model.buffers()]


@program
def checkpointed(device: str, wrap: Wrap) -> list[torch.Tensor]:
    model = network(device, 4, 8, 8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @wrap
    def step(x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(model[:3], x, use_reentrant=False)
        loss = checkpoint(model[3:], x, use_reentrant=True).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return [*[step(data(device, 3, 4)) for _ in range(3)], *model.parameters()]


@program
def functional_training(device: str, wrap: Wrap) -> list[torch.Tensor]:
    model = network(device, 4, 8, 2)
    parameters = {k: v.detach() for k, v in model.named_parameters()}

    def loss_of(values: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, values, (x,)).square().mean()

    @wrap
    def step(values: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
        gradients, loss = torch.func.grad_and_value(loss_of)(values, x)
        each = torch.func.vmap(torch.func.grad(loss_of), (None, 0))(values, x)
        norms = sum(g.flatten(1).square().sum(1) for g in each.values())
        return {k: v - 0.1 * gradients[k] for k, v in values.items()}, loss, norms

    results = []
    for _ in range(3):
        parameters, loss, norms = step(parameters, data(device, 3, 4))
        results += [loss, norms]
    return [*results, *parameters.values()]


@program
def metric_on_the_device(device: str, wrap: Wrap) -> list[torch.Tensor]:
    model = network(device, 4, 8, 3)
    seen = torch.zeros((), dtype=torch.int64, device=device)
    confusion = torch.zeros(3, 3, device=device)
    best = {"loss": torch.tensor(float("inf"), device=device)}

    @wrap
    def evaluate(x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.no_grad():
            logits = model(x)
            confusion.index_put_((y, logits.argmax(1)), torch.ones_like(x[:, 0]), accumulate=True)
            seen.add_(len(y))
            best["loss"] = torch.minimum(best["loss"], F.cross_entropy(logits, y))

    for _ in range(3):
        evaluate(data(device, 6, 4), torch.randint(0, 3, (6,)).to(device))
    return [seen, confusion, best["loss"]]


@program
def policy_gradient(device: str, wrap: Wrap) -> list[torch.Tensor]:
    policy, critic = network(device, 4, 8, 3), network(device, 4, 8, 1)
    optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=1e-2, eps=1e-2)

    @wrap
    def step(x: torch.Tensor, action: torch.Tensor, reward: torch.Tensor) -> Any:
        distribution = Categorical(logits=policy(x))
        with torch.random.fork_rng(devices=[]):  # the devices draw different numbers
            sampled = distribution.sample()
        value = critic(x).squeeze(-1)
        advantage = (reward - value).detach()
        score = distribution.log_prob(action)
        ratio = (score - score.detach()).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        loss = F.smooth_l1_loss(value, reward) - gain - 0.01 * distribution.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, (sampled >= 0).sum()

    results = []
    for _ in range(3):
        action = torch.randint(0, 3, (5,)).to(device)
        results += step(data(device, 5, 4), action, data(device, 5))
    return [*results, *policy.parameters()]


@program
def continuous_policy(device: str, wrap: Wrap) -> list[torch.Tensor]:
    policy = network(device, 4, 8, 2)
    scale = nn.Parameter(torch.zeros(2, device=device))
    optimizer = torch.optim.NAdam([*policy.parameters(), scale], lr=1e-2, eps=1e-2)

    @wrap
    def step(x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        old = Normal(torch.zeros_like(noise), 1.0)
        new = Normal(policy(x), scale.exp())
        action = new.loc + new.scale * noise
        loss = torch.distributions.kl_divergence(new, old).mean() - new.log_prob(action).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    results = [step(data(device, 5, 4), data(device, 5, 2)) for _ in range(3)]
    return [*results, scale, *policy.parameters()]


@program
def scaled_gradients(device: str, wrap: Wrap) -> list[torch.Tensor]:
    model = network(device, 4, 8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=16.0)

    @wrap
    def gradients(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        return loss

    losses = []
    for _ in range(3):
        losses.append(gradients(data(device, 3, 4)))
        # Skips the step depending on the gradients, which jit does not support.
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [*losses, *model.parameters()]


@program
def second_order(device: str, wrap: Wrap) -> list[torch.Tensor]:
    """A gradient penalty and an inner step, both differentiated through."""
    model = network(device, 4, 8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @wrap
    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        weights = dict(model.named_parameters())
        inner = model(x).square().mean()
        moves = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        moved = {k: w - 0.1 * m for (k, w), m in zip(weights.items(), moves, strict=True)}
        outer = torch.func.functional_call(model, moved, (x,)).square().mean()
        loss = outer + (slope.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return [*[step(data(device, 3, 4)) for _ in range(3)], *model.parameters()]


@program
def hooks_and_frozen_layers(device: str, wrap: Wrap) -> list[torch.Tensor]:
    model = network(device, 4, 8, 8, 2)
    model[0].requires_grad_(False)
    kept: dict[str, torch.Tensor] = {}
    model[2].register_forward_hook(lambda m, i, o: kept.update(middle=o.detach()))
    model[4].weight.register_hook(lambda g: g * 0.5)
    optimizer = torch.optim.RAdam((p for p in model.parameters() if p.requires_grad), lr=1e-2)

    @wrap
    def step(x: torch.Tensor) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss, kept["middle"] * 1

    results = [step(data(device, 3, 4)) for _ in range(3)]
    return [*sum(results, ()), *model.parameters()]


@program
def recurrent_state_carried(device: str, wrap: Wrap) -> list[torch.Tensor]:
    """Truncated backpropagation: the state of one step goes into the next."""
    cell, head = nn.GRU(4, 6, batch_first=True).to(device), nn.Linear(6, 4).to(device)
    optimizer = torch.optim.Adamax([*cell.parameters(), *head.parameters()], lr=1e-2, eps=1e-2)

    @wrap
    def step(x: torch.Tensor, state: torch.Tensor) -> Any:
        out, state = cell(x, state)
        loss = F.mse_loss(head(out[:, :-1]), x[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss, state.detach()

    state, results = torch.zeros(1, 2, 6, device=device), []
    for _ in range(3):
        loss, state = step(data(device, 2, 5, 4), state)
        results += [loss, state]
    return [*results, *cell.parameters()]


@program
def closure_of_lbfgs(device: str, wrap: Wrap) -> list[torch.Tensor]:
    """The optimizer branches on values: its closure is jitted, and not it."""
    model, x = network(device, 4, 6, 1), data(device, 8, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    @wrap
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
        loss.backward()
        return loss

    return [*[optimizer.step(closure) for _ in range(2)], *model.parameters()]
