"""Equal layers as a loop: their weights are gathered one layer at a time."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calque
from calque import sharding as sh
from calque.sharding import P

DEPTH, WIDTH = 8, 512
WHOLE = DEPTH * WIDTH * WIDTH * 4  # bytes of all weights


class Layer(nn.Module):
    """A residual layer with one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.linear(x))


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_peak_is_that_of_few_layers_and_the_losses_are_the_cpus(optimizer: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(DEPTH)))
    x = torch.randn(64, WIDTH)

    def step_of(model: nn.Module) -> tuple[Callable[[Tensor], Tensor], torch.optim.Optimizer]:
        own = OPTIMIZERS[optimizer](model.parameters())

        def step(x: Tensor) -> Tensor:
            loss = model(x).square().mean()
            loss.backward()
            own.step()
            own.zero_grad()
            return loss

        return step, own

    on_cpu, _ = step_of(copy.deepcopy(model))
    mesh = sh.mesh(dp=8)
    sh.shard_module(model.to("jax"), {"*": P("dp")})
    keys = list(model.state_dict())
    plain, own = step_of(model)
    step = calque.jit(plain, scan_layers=True)
    spread = sh.shard(x.to("jax"), P("dp"), mesh)

    compiled = step.lower(spread).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 0.5 * WHOLE
    assert compiled.as_text().count(" all-gather(") <= 2

    losses = [(step(spread).item(), on_cpu(x).item()) for _ in range(3)]
    for found, expected in losses:
        assert found == pytest.approx(expected, rel=1e-5)
    assert step.history == ["first call"]
    assert list(model.state_dict()) == keys
    for parameter in model.parameters():
        assert sh.placement(parameter).spec == P("dp")
        for value in own.state.get(parameter, {}).values():
            if isinstance(value, Tensor) and value.ndim:
                assert sh.placement(value).spec == P("dp")
