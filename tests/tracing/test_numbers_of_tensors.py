"""Tensors that PyTorch takes for numbers, masks of bytes, limits of dtypes that are not known."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import rnn

import calque

X = torch.arange(16.0).view(4, 4)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: torch.linspace(0.0, 1.0, n) + x.sum(),
        lambda x, n: x.unsqueeze(n),
        lambda x, n: x.chunk(n)[1],
        lambda x, n: F.one_hot(torch.arange(2), n),
        lambda x, n: torch.eye(n),
        lambda x, n: x.roll(n, 0).unfold(0, n, 1),
        lambda x, n: torch.topk(x, n).values,
    ],
)
def test_a_number_may_be_a_tensor_of_integers(program: Callable[..., Tensor]) -> None:
    n = torch.tensor(2)
    assert torch.equal(calque.trace(program, X, n)(X, n), program(X, n))


def test_a_number_of_parts_comes_from_the_argument() -> None:
    graph = calque.trace(lambda x, n: torch.linspace(0.0, 1.0, n), X, torch.tensor(3))
    assert len(graph(X, torch.tensor(7))) == 7


def test_a_tensor_of_floats_is_no_integer() -> None:
    with pytest.raises(TypeError, match="must be int"):
        calque.trace(lambda x, n: x.unsqueeze(n), X, torch.tensor(1.0))


@pytest.mark.filterwarnings("ignore:(indexing with dtype|where received a uint8)")
@pytest.mark.parametrize(
    "program", [lambda x, m: x[m], lambda x, m: x[:, m[0]], lambda x, m: torch.where(m, x, 0.0)]
)
def test_masks_of_bytes_are_masks(program: Callable[..., Tensor]) -> None:
    mask = (X % 2 == 0).to(torch.uint8)
    graph = calque.trace(program, X, mask)
    for m in (mask, 1 - mask):
        assert torch.equal(graph(X, m), program(X, m))


@pytest.mark.parametrize(
    "program",
    [
        lambda x, m: x.masked_fill(m, torch.finfo(x.dtype).min),
        lambda x, m: torch.full((3,), torch.finfo(x[m].dtype).eps),
        lambda x, m: x if isinstance(torch.finfo(torch.float32), torch.finfo) else m,
    ],
)
def test_limits_of_an_unknown_dtype_are_asked_when_the_graph_runs(
    program: Callable[..., Tensor],
) -> None:
    mask = X > 3
    for graph in (calque.symbolic_trace(program), calque.trace(program, X, mask)):
        assert torch.equal(graph(X, mask), program(X, mask))
    known = calque.symbolic_trace(program)
    assert torch.equal(known(X.double(), mask), program(X.double(), mask))
    assert type(torch.finfo) is type


def test_a_layer_may_be_given_none_and_return_it() -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.Identity()

        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            found = self.norm(y)
            return x if found is None else x + found

    assert torch.equal(calque.trace(Optional(), X)(X), X)


class Packed(nn.Module):
    def __init__(self, kind: Any, is_sorted: bool) -> None:
        super().__init__()
        self.first = kind(4, 3, batch_first=True, bidirectional=True)
        self.second = nn.GRU(6, 2)
        self.is_sorted = is_sorted

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        packed = rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=self.is_sorted)
        inner, last = self.first(packed)
        found, end = self.second(inner)
        return rnn.pad_packed_sequence(found, total_length=5), last, end, inner.data


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_packed_sequence_has_the_order_of_the_one_it_comes_from(
    kind: Any, is_sorted: bool
) -> None:
    torch.manual_seed(0)
    model, x = Packed(kind, is_sorted), torch.randn(3, 5, 4)
    graph = calque.trace(model, x, torch.tensor([5, 4, 2]))
    for lengths in ([5, 4, 2], [5, 3, 3] if is_sorted else [1, 5, 3]):
        expected = model(x, torch.tensor(lengths))
        torch.testing.assert_close(graph(x, torch.tensor(lengths)), expected, rtol=0, atol=0)
    assert not calque.diff(graph, model, x, torch.tensor([5, 4, 2]))
