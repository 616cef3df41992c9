"""Looking at a program that sets modes sets none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import calque
from calque.view import overlays


def in_half(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        with torch.autocast("cpu", enabled=False):
            y = (x @ x).to(y.dtype) + y
        return y


def reads_in_half(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        return y + 1 if y.sum() > 0 else y


def modes() -> tuple[Any, ...]:
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return torch.is_autocast_enabled("cpu"), depth, torch.is_grad_enabled()


LOOKS: dict[str, Callable[[Any, Tensor], Any]] = {
    "show": lambda recording, x: calque.show(recording),
    "levels": lambda recording, x: calque.show(recording, levels=True),
    "flops": lambda recording, x: overlays.flops(recording),
    "times": lambda recording, x: overlays.times(recording, x, repeat=1),
    "max_errors": lambda recording, x: overlays.max_errors(recording, x),
    "diff": lambda recording, x: calque.diff(recording, recording, x),
}


@pytest.fixture(autouse=True)
def autocast_put_back() -> Any:
    yield
    torch.set_autocast_enabled("cpu", False)


@pytest.mark.parametrize("look", LOOKS)
def test_autocast_is_as_it_was(look: str) -> None:
    x, before = torch.ones(2, 2), modes()
    LOOKS[look](calque.record(in_half, x), x)
    assert modes() == before


@pytest.mark.parametrize("look", ["times", "diff"])
def test_autocast_is_as_it_was_where_a_guard_raises(look: str) -> None:
    x, before = torch.ones(2, 2), modes()
    recording = calque.record(reads_in_half, x)
    with pytest.raises(calque.TraceError, match="__bool__ gave True"):
        LOOKS[look](recording, x * torch.tensor([1.0, -1.0]))
    assert modes() == before


def test_operators_are_those_within_the_block() -> None:
    nodes = calque.show(calque.record(in_half, torch.ones(2, 2)), levels=True).graph.node
    assert nodes["matmul"].levels["aten"] == (*["aten._to_copy.default"] * 2, "aten.mm.default")
    assert nodes["matmul_1"].levels["aten"] == ("aten.mm.default",)
