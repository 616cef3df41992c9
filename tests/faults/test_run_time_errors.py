"""A program that fails while it runs changes nothing, and says what it failed for."""

import sys
import traceback

import pytest
import torch

import calque
from tests import new_process

HUGE = 2**39  # elements: more than any machine has memory for


class Refused(ValueError):
    """What a kernel raises."""


@torch.library.custom_op("faults::small", mutates_args=())
def small(x: torch.Tensor) -> torch.Tensor:
    if x.sum().item() > 3:
        raise Refused("too large for the kernel")
    return x * 2


@small.register_fake
def _(x):
    return torch.empty_like(x)


@small.register_autograd
def _(ctx, incoming):
    return small(incoming)


def ones(*shape):
    return torch.ones(*shape, device="jax")


def doors():
    return pytest.mark.parametrize(
        "door", [calque.jit, lambda fn: torch.compile(fn, backend="calque")], ids=["jit", "compile"]
    )


@doors()
@pytest.mark.filterwarnings("ignore::calque.FallbackWarning")
def test_the_exception_of_a_kernel_arrives_as_itself_and_nothing_is_lost(door):
    state, other = ones(3) * 0, ones(2)

    def step(x, state, other):
        state.add_(1)
        y = small(x)
        other.mul_(2)
        return y

    run = door(step)
    for count in range(1, 4):
        assert run(ones(3), state, other).tolist() == [2, 2, 2]
        with pytest.raises(Refused, match="too large for the kernel") as raised:
            run(ones(3) * 5, state, other)
        assert state.tolist() == [count] * 3
        assert other.tolist() == [2**count] * 2
        frames = traceback.extract_tb(raised.value.__traceback__)
        assert any("raise Refused" in (frame.line or "") for frame in frames)
        assert "test_run_time_errors.py" in "".join(raised.value.__notes__)


@pytest.mark.filterwarnings("ignore::calque.FallbackWarning")
def test_the_exception_of_a_kernel_in_a_backward_arrives_as_itself():
    weight = ones(3).requires_grad_()
    run = calque.jit(lambda x: small(weight * x))
    run(ones(3)).sum().backward()
    assert weight.grad.tolist() == [2, 2, 2]
    with pytest.raises(Refused):
        (run(ones(3)) * 5).sum().backward()
    assert weight.grad.tolist() == [2, 2, 2]


@pytest.mark.filterwarnings("ignore::calque.FallbackWarning")
def test_no_log_of_what_is_raised(caplog):
    run = calque.jit(small)
    with pytest.raises(Refused):
        run(ones(3) * 5)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@doors()
def test_a_smaller_batch_after_too_large_a_one(door):
    state = ones(4) * 0

    def step(x, count, state):
        state.add_(1)
        values = torch.sort(x.expand(count)).values
        return (values * torch.arange(count, device="jax")).sum()

    run = door(step)
    for count in range(1, 3):
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            run(ones(1), HUGE, state)
        assert state.tolist() == [count - 1] * 4
        assert run(ones(1), 8, state).item() == 28
        assert state.tolist() == [count] * 4


LIMITED = """
import resource, sys, torch, calque
state, x = torch.zeros(4, device="jax"), torch.ones(1, device="jax")
SIZE = 2**29  # bytes

def function(count):
    state.add_(1)
    return x.expand(count) * 2

def fails(step):
    try:
        calque.to_jax(step(SIZE // 4)).block_until_ready()
    except torch.OutOfMemoryError as error:
        return "out of memory" in str(error)

calque.jit(function)(8)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + SIZE * 8 // 5,) * 2)
step = calque.jit(function)
ballast = torch.empty(SIZE, dtype=torch.uint8)
assert fails(step) and state.tolist() == [1] * 4, "in the first call"
del ballast
calque.to_jax(step(SIZE // 4)).block_until_ready()
assert state.tolist() == [2] * 4
ballast = torch.empty(SIZE, dtype=torch.uint8)
assert fails(step) and state.tolist() == [2] * 4, "in a later call"
del ballast
calque.to_jax(step(SIZE // 4)).block_until_ready()
assert state.tolist() == [3] * 4
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits a process's memory as Linux does")
def test_a_call_without_memory_left_changes_nothing():
    new_process.check(LIMITED, filter="ignore")


TRAINING = """
import resource, torch, calque
resource.setrlimit(resource.RLIMIT_AS, (2**46, resource.getrlimit(resource.RLIMIT_AS)[1]))
SIZE = 2**27  # bytes of the larger batch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
model.to("jax")
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("jax")

def step(count):
    loss = model(torch.ones(count, 4, device="jax")).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

def state():
    found = (model.state_dict(), optimizer.state_dict()["state"], scaler.state_dict())
    leaves = torch.utils._pytree.tree_leaves(found)
    return [x.tolist() if isinstance(x, torch.Tensor) else x for x in leaves]

for _ in range(2):
    step(8)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + SIZE, resource.getrlimit(resource.RLIMIT_AS)[1]))
for _ in range(4):  # the third of its kind has another path
    before = state()
    try:
        step(SIZE // 64)
        raise AssertionError("there was memory")
    except torch.OutOfMemoryError:
        assert state() == before
    step(8)
    assert state() != before
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits a process's memory as Linux does")
def test_training_goes_on_after_a_batch_that_was_too_large():
    new_process.check(TRAINING, filter="ignore")
