"""A call that ends in an error leaves optimizers as they were, whatever its trace prepared."""

import contextlib
import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import calque
from calque.jitting import executables
from calque.jitting.program import JittedProgram
from calque.program.execution import Execution

OPTIMIZERS = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
}
STAGES = {
    "trace": None,
    "lower": (JittedProgram, "lower"),
    "compile": (executables, "compile_checked"),
    "run": (Execution, "started"),
}


class Training:
    """A step that may fail, and what it should give."""

    def __init__(self, make):
        self.model = nn.Linear(2, 1)
        self.host = copy.deepcopy(self.model)
        self.model.to("jax")
        self.optimizer = make(self.model.parameters())
        self.of_host = make(self.host.parameters())
        self.error = None
        self.step = calque.jit(self.train)

    def train(self, x):
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.error is not None:
            raise self.error
        return loss

    def step_host(self):
        self.of_host.zero_grad()
        self.host(torch.ones(3, 2)).square().mean().backward()
        self.of_host.step()

    def fail(self, stage, error, monkeypatch):
        """A call that ends in an error."""
        with monkeypatch.context() as patched:
            if STAGES[stage] is None:
                patched.setattr(self, "error", error)
            else:

                def fails(*args, **kwargs):
                    raise error

                patched.setattr(*STAGES[stage], fails)
            with pytest.raises(type(error)):
                self.step(torch.ones(3, 2, device="jax"))

    def go_on(self, count):
        """Steps that give what those of the CPU give."""
        for _ in range(count):
            self.step(torch.ones(3, 2, device="jax"))
            self.step_host()
        for p, q in zip(self.model.parameters(), self.host.parameters(), strict=True):
            torch.testing.assert_close(p.cpu(), q)


@pytest.mark.parametrize(
    ("kind", "stage"), [("Adam", "trace"), ("SGD", "lower"), ("SGD", "compile"), ("Adam", "run")]
)
def test_a_first_call_that_ends_in_an_error_leaves_no_state(kind, stage, monkeypatch):
    training = Training(OPTIMIZERS[kind])
    error = KeyboardInterrupt() if kind == "SGD" else torch.OutOfMemoryError("out of memory")
    training.fail(stage, error, monkeypatch)
    assert not training.optimizer.state
    assert "_opt_called" not in vars(training.optimizer)
    training.go_on(2)
    assert sum(map(len, training.step.programs.values())) == 1
    if stage == "run":
        assert training.step.compilations == 1
        assert training.step.history == ["first call", "its first call ended in an error"]


@pytest.mark.parametrize("stage", ["compile", "run"])
def test_step_counts_stay_on_the_cpu(stage, monkeypatch):
    training = Training(OPTIMIZERS["Adam"])
    training.train(torch.ones(3, 2, device="jax"))
    training.step_host()
    steps = [state["step"] for state in training.optimizer.state.values()]
    assert {step.device.type for step in steps} == {"cpu"}
    training.fail(stage, KeyboardInterrupt(), monkeypatch)
    now = [state["step"] for state in training.optimizer.state.values()]
    assert all(a is b for a, b in zip(now, steps, strict=True))
    training.go_on(2)


def test_state_that_another_step_has_written_meanwhile_stays(monkeypatch):
    training = Training(OPTIMIZERS["Adam"])
    compile_checked = executables.compile_checked

    def steps(*args, **kwargs):
        training.train(torch.ones(3, 2, device="jax"))  # as another thread might
        training.step_host()
        raise KeyboardInterrupt

    monkeypatch.setattr(executables, "compile_checked", steps)
    with pytest.raises(KeyboardInterrupt):
        training.step(torch.ones(3, 2, device="jax"))
    monkeypatch.setattr(executables, "compile_checked", compile_checked)
    assert [float(s["step"]) for s in training.optimizer.state.values()] == [1, 1]
    training.go_on(1)


@pytest.mark.usefixtures("few_objects")
def test_the_state_is_freed(monkeypatch):
    training = Training(OPTIMIZERS["Adam"])
    made = []
    started = Execution.started

    def fails(execution, arrays):
        made.extend(weakref.ref(s["exp_avg"]) for s in training.optimizer.state.values())
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(Execution, "started", fails)
    with contextlib.suppress(torch.OutOfMemoryError):
        training.step(torch.ones(3, 2, device="jax"))
    monkeypatch.setattr(Execution, "started", started)
    gc.collect()
    assert [ref() for ref in made] == [None, None]


def test_lowering_that_fails_leaves_no_state(monkeypatch):
    training = Training(OPTIMIZERS["Adam"])
    training.error = ValueError()
    with pytest.raises(ValueError):
        training.step.lower(torch.ones(3, 2, device="jax"))
    assert not training.optimizer.state
    training.error = None
    training.step.lower(torch.ones(3, 2, device="jax"))
    assert training.optimizer.state
    training.go_on(1)
