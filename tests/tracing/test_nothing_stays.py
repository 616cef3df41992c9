"""Tracing and lowering leave every name of PyTorch as it was, also when threads do both at once."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # wraps torch.manual_seed when it is imported
from torch import Tensor, nn

import calque
from calque.tracing import lower
from calque.tracing.core import patching

PLACES = (
    nn.Module,
    nn.Sequential,
    Tensor,
    torch.autograd.Function,
    torch.amp.autocast,
    torch.inference_mode,
    torch,
    torch.nn.functional,
    torch.fx._symbolic_trace,
)


def names() -> list[dict[str, Any]]:
    return [dict(vars(place)) for place in PLACES]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.layers(x) + 1


class Fails(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)[: int(x.sum())]


def fails() -> None:
    try:
        calque.trace(Fails(), torch.ones(2, 3))
    except calque.TraceError:
        return
    raise AssertionError("int() of a value was traced")


def test_every_name_is_what_it_was() -> None:
    x = torch.ones(2, 3)
    before = names()
    lower(calque.trace(Model(), x))
    calque.symbolic_trace(Model())
    fails()
    for place, was, now in zip(PLACES, before, names(), strict=True):
        assert all(now[name] is was[name] for name in was), place


def test_threads_trace_lower_and_run_at_once() -> None:
    before = names()
    x = torch.randn(2, 3)
    errors: list[BaseException] = []

    def repeated(work: Callable[[Model], Any]) -> Callable[[], None]:
        def run() -> None:
            try:
                for _ in range(2):
                    model = Model()
                    torch.testing.assert_close(work(model)(x), model(x))
            except BaseException as error:
                errors.append(error)

        return run

    work = [
        lambda model: calque.trace(model, x),
        lambda model: lower(calque.trace(model, x)),
        lambda model: lower(calque.symbolic_trace(model), x),
        lambda model: model,
    ]
    threads = [threading.Thread(target=repeated(w)) for w in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert patching._installed == {}
    for was, now in zip(before, names(), strict=True):
        assert all(now[name] is was[name] for name in was)


def test_an_interrupted_trace_changes_back_what_the_program_changed() -> None:
    class Interrupted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = 0
            self.stops = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = x
            if self.stops:
                raise KeyboardInterrupt
            return x + 1

    module = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        calque.trace(module, torch.ones(2))
    assert module.last == 0
    module.stops = False
    assert calque.trace(module, torch.ones(2))(torch.ones(2)).tolist() == [2, 2]
