"""A client whose examples PyTorch refuses is told with what PyTorch's error of them."""

from typing import Any

import jax
import numpy as np
import pytest
from torch import nn
from torch.utils.data import DataLoader

from calque.errors import ClientError
from calque.federated import learning

GOOD = {"x": np.zeros((2, 2), np.int32), "y": np.array([0, 2])}
LABEL = {"x": np.zeros((1, 2), np.int32), "y": np.array([7])}
INDEX = {"x": np.full((1, 2), 9), "y": np.array([0])}


def model() -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(4, 3))


def run(module: nn.Module | None = None, **options: Any) -> Any:
    process = learning.fed_avg(model() if module is None else module)
    return learning.run(process, [GOOD], **{"rounds": 1, "progress": False, **options})


@pytest.mark.parametrize(("bad", "said"), [(LABEL, "Target 7 is out of"), (INDEX, "index out of")])
@pytest.mark.parametrize("evaluated", [False, True])
def test_the_label_or_index_out_of_range_is_told(bad: Any, said: str, evaluated: bool) -> None:
    process = learning.fed_avg(model())
    state = process.initialize()
    run = learning.Evaluation(model()) if evaluated else process.next
    with pytest.raises(ClientError, match=f"client 1 passes NaN(.|\n)*PyTorch's error.*{said}"):
        run(state, [GOOD, bad])


def test_a_client_whose_examples_pytorch_takes_is_told_as_before() -> None:
    process = learning.fed_avg(nn.Linear(2, 3))
    bad = {"x": np.full((1, 2), np.nan, np.float32), "y": np.array([0])}
    with pytest.raises(ClientError, match="client 5 passes NaN") as caught:
        process.next(process.initialize(), [bad], clients=[5])
    assert "PyTorch's error" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: learning.fed_avg(model(), client_optimizer=-0.1),
            "learning rate must be at least 0",
        ),
        (
            lambda: learning.mime_lite(model(), learning_rate=-0.1),
            "learning rate must be at least 0",
        ),
        (lambda: learning.mime_lite(model(), momentum=1.0), "momentum must be at least 0"),
        (lambda: learning.fed_prox(model(), proximal=-1.0), "proximal must be at least 0"),
        (lambda: learning.scaffold(model(), clients=0), "an integer of at least 1"),
        (
            lambda: learning.scaffold(model(), clients=2, client_learning_rate=0.0),
            "learning_rate must be positive",
        ),
        (lambda: run(model().requires_grad_(False)), "there is nothing to train"),
        (lambda: learning.fed_avg(model()).initialize(-1), "seed must be a non-negative integer"),
        (lambda: learning.fed_avg(model()).initialize(0.5), "seed must be a non-negative integer"),
    ],
)
def test_numbers_that_algorithms_cannot_use_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_a_class_of_losses_is_no_loss() -> None:
    with pytest.raises(TypeError, match="an instance of a loss class"):
        learning.fed_avg(model(), nn.CrossEntropyLoss)  # type: ignore[arg-type]


def test_dropouts_that_leave_no_examples_are_told() -> None:
    process = learning.fed_avg(model(), failing=0.9)
    nothing = {"x": np.zeros((0, 2), np.int32), "y": np.zeros(0, np.int64)}

    def rounds() -> None:
        for seed in range(9):
            process.next(process.initialize(seed), [GOOD, nothing, nothing])

    with pytest.raises(
        ValueError, match="of the clients that have not dropped out, no client .*: [12]"
    ):
        rounds()


def test_seeds_of_more_than_32_bits_are_not_alike() -> None:
    process = learning.fed_avg(model())
    keys = [tuple(process.initialize(seed).key.tolist()) for seed in (0, 2**32, 2**40, 2**63 - 1)]
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: run(rounds=-1), "rounds must be a non-negative integer"),
        (lambda: run(every=0), "every an integer of at least 1"),
        (lambda: run(participants=0.5), "count must be between 1"),
        (lambda: run(evaluate=lambda state: {"a": np.ones(2)}), "dict of numbers"),
        (lambda: learning.load(model(), model().state_dict()), "a state of a process, not Ord"),  # type: ignore[arg-type]
        (lambda: learning.stage([DataLoader([GOOD])]), "Pass the dataset"),  # type: ignore[arg-type]
    ],
)
def test_mistakes_are_told_at_the_users_line(wrong: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError, ClientError), match=said) as caught:
        wrong()
    assert {entry.path.name for entry in caught.traceback} == {"test_refusals.py"}


@pytest.mark.parametrize("loss", [lambda output, y: None, lambda output, y: 1.0])
def test_a_loss_that_is_no_tensor_is_refused(loss: Any) -> None:
    process = learning.fed_avg(model(), loss)
    with pytest.raises(TypeError, match="the loss of 2 examples is a (NoneType|float)"):
        process.next(process.initialize(), [GOOD])


def test_a_batch_norm_that_stays_in_evaluation_mixes_no_examples() -> None:
    class Frozen(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> Any:
            return super().train(False)

    module = nn.Sequential(nn.Linear(2, 3), Frozen(3))
    data = [{"x": np.ones((n, 2), np.float32), "y": np.arange(n) % 3} for n in (4, 7)]
    for norm, said in (
        (module, None),
        (nn.Sequential(nn.BatchNorm1d(2)), "not a multiple of the batch size"),
    ):
        process = learning.fed_avg(norm, batch_size=4)
        if said is None:
            process.next(process.initialize(), data)
        else:
            with pytest.raises(ClientError, match=said):
                process.next(process.initialize(), data)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("odd", [np.array(["a", "b"]), np.array([b"a", b"b"]), np.array([{}, {}])])
def test_examples_without_numbers_are_told_with_their_client(odd: np.ndarray, first: bool) -> None:
    bad = {**GOOD, "y": odd}
    with pytest.raises(ClientError, match=f"client {0 if first else 1}.* dtype"):
        learning.stage([bad, GOOD] if first else [GOOD, bad])


def test_examples_that_are_none_are_told() -> None:
    with pytest.raises(ClientError, match="client 0 are no arrays"):
        learning.stage([{**GOOD, "x": None}])


def test_clients_that_jax_traces_are_refused() -> None:
    staged = learning.stage([GOOD, GOOD])
    process = learning.fed_avg(model())
    jitted = jax.jit(process.next)
    with pytest.raises(TypeError, match="client numbers of a round are traced"):
        jitted(process.initialize(), staged, np.array([3, 4]))


def test_a_traced_round_whose_clients_drop_out_is_refused() -> None:
    staged = learning.stage([GOOD, GOOD])
    process = learning.fed_avg(model(), failing=0.5)
    with pytest.raises(TypeError, match="leave failing out"):
        jax.jit(lambda state: process.next(state, staged))(process.initialize())
