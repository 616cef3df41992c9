"""Lists to which a function appends: compiled if it does nothing else with them."""

from collections import deque

import pytest
import torch
from torch.utils import _pytree as pytree

import calque
from tests.jitting.appending import APPENDING, READING


def plain(value):
    """Returns nested lists and numbers for the tensors, lists and dicts in a value."""
    value = list(value) if isinstance(value, deque) else value
    leaves, spec = pytree.tree_flatten(value)
    leaves = [
        (one.detach().cpu().tolist(), str(one.dtype)) if isinstance(one, torch.Tensor) else one
        for one in leaves
    ]
    return leaves, str(spec)


def close(one, other):
    """Returns True if two values are equal, apart from rounding."""
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return one == (pytest.approx(other, abs=1e-5) if isinstance(one, float) else other)


def run(make, device, jit, calls=7):
    found = []
    step, change, state = make(device, jit)
    for i in range(calls):
        change(i)
        found.append(plain(step(torch.tensor([1.0, i + 2.0]).to(device), 0)))
        found.append(plain(state()))
    return found


def compare(make):
    made = []

    def jit(function):
        made.append(calque.jit(function))
        return made[-1]

    expected = run(make, "cpu", lambda function: function)
    found = run(make, "jax", jit)
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert close(one, other), f"call {index // 2}: {one} is not {other}"
    return made[0]


@pytest.mark.parametrize("name", APPENDING)
def test_appending_is_compiled(name):
    make, traces = APPENDING[name]
    step = compare(make)
    assert len(step.history) <= traces, step.history
    assert step.compilations <= traces


@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
@pytest.mark.parametrize("name", READING)
def test_what_is_read_is_right(name):
    compare(READING[name])
