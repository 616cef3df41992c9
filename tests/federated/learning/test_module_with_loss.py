"""What a forward pass does beside its result: writes, hooks, autocast, missing gradients."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from calque.errors import TraceError
from calque.federated import learning

Make = Callable[[Any], torch.optim.Optimizer]


def examples(*sizes: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(0, 3, n)} for n in sizes
    ]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.2)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.5)


def averaged(module: nn.Module, data: Any, make: Make, rounds: int = 2) -> dict[str, torch.Tensor]:
    """The state after rounds of averaging, by a loop of PyTorch over batches of 4, twice each."""
    server, total = copy.deepcopy(module), sum(len(one["y"]) for one in data)
    for _ in range(rounds):
        mean = {name: torch.zeros_like(t) for name, t in server.state_dict().items()}
        for one in data:
            own = copy.deepcopy(server).train()
            for mine, theirs in zip(own.parameters(), module.parameters(), strict=True):
                for hook in (theirs._backward_hooks or {}).values():
                    mine.register_hook(hook)
            optimizer = make(list(own.parameters()))
            for _ in range(2):
                for start in range(0, len(one["y"]), 4):
                    x, y = (torch.tensor(one[n][start : start + 4]) for n in "xy")
                    optimizer.zero_grad()
                    F.cross_entropy(own(x), y).backward()
                    optimizer.step()
            for name, tensor in own.state_dict().items():
                mean[name] += (tensor.detach() * (len(one["y"]) / total)).to(mean[name].dtype)
        server.load_state_dict(mean)
    return server.state_dict()


def require_pytorchs(
    module: nn.Module, data: Any, make: Make, rtol: float = 1e-4, **settings: Any
) -> None:
    process = learning.fed_avg(module, client_optimizer=make, batch_size=4, epochs=2, **settings)
    state = process.initialize()
    for _ in range(2):
        state, _ = process.next(state, data)
    found = {**state.parameters, **state.buffers}
    for name, wanted in averaged(module, data, make).items():
        np.testing.assert_allclose(found[name], wanted, rtol=rtol, atol=1e-5, err_msg=name)


class Clamped(nn.Module):
    """Keeps its weights small in `forward`, and has a layer that nothing uses."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.layer = nn.Linear(4, 3)
        self.unused = nn.Linear(2, 2)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: Any = self.layer.weight
        if self.how == "no_grad":
            with torch.no_grad():
                weight.clamp_(-0.2, 0.2)
        elif self.how == "data":
            weight.data.clamp_(-0.2, 0.2)
        elif self.how == "assigned":
            weight.data = weight.data.clamp(-0.2, 0.2)
        output = self.layer(x)
        self.seen.data.mul_(0.9).add_(0.1 * output.detach().mean(0))
        return output


@pytest.mark.sampled(3)
@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("how", ["no_grad", "data", "assigned"])
def test_what_forward_writes_to_parameters_is_kept(how: str, chunk: int) -> None:
    require_pytorchs(Clamped(how), examples(4, 8), sgd, chunk=chunk)


def test_a_penalty_is_of_the_parameters_as_they_were_written() -> None:
    data = examples(4)
    process = learning.fed_prox(Clamped("data"), proximal=0.5, client_optimizer=0.1, batch_size=4)
    state, _ = process.next(process.initialize(), data)
    own = Clamped("data")
    start = {name: p.detach().clone() for name, p in own.named_parameters()}
    output = own(torch.tensor(data[0]["x"]))
    distance = sum(((p - start[n]) ** 2).sum() for n, p in own.named_parameters())
    (F.cross_entropy(output, torch.tensor(data[0]["y"])) + 0.25 * distance).backward()
    assert own.layer.weight.grad is not None
    wanted = own.layer.weight.detach() - 0.1 * own.layer.weight.grad
    np.testing.assert_allclose(state.parameters["layer.weight"], wanted, rtol=1e-5, atol=1e-6)


def test_parameters_without_a_gradient_are_left_alone() -> None:
    require_pytorchs(Clamped(""), examples(4, 8), adamw)
    module = Clamped("")
    by_server = functools.partial(torch.optim.SGD, lr=1.0, weight_decay=0.1)
    for make in (learning.fed_opt, learning.fed_sgd):
        process = make(module, server_optimizer=by_server, batch_size=4)
        state, _ = process.next(process.initialize(), examples(4))
        np.testing.assert_array_equal(
            state.parameters["unused.weight"], module.unused.weight.detach()
        )


