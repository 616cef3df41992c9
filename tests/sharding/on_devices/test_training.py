"""The plain training step with AdamW, spread in the usual ways: its losses are the CPU's."""

import copy
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import calque
from calque import sharding as sh
from calque.sharding import P, Plan, along

Tensor = torch.Tensor
Step = Callable[[Tensor], Tensor]
WIDTH, STEPS = 32, 5
IS_OPTIMIZED = "backend_optimization_level=0" not in os.environ.get("XLA_FLAGS", "")
TOLERANCE = 5e-7 if IS_OPTIMIZED else 1e-6
"""Of losses of about 2. Without LLVM's optimizations, JAX 0.12 adds up in another order."""


class Block(nn.Module):
    """Attention and a feed-forward part; `pin` says how what it gives is split."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.k = nn.Linear(WIDTH, WIDTH, bias=False)  # the gradient of a bias would be only noise
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.pin: Callable[[Tensor], Tensor] = lambda x: x

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = self.pin(x + self.out(y))
        return self.pin(x + self.down(F.gelu(self.up(x))))


class Way(NamedTuple):
    """A way to spread a model.

    Attributes:
        axes: of the mesh.
        plan: of the model.
        batch: of the data.
        pin: of what each block gives.
        share: how much of the whole a device may hold.
    """

    axes: dict[str, int]
    plan: Plan
    batch: P
    pin: tuple[Any, ...] | None
    share: float


TP: Plan = {
    "*.[qkv].weight": P("tp"),
    "*.[qkv].bias": P("tp"),
    "*.out.weight": P(None, "tp"),
    "*.up.weight": P("tp"),
    "*.up.bias": P("tp"),
    "*.down.weight": P(None, "tp"),
}
FSDP_TP: Plan = {
    "*.[qkv].weight": P("tp", "dp"),
    "*.out.weight": P("dp", "tp"),
    "*.up.weight": P("tp", "dp"),
    "*.down.weight": P("dp", "tp"),
    "*": along("dp"),
}
WAYS = {
    "DP": Way({"dp": 8}, {}, P("dp"), None, 1.01),
    "FSDP": Way({"dp": 8}, {"*": along("dp")}, P("dp"), ("dp", ...), 1 / 8 + 0.01),
    "TP": Way({"dp": 4, "tp": 2}, TP, P("dp"), None, 0.55),
    "FSDP+TP": Way({"dp": 4, "tp": 2}, FSDP_TP, P("dp"), ("dp", ...), 0.17),
    "TP+SP": Way({"dp": 4, "tp": 2}, TP, P("dp"), ("dp", "tp", None), 0.55),
    "HSDP": Way(
        {"replica": 2, "dp": 4},
        {"*": along("dp")},
        P(("replica", "dp")),
        (("replica", "dp"), ...),
        0.26,
    ),
}


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), nn.LayerNorm(WIDTH))


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 4, WIDTH, generator=generator) for _ in range(STEPS)]


def step_of(model: Any, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = (model(x) - x.roll(1, 1)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@pytest.fixture(scope="module")
def reference() -> tuple[list[float], dict[str, Tensor]]:
    model = model_of()
    step = step_of(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    return [step(x).item() for x in batches()], model.state_dict()


def cases() -> list[Any]:
    """Every way in every mode; most of them, parts of the others, only with `-m conformance`."""
    slow = pytest.mark.conformance
    kept = {("TP+SP", "jit"), ("FSDP+TP", "jit"), ("FSDP+TP", "eager")}
    return [
        pytest.param(way, kind, marks=() if (way, kind) in kept else slow)
        for way in WAYS
        for kind in ("jit", "eager", "compile")
    ]


@pytest.mark.parametrize(("way", "kind"), cases())
def test_the_losses_are_those_of_the_cpu(
    way: str, kind: str, reference: tuple[list[float], dict[str, Tensor]]
) -> None:
    axes, plan, batch, pin, share = WAYS[way]
    mesh = sh.mesh(**axes)
    model = model_of().to("jax")
    sh.shard_module(model, plan, mesh)
    for block in model:
        if isinstance(block, Block) and pin is not None:
            block.pin = lambda x: sh.constrain(x, *pin, mesh=mesh)
    before = {name: sh.placement(p) for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    called = torch.compile(model, backend="calque") if kind == "compile" else model
    step: Any = step_of(called, optimizer)
    if kind == "jit":
        step = calque.jit(step)
    losses = [step(x).item() for x in sh.loader(batches(), batch, mesh)]

    expected, weights = reference
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) <= TOLERANCE
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor.cpu(), weights[name], rtol=1e-4, atol=1e-5)
    assert {name: sh.placement(p) for name, p in model.named_parameters()} == before
    for parameter, state in optimizer.state.items():
        for name in ("exp_avg", "exp_avg_sq"):
            assert sh.placement(state[name]) == sh.placement(parameter)
    if kind == "jit":
        assert step.history == ["first call"]
    backward: Any = lambda x: called(x).pow(2).mean().backward()
    backward = calque.jit(backward) if kind == "jit" else backward  # as one program
    backward(next(sh.loader(batches(), batch, mesh)))
    found = sh.memory(model, optimizer)
    assert {"parameters", "gradients", "state"} <= found.whole.keys()
    assert found.share <= share, str(found)


def test_clipping_scaling_and_averages_are_those_of_the_cpu() -> None:
    def train(device: str) -> list[Tensor]:
        model = model_of().to(device)
        if device == "jax":
            sh.mesh(dp=8)
            sh.shard_module(model, {"*": along("dp")})
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler(device, init_scale=8.0)
        norms = []
        for x in batches()[:3]:
            if device == "jax":
                x = sh.shard(x, P("dp"))
            loss = (model(x) - x).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).cpu())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            average.update_parameters(model)
        if device == "jax":
            for a, p in zip(average.module.parameters(), model.parameters(), strict=True):
                assert sh.placement(a) == sh.placement(p)
                assert sh.placement(optimizer.state[p]["momentum_buffer"]) == sh.placement(p)
        return norms + [p.detach().cpu() for p in average.module.parameters()]

    for ours, theirs in zip(train("jax"), train("cpu"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_model_is_differentiated_through_a_jitted_forward() -> None:
    sh.mesh(dp=8)
    whole = model_of()
    model = sh.shard_module(copy.deepcopy(whole).to("jax"), {"*": along("dp")})
    x = batches()[0]
    for _ in range(2):
        calque.jit(model)(sh.shard(x, P("dp"))).pow(2).mean().backward()
        whole(x).pow(2).mean().backward()
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        assert sh.placement(ours.grad) == sh.placement(ours)
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-5)


def test_placements_are_part_of_the_signature_and_of_the_guards() -> None:
    sh.mesh(dp=8)
    weight = torch.ones(16, 16, device="jax")
    product = calque.jit(lambda x: x @ weight)
    x = torch.ones(16, 16)
    results = [product(x.to("jax"))]
    for placed in (P("dp"), P(None, "dp"), P()):
        results.append(product(sh.shard(x, placed)))
        results.append(product(sh.shard(x, P(*placed, *[None] * (2 - len(placed))))))
    assert len(product.history) == 4
    assert "spread as" in product.history[1]
    sh.shard(weight, P("dp"))
    results += [product(sh.shard(x, P())), product(sh.shard(x, P()))]
    assert product.history[4:] == ["a tensor of the state is spread over devices differently"]
    assert all(result.eq(16).all() for result in results)


class Averages(torch.optim.Optimizer):
    """Makes its state in the first step, by the shape alone."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if not self.state[p]:
                    self.state[p]["average"] = torch.zeros(p.shape, device=p.device)
                self.state[p]["average"].lerp_(p.grad, 0.5)
                p.sub_(self.state[p]["average"], alpha=group["lr"])


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Rprop": torch.optim.Rprop,
    "Muon": torch.optim.Muon,
    "NAdam": torch.optim.NAdam,
    "own": Averages,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("before", [False, True])
