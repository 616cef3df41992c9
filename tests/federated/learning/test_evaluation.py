"""A model that each client fits first, against a plain loop of PyTorch."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

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
