"""What a signal's handler raises is no answer of a program."""

import functools
import signal

import pytest
import torch
from torch import nn

import calque
from calque.errors.handlers import is_of_handler


class Stop(Exception):
    """Raised by a handler."""


class Handling:
    """Handlers of the kinds that there are."""

    def __call__(self, number, frame):
        raise Stop

    def method(self, number, frame):
        raise Stop


def function(number, frame):
    raise Stop


@pytest.fixture(
    params=[function, Handling(), Handling().method, functools.partial(function)],
    ids=["function", "object", "method", "partial"],
)
def handled(request):
    before = signal.signal(signal.SIGUSR1, request.param)
    yield
    signal.signal(signal.SIGUSR1, before)


class Sends(nn.Module):
    """Is sent a signal while it computes the shape of a result."""

    def __init__(self, at):
        super().__init__()
        self.calls, self.at = 0, at

    def forward(self, x):
        self.calls += 1
        if x.sum() > 0:
            x = x + 1
        if self.calls == self.at:
            signal.raise_signal(signal.SIGUSR1)
        return x * 2


@pytest.mark.usefixtures("handled")
def test_exceptions_of_handlers_are_told_from_others():
    with pytest.raises(Stop) as caught:
        signal.raise_signal(signal.SIGUSR1)
    assert is_of_handler(caught.value)
    with pytest.raises(ZeroDivisionError) as other:
        1 // 0
    assert not is_of_handler(other.value)


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("at", [1, 2])
def test_a_path_that_a_handler_ends_is_no_path_of_the_program(at):
    with pytest.raises(Stop):
        calque.trace(Sends(at), torch.ones(2))


@pytest.mark.usefixtures("handled")
def test_no_other_tracer_is_tried():
    with pytest.raises(Stop):
        calque.trace(Sends(1), torch.ones(2), tracer="auto")