def test_state_that_a_step_makes_lies_where_its_parameter_lies(name: str, before: bool) -> None:
    sh.mesh(dp=8)
    torch.manual_seed(0)
    on_cpu = nn.Sequential(nn.Linear(16, 32, bias=False), nn.Linear(32, 8, bias=False))
    model = copy.deepcopy(on_cpu).to("jax")
    if not before:
        sh.shard_module(model, {"*": along("dp")})
    optimizers = [OPTIMIZERS[name](m.parameters()) for m in (model, on_cpu)]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    jitted = calque.jit(lambda x: step(model, optimizers[0], x))
    for i in range(4):
        x = torch.randn(8, 16)
        if i == 2 and before:  # spread after the optimizer has created its state
            sh.shard_module(model, {"*": along("dp")})
        jitted(x.to("jax") if i < 2 and before else sh.shard(x, P("dp")))
        step(on_cpu, optimizers[1], x)
    for ours, theirs in zip(model.parameters(), on_cpu.parameters(), strict=True):
        atol = 2e-3 if name == "Muon" else 1e-4  # it multiplies in bfloat16
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-3, atol=atol)
        for value in optimizers[0].state[ours].values():
            if isinstance(value, Tensor) and value.shape == ours.shape:
                assert sh.placement(value) == sh.placement(ours)
    assert sh.memory(model, optimizers[0]).share < 0.14


