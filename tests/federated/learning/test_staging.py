"""The examples of clients: arrays, and datasets of PyTorch."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from calque import federated as fed
from calque.errors import ClientError
from calque.federated import learning


class Words(Dataset[Any]):
    """Examples as dicts, with several inputs."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return {"x": {"a": np.full(2, index, np.float32), "b": index}, "y": index % 2}


class Growing(Dataset[Any]):
    """Examples of different shapes."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return np.zeros(index), 0


class Endless(IterableDataset[Any]):
    """No length."""

    def __iter__(self) -> Any:
        yield 0, 0


def test_a_dataset_is_staged_as_its_examples() -> None:
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    whole = TensorDataset(x, y)
    found = learning.stage([whole, Subset(whole, [1, 4])])
    wanted = learning.stage(
        [{"x": x.numpy(), "y": y.numpy()}, {"x": x.numpy()[[1, 4]], "y": y.numpy()[[1, 4]]}]
    )
    assert found.length.tolist() == [6, 2]
    for name in ("x", "y"):
        np.testing.assert_array_equal(found.elements[name], wanted.elements[name])


def test_examples_of_a_dataset_may_be_dicts() -> None:
    found = learning.stage([Words()])
    assert found.elements["x"]["a"].shape == (1, 3, 2)
    assert found.elements["x"]["b"].tolist() == [[0, 1, 2]]
    assert found.elements["y"].tolist() == [[0, 1, 0]]


class OnDevice(Dataset[Any]):
    """Examples on the device."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.x = torch.arange(6.0).reshape(3, 2).to("jax", dtype)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.x[index], index


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_examples_of_a_dataset_may_be_on_the_device(dtype: torch.dtype) -> None:
    found = learning.stage([OnDevice(dtype)])
    assert str(found.elements["x"].dtype) == str(dtype).removeprefix("torch.")
    np.testing.assert_array_equal(found.elements["x"][0], np.arange(6).reshape(3, 2))


def test_a_dataset_without_examples_is_like_those_of_others() -> None:
    whole = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    found = learning.stage([Subset(whole, []), Subset(whole, [1, 4])])
    assert found.length.tolist() == [0, 2]
    np.testing.assert_array_equal(found.elements["x"][1], [[2, 3], [8, 9]])
    with pytest.raises(ClientError, match="no client has examples"):
        learning.stage([Subset(whole, [])])


@pytest.mark.parametrize(
    ("dataset", "message"), [(Growing(), "client 1 differ"), (Endless(), "client 1 has no length")]
)
def test_a_dataset_that_is_no_table_is_refused(dataset: Any, message: str) -> None:
    with pytest.raises(fed.ClientError, match=message):
        learning.stage([Words(), dataset])


def test_fields_that_nothing_uses_are_refused() -> None:
    data = [{"x": np.eye(2, dtype=np.float32), "y": np.array([0, 1]), "weight": np.ones(2)}]
    process = learning.fed_avg(torch.nn.Linear(2, 2))
    with pytest.raises(ClientError, match="unused fields: weight"):
        process.next(process.initialize(), data)
