"""A call that returned its argument when it was recorded, and returns another tensor later."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calque


def _rows() -> Tensor:
    return torch.arange(12.0).view(3, 4)


def _columns() -> Tensor:
    return torch.arange(12.0).view(4, 3).t()


def _wide() -> Tensor:
    return _rows().double()


def _written(x: Tensor) -> Any:
    y = x.contiguous()
    x.add_(1)
    return y, x


def _copy_written(x: Tensor) -> Any:
    y = x.float()
    y.view(-1).mul_(2)
    return x


def _view_written(x: Tensor) -> Any:
    first = x[0]
    y = nn.Flatten(0, 0)(x.contiguous())
    first.add_(1)
    return y


def _twice(x: Tensor) -> Any:
    return x.contiguous(), x


def _compared(x: Tensor) -> Any:
    y = x.contiguous()
    return y + 1 if y is x else y - 1


WRITES: list[tuple[Callable[..., Any], Callable[[], Tensor]]] = [
    (_written, _columns),
    (_copy_written, _wide),
    (_view_written, _columns),
    (_twice, _columns),
    (_compared, _columns),
]


@pytest.mark.parametrize("level", ["function", "module"])
@pytest.mark.parametrize(("program", "other"), WRITES)
def test_it_has_to_return_it_again_where_that_matters(
    program: Callable[..., Any], other: Callable[[], Tensor], level: Any
) -> None:
    graph = calque.record(program, _rows()).graph(level)
    x, y = _rows(), _rows()
    torch.testing.assert_close(graph(x), program(y), rtol=0, atol=0)
    assert torch.equal(x, y)
    with pytest.raises(calque.TraceError, match=r"test_itself\.py.* returned the tensor that it"):
        graph(other())


def _written_before(x: Tensor) -> Any:
    y = x * 2
    y.add_(1)
    return nn.functional.dropout(x, 0.5, False).contiguous() + y.float()


@pytest.mark.parametrize("other", [_columns, _wide])
def test_elsewhere_it_need_not(other: Callable[[], Tensor]) -> None:
    graph = calque.record(_written_before, _rows()).graph()
    assert torch.equal(graph(other()), _written_before(other()))


def test_an_unused_part_of_a_result_is_no_obstacle() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        z, _ = torch.broadcast_tensors(x, y)
        z.add_(1)
        return x

    x, y = _rows(), _rows()
    graph = calque.record(program, _rows(), _rows()).graph()
    assert torch.equal(graph(x, y), program(_rows(), y)) and torch.equal(x, _rows() + 1)
