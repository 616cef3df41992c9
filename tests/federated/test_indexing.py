"""In a local function of PyTorch an index may be a tensor, and what it gives is used as a view."""

from typing import Any

import numpy as np
import pytest
import torch

from calque import federated as fed
from calque.errors import TraceError

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


def written(t: Any, k: Any) -> Any:
    t[k] += 1
    t[-k - 1, 1:] = 7
    t[..., k] = t[k, 0]
    t[k, [0, 2]] = torch.tensor([1.0, 2.0])
    return t


def seen_through(t: Any, k: Any) -> Any:
    row, whole = t[k], t * 1
    row += 1
    part = row.view(3)[1:]
    t[:, 1] = 50
    part[1] *= 2
    return row, part, t, whole


def emptied(t: Any, k: Any) -> Any:
    row = t[k]
    t.zero_()
    return row


def counted(t: Any, k: Any) -> Any:
    bins = torch.zeros(4)
    for i in (0, 1, 5):
        bins[(k + i) % 4] += 1
    return bins


def gradient(t: Any, k: Any) -> Any:
    w = t.clone().requires_grad_()
    u = w * 1
    u[k] += w[0]
    ((u**2).sum() * w[0, k]).backward()
    return w.grad


READS = [
    lambda t, k: t[k],
    lambda t, k: t[-k],
    lambda t, k: t[:, k.to(torch.int8)],
    lambda t, k: t[k][k],
    lambda t, k: t[k, ::2],
    lambda t, k: t[None, ..., k],
    lambda t, k: t[[0, 1], k],
    lambda t, k: t[k, torch.tensor([0, 2])],
    lambda t, k: torch.tensor(TABLE)[k],
    lambda t, k: t[t.sum(1).argmax()],
]


@pytest.mark.parametrize("of", [*READS, written, seen_through, emptied, counted, gradient])
def test_an_index_that_is_a_tensor_is_what_it_is_in_pytorch(of: Any) -> None:
    function = fed.local("float32[4,3]", "int32")(of)
    for number in (0, 2):
        wanted = of(torch.tensor(TABLE), torch.tensor(number))
        found = function(TABLE, number)
        if not isinstance(wanted, tuple):
            wanted, found = (wanted,), (found,)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other.detach())


def test_each_client_selects_the_rows_of_its_keys() -> None:
    pick = fed.local("float32[4,3]", "int32")(lambda table, key: table[key])

    @fed.computation("{int32[2]}@CLIENTS", "float32[4,3]@SERVER")
    def selected(keys: Any, table: Any) -> Any:
        return fed.federated_select(keys, 4, table, pick)

    keys = np.array([[0, 1], [3, 2], [2, 2]])
    np.testing.assert_array_equal(selected(keys, TABLE).elements, TABLE[keys])


def test_writing_to_an_element_of_a_constant_is_an_error() -> None:
    kept = torch.tensor(TABLE)

    def raised(t: Any, k: Any) -> Any:
        row = kept[k]
        row += 1
        return row

    with pytest.raises(TraceError, match="a local function writes to a tensor from outside"):
        fed.local("float32[4,3]", "int32")(raised)(TABLE, 1)


def branching(t: Any, k: Any) -> Any:
    return t if t.sum() > 0 else -t


ASKING = [branching, lambda t, k: t * k.item(), lambda t, k: t[k : k + 1], lambda t, k: t[t > 1]]


@pytest.mark.parametrize("of", ASKING)
def test_what_asks_for_a_value_is_told_without_a_word_of_jit(of: Any) -> None:
    with pytest.raises(TraceError, match="in a local function") as caught:
        fed.local("float32[4,3]", "int32")(of)
    assert "calque.jit" not in str(caught.value)
