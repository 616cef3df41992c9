"""Shapes that depend on values are never taken for constants, however a program gets at them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils import rnn

import calque

X = torch.arange(6.0)
FEWER = X.clamp(3) - 3


def _split(x: torch.Tensor, at: torch.Tensor) -> Any:
    return [torch.ones(part.shape[0]) for part in torch.tensor_split(x, at)]


def _split_by_name(x: torch.Tensor, at: torch.Tensor) -> Any:
    return x.tensor_split(tensor_indices_or_sections=at)[1].shape[0]


def _padded(x: torch.Tensor, lengths: torch.Tensor) -> Any:
    packed = rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    return rnn.pad_packed_sequence(packed)[0]


def _selected_into(x: torch.Tensor) -> Any:
    found = torch.empty(0)
    torch.masked_select(x, x > 2, out=found)
    return torch.ones(found.numel())


def _sorted_into(x: torch.Tensor) -> Any:
    out = torch.empty(0), torch.empty(0, dtype=torch.long)
    return torch.sort(x[x > 2], out=out)[0].shape


def _resized(x: torch.Tensor) -> Any:
    return x.clone().resize_(int(x[5]) - 2).shape


def _replaced(x: torch.Tensor) -> Any:
    y = x.clone()
    y.data = x[x > 2]
    return y.shape


def _coalesced(at: torch.Tensor) -> Any:
    return torch.sparse_coo_tensor(at[None], X[:3], (6,)).coalesce().values().numel()


_LENGTHS = torch.ones(4, 2, 1), torch.tensor([4, 2])
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "split": (_split, (X, torch.tensor([2, 4])), (X, torch.tensor([1, 5]))),
    "split by name": (_split_by_name, (X, torch.tensor([2, 4])), (X, torch.tensor([1, 5]))),
    "packed": (_padded, _LENGTHS, (_LENGTHS[0], torch.tensor([3, 3]))),
    "selected into": (_selected_into, (X,), (X - 1,)),
    "sorted into": (_sorted_into, (X,), (X - 1,)),
    "resized": (_resized, (X,), (X + 1,)),
    "replaced": (_replaced, (X,), (X - 1,)),
    "values": (lambda x: x.to_sparse().values().shape[0], (X,), (FEWER,)),
    "number of values": (lambda x: x.to_sparse()._nnz(), (X,), (FEWER,)),
    "indices": (lambda x: torch.ones(x.to_sparse().indices().shape[1]), (X,), (FEWER,)),
    "rows": (lambda x: x.view(2, 3).to_sparse_csr().values().shape[0], (X,), (FEWER,)),
    "coalesced": (_coalesced, (torch.tensor([0, 1, 2]),), (torch.tensor([0, 0, 2]),)),
}


def _recorded(program: Callable[..., Any], *args: Any) -> Any:
    return calque.record(program, *args).graph()


@pytest.mark.filterwarnings("ignore:(Sparse|An output with one or more elements)")
@pytest.mark.parametrize("graph_of", [calque.trace, _recorded])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_finds_the_shape_again_or_refuses(name: str, graph_of: Any) -> None:
    program, seen, unseen = PROGRAMS[name]
    for inputs in (seen, unseen):
        try:
            found = graph_of(program, *seen)(*inputs)
        except calque.TraceError:
            continue
        torch.testing.assert_close(found, program(*inputs))
