"""Indexes and slices by Python numbers that change between calls."""

import pytest
import torch

import calque
from tests.jitting.moving_indexes import MOVING, OTHERS, Held
from tests.laws.state.describe import describe, difference

pytestmark = pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
_STARTS = (0, 1, 3, 2, 7, 12)


def _run(program, device, jit, starts):
    s = Held(device)

    def step(x):
        return program(s, x)

    call = jit(step)
    x = torch.tensor([[0.5, -1.0], [2.0, 0.25]], device=device)
    for n, s.i in enumerate(starts):
        s.n = n
        before = {k: v.detach().clone() for k, v in vars(s).items() if torch.is_tensor(v)}
        try:
            found = call(x)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            found = (
                type(error).__name__,
                str(error).split("\n")[0].replace("jaxFloatType", "torch.FloatTensor"),
            )
            with torch.no_grad():  # an error undoes the writes of a program
                for name, value in before.items():
                    getattr(s, name).copy_(value)
        yield describe((found, s.state()))


def _check(program, starts):
    """Compare a program with its eager run after each call; returns the jitted function."""
    jitted = []

    def jit(fn):
        jitted.append(calque.jit(fn))
        return jitted[-1]

    expected = list(_run(program, "cpu", lambda fn: fn, starts))
    for i, found in enumerate(_run(program, "jax", jit, starts)):
        assert difference(found, expected[i]) is None, i
    return jitted[0]


@pytest.mark.parametrize("name", MOVING)
def test_positions_are_inputs(name):
    step = _check(MOVING[name], _STARTS)
    assert len(step.history) <= 2, step.history


@pytest.mark.parametrize("name", MOVING)
def test_positions_out_of_range(name):
    _check(MOVING[name], (0, 3, 19, 17, 1, 25, -1, -3, 2, True, -40, 2**60, 4))


@pytest.mark.parametrize("name", OTHERS)
def test_positions_that_are_needed(name):
    _check(OTHERS[name], _STARTS)
