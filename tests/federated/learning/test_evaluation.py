"""A model that each client fits first, against a plain loop of PyTorch."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from calque.errors import ClientError
from calque.federated import learning


def make_data(sizes: tuple[int, ...], seed: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(0, 3, n)} for n in sizes
    ]


@pytest.mark.parametrize("chunk", [1, 2])
def test_each_client_fits_the_model_and_is_evaluated_on_its_own(chunk: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.0), nn.Linear(5, 3))
    own, test = make_data((5, 3, 4), 0), make_data((2, 6, 1), 1)
    state = learning.fed_avg(model).initialize()
    fitted = learning.PersonalizedEvaluation(
        model,
        client_optimizer=lambda p: torch.optim.SGD(p, lr=0.2),
        batch_size=2,
        epochs=3,
        chunk=chunk,
    )
    found = fitted(state, own, test)

    total, right = 0.0, 0
    for mine, theirs in zip(own, test, strict=True):
        one = copy.deepcopy(model)
        optimizer = torch.optim.SGD(one.parameters(), lr=0.2)
        x, y = torch.tensor(mine["x"]), torch.tensor(mine["y"])
        for _ in range(3):
            for first in range(0, len(y), 2):
                optimizer.zero_grad()
                F.cross_entropy(one(x[first : first + 2]), y[first : first + 2]).backward()
                optimizer.step()
        one.eval()
        output, target = one(torch.tensor(theirs["x"])), torch.tensor(theirs["y"])
        total += F.cross_entropy(output, target, reduction="sum").item()
        right += int((output.argmax(1) == target).sum())
    assert int(found["examples"]) == 9
    np.testing.assert_allclose(found["loss"], total / 9, rtol=1e-5)
    np.testing.assert_allclose(found["accuracy"], right / 9, rtol=1e-6)


def test_a_client_without_examples_of_its_own_takes_the_servers_model() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    test = make_data((5, 2), 1)
    state = learning.fed_avg(model).initialize()
    plain = learning.Evaluation(model)(state, test)
    found = learning.PersonalizedEvaluation(model)(state, make_data((0, 0), 0), test)
    np.testing.assert_allclose(found["loss"], plain["loss"], rtol=1e-6)


def test_clients_of_both_data_are_the_same() -> None:
    model = nn.Linear(4, 3)
    state = learning.fed_avg(model).initialize()
    fitted = learning.PersonalizedEvaluation(model)
    with pytest.raises(TypeError, match="of 2 and 3 clients"):
        fitted(state, make_data((1, 2), 0), make_data((1, 2, 3), 0))


class Scores(nn.Module):
    """Scores that are what is given, in a dict if asked for."""

    def __init__(self, *, named: bool = False) -> None:
        super().__init__()
        self.named = named

    def forward(self, x: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        return {"scores": x} if self.named else x


def accuracy(shape: tuple[int, ...], y: np.ndarray, loss: Any, *, named: bool = False) -> Any:
    """What is found of two clients with random scores of a shape, and the scores."""
    x = np.random.default_rng(3).normal(size=(len(y), *shape)).astype(np.float32)
    data = [{"x": x[:2], "y": y[:2]}, {"x": x[2:], "y": y[2:]}]
    module = Scores(named=named)
    return learning.Evaluation(module, loss)(learning.fed_avg(module).initialize(), data), x


def zero_loss(output: Any, y: torch.Tensor) -> torch.Tensor:
    return (y * 0.0).flatten(1).sum(1) if y.ndim > 1 else y * 0.0


@pytest.mark.parametrize(("shape", "axis"), [((5, 4), 1), ((4, 5), 2), ((5, 4, 4), 1)])
def test_classes_are_on_the_axis_that_the_target_lacks(shape: tuple[int, ...], axis: int) -> None:
    places = shape[: axis - 1] + shape[axis:]
    y = np.random.default_rng(4).integers(0, 5, (6, *places))
    found, x = accuracy(shape, y, zero_loss)
    np.testing.assert_allclose(found["accuracy"], (x.argmax(axis) == y).mean(), rtol=1e-6)


@pytest.mark.parametrize("shape", [(4, 4), (1, 4), (5, 2)])
def test_there_is_no_accuracy_where_it_is_not_clear_what_are_classes(shape: Any) -> None:
    found, _ = accuracy(shape, np.ones((6, 4), np.int64), zero_loss)
    assert "accuracy" not in found


def test_one_score_for_each_example_is_none_for_classes() -> None:
    found, _ = accuracy((1,), np.array([0, 1, 0, 0, 1, 0]), zero_loss)
    assert "accuracy" not in found


def test_there_is_no_accuracy_of_outputs_that_are_no_tensors() -> None:
    found, _ = accuracy((3,), np.array([0, 1, 0, 0, 1, 2]), zero_loss, named=True)
    assert set(found) == {"loss", "examples"}


def test_negative_targets_count_for_nothing() -> None:
    found, x = accuracy((3,), y := np.array([0, -100, 1, 2, -100, 1]), None)
    np.testing.assert_allclose(found["accuracy"], (x.argmax(1) == y)[y >= 0].mean(), rtol=1e-6)
    padded = np.array([[0, 1, -100], [2, -100, -100], [1, 1, 1], [-100] * 3])
    found, x = accuracy((5, 3), padded, zero_loss)
    hits = (x.argmax(1) == padded) & (padded >= 0)
    rows = hits[:3].sum(1) / (padded[:3] >= 0).sum(1)
    np.testing.assert_allclose(found["accuracy"], rows.mean(), rtol=1e-6)


def test_clients_fit_no_batches_that_are_filled_up_where_examples_depend_on_each_other() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    state = learning.fed_avg(model).initialize()
    own, test = make_data((4, 6), 0), make_data((2, 3), 1)
    fitted = learning.PersonalizedEvaluation(model, batch_size=4)
    with pytest.raises(
        ClientError, match="client 1 has 6 examples, which is not a multiple of the batch size"
    ):
        fitted(state, own, test)
    dropped = learning.PersonalizedEvaluation(model, batch_size=4, drop_remainder=True)
    assert np.isfinite(dropped(state, own, test)["loss"])


@pytest.mark.parametrize("chunk", [1, 3])
def test_metrics_do_not_depend_on_how_many_examples_are_evaluated_at_once(chunk: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    data = make_data((9, 0, 4, 1), 0)
    state = learning.fed_avg(model).initialize()
    whole = learning.Evaluation(model)(state, data)
    for size in (1, 4, 5):
        found = learning.Evaluation(model, batch_size=size, chunk=chunk)(state, data)
        assert found.keys() == whole.keys() and int(found["examples"]) == 14
        for name in whole:
            np.testing.assert_allclose(found[name], whole[name], rtol=1e-6)
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1, not 0"):
        learning.Evaluation(model, batch_size=0)


def test_each_batch_of_an_evaluation_has_its_own_randomness() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(x.shape)

    model = nn.Sequential(nn.Linear(4, 3), Noisy())
    data = [{"x": np.zeros((2, 4), np.float32), "y": np.zeros((2, 3), np.float32)}]
    state = learning.fed_avg(model, lambda output, y: output[:, 0]).initialize()
    once, twice = (
        float(learning.Evaluation(model, lambda o, y: o[:, 0], batch_size=1)(state, one)["loss"])
        for one in ([{name: part[:1] for name, part in data[0].items()}], data)
    )
    assert abs(once - twice) > 1e-6
