"""Writes through views whose elements overlap have no operators without writes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import calque
from calque.tracing import lower

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "as_strided": lambda y: y.as_strided((3, 2), (1, 1)),
    "unfold": lambda y: y.unfold(0, 3, 2),
    "expand": lambda y: y.expand(3, 8),
}
WRITES: dict[str, Callable[[Tensor], object]] = {
    "a row": lambda view: view[0].mul_(5),
    "an item": lambda view: view.__setitem__((1, 1), 7.0),
    "of a list": lambda view: torch._foreach_mul_([view[1]], 5.0),
    "a copy": lambda view: torch.add(view[1], 1, out=view[1]),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_write_through_such_a_view_is_refused_at_its_line(view: str, write: str) -> None:
    def program(x: Tensor) -> Tensor:
        y = x.clone()
        WRITES[write](VIEWS[view](y))
        return y

    x = torch.randn(8)
    recording = calque.record(program, x)
    assert torch.equal(recording.graph()(x), program(x))
    with pytest.raises(calque.TraceError, match="elements overlap in memory") as raised:
        recording.graph("aten")
    assert "test_lower_overlaps.py" in "".join(raised.value.__notes__)
    kept = lower(recording.graph(), functional=False)
    assert torch.equal(kept(x), program(x))


def copies(x: Tensor) -> Tensor:
    y = x.expand(3, 8).contiguous()
    y[0] = 1
    return y


def reads_and_then_writes(x: Tensor) -> Tensor:
    y = x.clone()
    total = y.unfold(0, 3, 2).sum()
    y.add_(total)
    return y


def writes_beside(x: Tensor) -> Tensor:
    y = torch.zeros(3, 8)
    y.copy_(x.expand(3, 8))
    return y.unfold(1, 2, 2).mul_(3)


@pytest.mark.parametrize("program", [copies, reads_and_then_writes, writes_beside])
def test_other_writes_beside_such_views_are_lowered(program: Callable[[Tensor], Tensor]) -> None:
    graph = lower(calque.trace(program, torch.randn(8)))
    x = torch.randn(8)
    torch.testing.assert_close(graph(x), program(x))
