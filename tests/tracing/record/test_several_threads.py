"""Several threads record different programs at once, and none disturbs another."""

import threading

import torch
from torch import Tensor, nn

import calque
from calque.tracing.record.call_patches import new_tensors_apart


def test_a_recording_begins_and_ends_while_another_runs() -> None:
    """Neither suspects the tensors that the other, or what came before it, has created."""
    x, found = torch.ones(2, 3), []

    def work(model: nn.Module) -> None:
        found.append((calque.record(model, x).graph()(x), model(x)))

    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            begin.set()
            assert done.wait(60)
            return y + 1

    begin, done = threading.Event(), threading.Event()

    def other() -> None:
        assert begin.wait(60)
        try:
            work(nn.Linear(3, 3))  # created since the first recording began
        finally:
            done.set()

    thread = threading.Thread(target=other)
    thread.start()
    outer = calque.record(Waits(), x)
    thread.join()
    assert torch.equal(outer.result, x * 2 + 1)
    assert len(found) == 1 and torch.equal(*found[0])


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
