"""Threads that read and change the same state: nobody meets a deleted array, no update is lost."""

import copy
import io
import threading

import pytest
import torch
from torch import nn

import calque

pytestmark = pytest.mark.conformance  # minutes of interrupts: `make faults`

CALLS = 60


class Trainer:
    """A model with its optimizer, and a jitted step that counts itself."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).to("jax")
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.count = torch.zeros((), device="jax", dtype=torch.int64)
        self.x = torch.randn(8, 16).to("jax")
        self.jitted = calque.jit(self.train)

    def train(self, x):
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.count.add_(1)
        return loss

    def step(self):
        self.jitted(self.x)


class Counted:
    """A function of no arguments that counts its calls."""

    def __init__(self, function):
        self.function = function
        self.calls = 0

    def __call__(self):
        self.function()
        self.calls += 1


def race(step, *others, calls=CALLS):
    """Call a step some times, while other threads call other functions as often as they can."""
    end, errors = threading.Event(), []

    def loop(other):
        try:
            while not end.is_set():
                other()
        except BaseException as error:
            errors.append(error)
            end.set()

    threads = [threading.Thread(target=loop, args=(other,), daemon=True) for other in others]
    for thread in threads:
        thread.start()
    try:
        for _ in range(calls):
            step()
    finally:
        end.set()
        for thread in threads:
            thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


@pytest.fixture
def trainer():
    return Trainer()


@pytest.fixture
def one():
    return torch.ones((), device="jax")


def test_a_checkpoint_is_saved_from_the_first_call_on(trainer):
    def save():
        file = io.BytesIO()
        parts = trainer.model, trainer.optimizer
        torch.save([part.state_dict() for part in parts], file)
        file.seek(0)
        for tensor in torch.load(file)[0].values():
            assert tensor.isfinite().all()

    race(trainer.step, save)
    assert trainer.count.item() == CALLS


def test_an_eager_evaluation(trainer):
    def evaluate():
        with torch.no_grad():
            assert trainer.model(trainer.x).isfinite().all()

    race(trainer.step, evaluate)


def test_a_jitted_evaluation(trainer):
    evaluate = calque.jit(lambda x: trainer.model(x).sum())

    def other():
        with torch.no_grad():
            assert evaluate(trainer.x).isfinite()

    race(trainer.step, other)
    assert trainer.count.item() == CALLS


def test_two_jitted_functions_on_one_tensor(one):
    w = torch.zeros(64, device="jax")
    first, second = calque.jit(lambda x: w.add_(x)), calque.jit(lambda x: w.add_(2 * x)[0])
    other = Counted(lambda: second(one))
    race(lambda: first(one), other)
    assert w.tolist() == [CALLS + 2 * other.calls] * 64


def test_one_jitted_function_in_two_threads(trainer):
    other = Counted(trainer.step)
    race(trainer.step, other)
    assert trainer.count.item() == CALLS + other.calls


def test_copies_and_values(trainer):
    model, weight = trainer.model, trainer.model[0].weight
    readers = (
        lambda: copy.deepcopy(model),
        lambda: [p.tolist() for p in model.parameters()],
        lambda: calque.to_jax(weight).sum().item(),
    )
    race(trainer.step, *readers)


def test_a_compiled_graph_that_writes(one):
    w = torch.zeros(64, device="jax")
    first = torch.compile(lambda x: w.add_(x), backend="calque")
    first(one)
    race(lambda: first(one), lambda: w.tolist(), lambda: w.clone().sum().item())
    assert w.tolist() == [CALLS + 1] * 64


def test_state_that_is_an_argument_or_seen_through_a_view(one):
    w = torch.zeros(64, device="jax")
    half = w[:32]
    first, second = calque.jit(lambda w, x: w.add_(x)), calque.jit(lambda x: half.add_(x)[0])
    other = Counted(lambda: second(one))
    race(lambda: first(w, one), other, lambda: half.sum().item())
    assert w[32:].tolist() == [CALLS] * 32
    assert half.tolist() == [CALLS + other.calls] * 32


def test_gradients_that_two_functions_add_to(one):
    w = torch.zeros(8, device="jax", requires_grad=True)
    first = calque.jit(lambda x: (w * x).sum().backward())
    second = calque.jit(lambda x: (w * x * 2).sum().backward())
    other = Counted(lambda: second(one))
    race(lambda: first(one), other)
    assert w.grad.tolist() == [CALLS + 2 * other.calls] * 8


def test_an_attribute_that_two_functions_assign(one):
    class State:
        w = torch.zeros(8, device="jax")

    state = State()
    state.w = State.w

    def add(x):
        state.w = state.w + x
        return state.w.sum()

    first, second = calque.jit(add), calque.jit(lambda x: add(x) * 2)
    other = Counted(lambda: second(one))
    race(lambda: first(one), other)
    assert state.w.tolist() == [CALLS + other.calls] * 8


def test_no_random_number_is_drawn_twice():
    seen = []
    first = calque.jit(lambda: torch.rand(2, device="jax"))
    second = calque.jit(lambda: torch.rand(2, device="jax") + 0)
    race(
        lambda: seen.append(tuple(first().tolist())), lambda: seen.append(tuple(second().tolist()))
    )
    assert len(set(seen)) == len(seen)


def test_threads_with_states_of_their_own(trainer):
    other = Trainer()
    counted = Counted(other.step)
    race(trainer.step, counted)
    assert trainer.count.item() == CALLS
    assert other.count.item() == counted.calls