@pytest.mark.parametrize("case", ["lbfgs", "fed_sgd", "frozen"])
def test_writes_that_would_be_lost_are_refused_with_the_name(case: str) -> None:
    module = Clamped("data")
    if case == "frozen":
        module.layer.weight.requires_grad_(False)
    make: Any = learning.fed_sgd if case == "fed_sgd" else learning.fed_avg
    options = {"client_optimizer": torch.optim.LBFGS} if case == "lbfgs" else {}
    process = make(module, batch_size=4, **options)
    with pytest.raises(TraceError, match=r"forward writes to the parameters? 'layer\.weight'"):
        process.next(process.initialize(), examples(4))


def test_hooks_of_parameters_see_the_gradients() -> None:
    module = Clamped("")
    module.layer.weight.register_hook(lambda gradient: gradient.clamp(-0.05, 0.05))
    require_pytorchs(module, examples(4, 8), sgd)
    module.layer.bias.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(TypeError, match=r"'layer\.bias' has a hook"):
        learning.fed_avg(module)


def test_a_batch_norm_without_momentum_averages_over_all_batches() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(5, momentum=None)
    module = nn.Sequential(nn.Linear(4, 5, bias=False), norm, nn.Linear(5, 3))
    require_pytorchs(module, examples(8, 8), sgd)


class Cast(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = super().forward(input)
        assert output.dtype == torch.bfloat16
        return output.float()


def test_autocast_in_forward_counts_and_around_a_round_is_refused() -> None:
    torch.manual_seed(0)
    module, data = Cast(4, 3), examples(4, 8)
    require_pytorchs(module, data, sgd, rtol=2e-2)
    process = learning.fed_avg(module, batch_size=4)
    state = process.initialize()
    for run in (
        lambda: process.next(state, data),
        lambda: learning.Evaluation(module)(state, data),
    ):
        with torch.autocast("cpu"), pytest.raises(TypeError, match="autocast is on around"):
            run()


def test_a_loss_must_not_read_the_module_that_was_given() -> None:
    module = nn.Linear(4, 3)

    def decayed(of: nn.Linear) -> Any:
        return lambda output, y: (
            F.cross_entropy(output, y, reduction="none") + of.weight.square().sum()
        )

    process = learning.fed_avg(module, decayed(module), batch_size=4)
    with pytest.raises(TraceError, match="'weight' is read from the module that was passed"):
        process.next(process.initialize(), examples(4))
    with pytest.raises(TraceError, match="'weight' is read from the module that was passed"):
        learning.Evaluation(module, decayed(module))(process.initialize(), examples(4))
    process = learning.fed_avg(module, decayed(copy.deepcopy(module)), batch_size=4)
    process.next(process.initialize(), examples(4))


class Average(nn.Linear):
    """Keeps an average of what it has seen in an attribute."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.seen = torch.zeros(())

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.seen = 0.9 * self.seen + input.mean()
        return super().forward(input) * self.seen


def test_an_attribute_that_keeps_something_is_no_buffer() -> None:
    process = learning.fed_avg(Average(), batch_size=4)
    with pytest.raises(TraceError, match=r"module\.seen (.|\n)*register_buffer"):
        process.next(process.initialize(), examples(4))


def test_a_loss_may_take_what_hooks_have_seen() -> None:
    seen: dict[str, torch.Tensor] = {}
    torch.manual_seed(0)
    module, data = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), examples(4)
    module[0].register_forward_hook(lambda module, args, output: seen.update(output=output))

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, y, reduction="none") + seen["output"].square().mean(1)

    process = learning.fed_avg(module, loss, client_optimizer=0.1, batch_size=4)
    state, _ = process.next(process.initialize(), data)
    assert not seen
    loss(module(torch.tensor(data[0]["x"])), torch.tensor(data[0]["y"])).mean().backward()
    weight = module[0].weight
    wanted = weight.detach() - 0.1 * weight.grad  # type: ignore[operator]
    np.testing.assert_allclose(state.parameters["0.weight"], wanted, rtol=1e-5, atol=1e-6)
    found = learning.Evaluation(module, loss)(process.initialize(), data)
    output = module(torch.tensor(data[0]["x"]))
    np.testing.assert_allclose(
        found["loss"], loss(output, torch.tensor(data[0]["y"])).mean().item(), rtol=1e-5
    )


def test_an_error_of_the_module_shows_what_it_was_given() -> None:
    module = nn.Sequential(nn.Linear(5, 3))
    process = learning.fed_avg(module, batch_size=4)
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        process.next(process.initialize(), examples(3, 7))
    notes = "\n".join(caught.value.__notes__)
    assert "x is float32[4] and y is int32; the module gets batches of 4" in notes
    assert "in layer 0 of Sequential: Linear" in notes
