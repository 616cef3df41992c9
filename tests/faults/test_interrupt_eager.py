"""An interrupt at any moment of an eager program ends what runs, and nothing else.

Ctrl-C is a signal whose handler raises, as some timeouts are; other timeouts have a thread set an
exception. Neither may end the process, be lost, or leave a tensor half written.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import calque
from tests.faults.interrupting import BySignal, ByThread, in_process, interrupt

pytestmark = pytest.mark.conformance  # minutes of interrupts: `make faults`

SENDERS = {"signal": BySignal, "thread": ByThread}
TENSORS = 12


class Training:
    """What is interrupted, and what must hold afterwards."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
        self.host = copy.deepcopy(self.model)
        self.model.to("jax")
        self.state = self.model.state_dict()
        self.start = {name: value.clone() for name, value in self.state.items()}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.x = torch.linspace(-1, 1, 32, device="jax").view(4, 8)
        self.written = [torch.zeros(5, device="jax") for _ in range(TENSORS)]
        self.expected = self.learn()

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def learn(self) -> list[float]:
        """The losses of two steps from the start."""
        with torch.no_grad():
            for name, value in self.state.items():
                value.copy_(self.start[name])
        return [self.step().item() for _ in range(2)]

    def forward(self) -> None:
        y = self.x
        for _ in range(8):
            y = self.model[0](y).t().t()

    def backward_here(self) -> None:
        with torch.autograd.set_multithreading_enabled(False):
            self.model(self.x).sum().backward()

    def jit(self) -> None:
        calque.jit(lambda x: self.model[0](x).sum())(self.x)

    def trace(self) -> None:
        calque.trace(self.host, torch.ones(4, 8))

    def lower(self) -> None:
        calque.lower(calque.trace(self.host, torch.ones(4, 8)))

    def write(self) -> None:
        for one in self.written:
            one.add_(1)

    def check(self) -> None:
        """From the same start it learns what it would have learnt."""
        assert self.learn() == self.expected

    def check_written(self) -> None:
        """Each tensor is written as a whole, in the order of the program."""
        values = torch.stack(self.written).tolist()
        assert all(len({*value}) == 1 for value in values), values
        numbers = [value[0] for value in values]
        assert numbers == sorted(numbers, reverse=True), numbers
        assert numbers[0] - numbers[-1] <= 1, numbers
        for one in self.written:
            one.zero_()


def interrupt_all(sender: str, times: int, seed: int = 0) -> None:
    """Interrupt each kind of program so many times, and tracing twice as often."""
    torch.set_num_threads(1)
    training = Training()
    learns, is_whole = training.check, training.check_written
    programs: dict[str, tuple[Callable[[], object], Callable[[], None], float]] = {
        "step": (training.step, learns, 0.004),
        "forward": (training.forward, learns, 0.002),
        "backward": (training.backward_here, learns, 0.004),
        "write": (training.write, is_whole, 0.002),
        "trace": (training.trace, learns, 0.01),
        "lower": (training.lower, learns, 0.1),
        "jit": (training.jit, learns, 0.04),
    }
    if sender == "thread":
        # Not while tracing: JAX's callback for the garbage collector swallows exceptions, and
        # PyTorch calls Python for the device of an abstract value from noexcept C++ code. Only
        # handlers can be deferred there.
        del programs["trace"], programs["lower"], programs["jit"]
    for name, (program, check, longest) in programs.items():
        program()
        trials = times * (2 if name in ("trace", "lower", "jit") else 1)
        count = interrupt(program, check, trials, SENDERS[sender](), longest, seed)
        print(name, count, flush=True)
        # A few may be lost where CPython drops exceptions, or a library converts them.
        assert count.swallowed + len(count.errors) <= trials // 20
        program()


@pytest.mark.parametrize("sender", SENDERS)
def test_interrupts_of_eager_programs_arrive_and_leave_the_state_whole(sender):
    in_process(__name__, f"interrupt_all({sender!r}, 50)")