def test_a_model_of_which_a_part_is_spread_is_traced_once() -> None:
    sh.mesh(tp=8)
    torch.manual_seed(0)
    on_cpu = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16))
    model = copy.deepcopy(on_cpu).to("jax")
    sh.shard(model[1].weight, P("tp"))
    steps = [step_of(m, torch.optim.AdamW(m.parameters())) for m in (model, on_cpu)]
    jitted = calque.jit(steps[0])
    for _ in range(3):
        x = torch.randn(4, 2, 16)
        assert jitted(x.to("jax")).item() == pytest.approx(steps[1](x).item(), rel=0, abs=5e-7)
    assert jitted.history == ["first call"]
    assert sh.placement(model[0].weight).spec == P()


def test_a_weight_is_gathered_once_for_forward_and_backward() -> None:
    mesh = sh.mesh(dp=4, tp=2)
    model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 40)).to("jax")
    sh.shard_module(model, {"*.weight": P("tp", "dp")}, mesh)

    @calque.jit
    def step(x: Tensor) -> None:
        model(x).pow(2).mean().backward()

    x = sh.shard(torch.randn(512, 16, device="jax"), P("dp"), mesh)
    text = step.lower(x).compile().as_text()
    gathered = re.findall(r"= f32\[(\d+,\d+)\]\S* all-gather\(", text)
    assert gathered.count("20,24") + gathered.count("24,20") == 1, gathered


def test_a_compiled_step_of_an_optimizer_counts_on_the_cpu() -> None:
    """Its counters are tensors of the CPU, to which a program over several devices writes."""

    def trained(spread: bool) -> tuple[nn.Linear, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(16, 16).to("jax")
        if spread:
            sh.shard_module(model, {"*": along("dp")}, sh.mesh(dp=8))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        step: Any = torch.compile(optimizer.step, backend="calque")
        x = torch.linspace(-1, 1, 128).reshape(8, 16).to("jax")
        for _ in range(2):
            model(x).square().mean().backward()
            step()
            optimizer.zero_grad()
        return model, optimizer

    (a, alone), (b, spread) = trained(False), trained(True)
    torch.testing.assert_close(a.weight.cpu(), b.weight.cpu(), rtol=1e-4, atol=1e-6)
    for one, other in zip(alone.state.values(), spread.state.values(), strict=True):
        assert one["step"].device.type == other["step"].device.type == "cpu"
        assert one["step"] == other["step"] == 2
    assert sh.placement(b.weight) == sh.placement(spread.state[b.weight]["exp_avg"])
