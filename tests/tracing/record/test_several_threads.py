"""Several threads record different programs at once, and none disturbs another."""

import threading
from typing import Any

import torch
from torch import Tensor, nn

import calque
from calque.tracing.record.call_patches import new_tensors_apart


def test_a_recording_begins_and_ends_while_another_runs() -> None:
    """Neither suspects the tensors that the other, or what came before it, has created."""
    x, found = torch.ones(2, 3), []

    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            model = nn.Linear(3, 3)  # created since the first recording began
            thread = threading.Thread(target=lambda: None)
            thread.start()
            record_elsewhere(model)
            return y + 1

    def record_elsewhere(model: nn.Module) -> None:
        def work() -> None:
            found.append(calque.record(model, torch.ones(2, 3)).graph()(x))

        begin.set()
        inner.append((model, work))
        assert done.wait(60)

    begin, done, inner = threading.Event(), threading.Event(), list[Any]()

    def other() -> None:
        assert begin.wait(60)
        try:
            inner[0][1]()
        finally:
            done.set()

    thread = threading.Thread(target=other)
    thread.start()
    outer = calque.record(Waits(), x)
    thread.join()
    assert len(found) == 1 and torch.equal(found[0], inner[0][0](x))
    assert outer.result is not None


def test_tensors_are_told_apart_in_nested_contexts() -> None:
    with new_tensors_apart() as outer:
        first = torch.ones(2)
        with new_tensors_apart() as inner:
            second = torch.ones(2)
            assert inner() is not None and outer() is not None
            assert {id(first), id(second)} <= {*(outer() or ())}
            assert id(second) in (inner() or ()) and id(first) not in (inner() or ())
        third = torch.ones(2)
        assert id(third) in (outer() or ())
