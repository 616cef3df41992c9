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
from calque.federated.learning.mixing import in_training, made_up, mixes_examples


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
    with pytest.raises(fed.ClientError, match="client 0 has 5 examples, which is not a multiple"):
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
    own = (model.parameters, model.buffers)
    assert mixes_examples(in_training(model), *own, rows, rows, 3) == (name in MIXING)


class Centred(nn.Module):
    """Words of a batch, without their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.words(x)
        return found - found.mean(0)


class Counting(nn.Module):
    """Counts examples."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += len(x)
        return self.layer(x)


def test_examples_without_floats_are_tried_with_those_of_others() -> None:
    data = [{"x": np.array([k]), "y": np.array([0])} for k in (1, 1, 2)]
    data.append({"x": np.arange(4), "y": np.arange(4) % 3})
    process = learning.fed_avg(Centred(), batch_size=3)
    with pytest.raises(fed.ClientError, match="client 0 has 1 examples, which is not a multiple"):
        process.next(process.initialize(), data)


@pytest.mark.parametrize("case", ["a buffer", "a loss"])
def test_what_depends_on_the_size_of_a_batch_is_refused(case: str) -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target, reduction="none") / len(target)

    of_buffer = case == "a buffer"
    process = learning.fed_avg(
        Counting() if of_buffer else nn.Linear(4, 3), None if of_buffer else loss, batch_size=4
    )
    state = process.initialize()
    with pytest.raises(fed.ClientError, match="client 0 has 7 examples.*on how many there are"):
        process.next(state, examples(7))
    process.next(state, examples(8))


@pytest.mark.parametrize("name", ["BatchNorm", "a loss"])
def test_clients_that_would_be_filled_up_are_not_evaluated(name: str) -> None:
    norm = nn.BatchNorm1d(4, track_running_stats=False) if name == "BatchNorm" else nn.Identity()
    module, loss = nn.Sequential(norm, nn.Linear(4, 3)), None if name == "BatchNorm" else centred
    state = learning.fed_avg(module, loss).initialize()
    evaluation = learning.Evaluation(module, loss)
    with pytest.raises(fed.ClientError, match="client 1 has 5 examples, others have up to 6"):
        evaluation(state, examples(6) + examples(5))
    fitted = learning.PersonalizedEvaluation(module, loss, batch_size=6)
    with pytest.raises(fed.ClientError, match="client 1 has 5 examples, others have up to 6"):
        fitted(state, examples(6) * 2, examples(6) + examples(5))

    by_parts = learning.Evaluation(module, loss, batch_size=4)
    with pytest.raises(fed.ClientError, match="client 0 has 6 .* and 4 are evaluated at once"):
        by_parts(state, examples(6))

    found = evaluation(state, examples(6) * 2)
    x, y = torch.tensor(examples(6)[0]["x"]), torch.tensor(examples(6)[0]["y"])
    output = module.eval()(x)
    wanted = F.cross_entropy(output, y) if loss is None else loss(output, y).mean()
    np.testing.assert_allclose(found["loss"], wanted.item(), rtol=1e-5)


@pytest.mark.parametrize("make", [learning.fed_sgd, learning.mime_lite])
def test_where_nothing_is_left_out_nobody_is_told_to_leave_it_out(make: Any) -> None:
    process = make(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), batch_size=3)
    with pytest.raises(fed.ClientError, match="\nPass a batch_size that divides all"):
        process.next(process.initialize(), examples(5))


class OfOneSize(nn.Module):
    """Takes batches of three examples only, as with states of a fixed size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.view(3, 4)) + torch.zeros(3, 1)


def test_a_model_of_one_size_of_batches_gets_no_others() -> None:
    process = learning.fed_avg(OfOneSize(), batch_size=3)
    state, metrics = process.next(process.initialize(), examples(5))
    assert int(metrics["examples"]) == 5
    evaluation = learning.Evaluation(OfOneSize(), batch_size=3)
    assert int(evaluation(state, examples(5) + examples(4))["examples"]) == 9


def test_a_batch_is_no_larger_than_the_data_of_any_client() -> None:
    process = learning.fed_avg(nn.Linear(4, 3), batch_size=1_000_000)
    text = process.lower(process.initialize(), [*examples(5), *examples(3)]).as_text()
    assert "1000000" not in text


def test_clients_that_are_one_batch_each_may_mix_their_examples() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    made = [learning.fed_avg(module, batch_size=size) for size in (5, 32)]
    states = [one.next(one.initialize(), examples(5))[0] for one in made]
    for name, array in states[0].parameters.items():
        np.testing.assert_array_equal(array, states[1].parameters[name])
    with pytest.raises(
        fed.ClientError, match="client 1 has 3 examples.* multiple of the batch size 32"
    ):
        made[1].next(made[1].initialize(), [*examples(5), *examples(3)])
