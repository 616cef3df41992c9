"""Batches are filled up only where an example does not depend on the others of its batch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from calque import federated as fed
from calque.federated import learning
from calque.federated.learning.mixing import made_up, mixes_examples


class MovingMean(nn.Module):
    """Keeps a mean of what it has seen."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x - self.mean


class Attention(nn.Module):
    """Over the first axis, or over the second."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(4, 2, batch_first=batch_first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, None].expand(-1, 2, -1)
        return self.layer(x, x, x)[0].mean(1)


def centred(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output - output.mean(0, keepdim=True), target, reduction="none")


MIXING: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "BatchNorm": (lambda: nn.BatchNorm1d(4), None),
    "running statistics": (MovingMean, None),
    "attention over the batch": (lambda: Attention(False), None),
    "a loss of the whole batch": (nn.Identity, centred),
}
APART: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: Attention(True),
    "LayerNorm": lambda: nn.LayerNorm(4),
    "Dropout": lambda: nn.Dropout(0.5),
}


def examples(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    return [{"x": x, "y": rng.integers(0, 3, count)}]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MIXING)
def test_batches_that_cannot_be_filled_up_are_refused(name: str) -> None:
    make, loss = MIXING[name]
    process = learning.fed_avg(nn.Sequential(make(), nn.Linear(4, 3)), loss, batch_size=3)
    state = process.initialize()
    with pytest.raises(fed.ClientError, match="client 0 has 5 examples, which are no whole batch"):
        process.next(state, examples(5))
    process.next(state, examples(6))


@pytest.mark.parametrize("name", APART)
def test_batches_of_examples_that_stand_alone_are_filled_up(name: str) -> None:
    module = nn.Sequential(APART[name](), nn.Linear(4, 3))
    process = learning.fed_avg(module, batch_size=3)
    _, metrics = process.next(process.initialize(), examples(5))
    assert int(metrics["examples"]) == 5


@pytest.mark.parametrize("name", [*MIXING, *APART])
def test_made_up_examples_tell_it_too(name: str) -> None:
    make, loss = MIXING.get(name) or (APART[name], None)
    model = learning.Model(nn.Sequential(make(), nn.Linear(4, 3)), loss)
    rows = made_up(fed.to_type("<x=float32[4],y=int32>"), 2)
    assert mixes_examples(model, model.parameters, model.buffers, rows, 3) == (name in MIXING)
