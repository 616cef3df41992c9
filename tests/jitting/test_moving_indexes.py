"""Indexes and slices by Python numbers that change between calls."""

import numpy as np
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


def test_positions_among_arguments():
    data = torch.arange(30.0, device="jax").reshape(10, 3)

    @calque.jit
    def step(x, i, state):
        part = data[i : i + 2] * x
        return part, data[state["at"]], state["at"] + 1

    for i, at in ((0, 0), (3, 1), (8, 9), (1, -1), (np.int64(2), 5)):
        part, item, after = step(torch.tensor(2.0, device="jax"), i, {"at": at})
        assert part.tolist() == (data[i : i + 2] * 2).tolist()
        assert (item.tolist(), after) == (data[at].tolist(), at + 1)
    assert len(step.history) <= 4


def test_a_moving_view_shares_memory_with_its_base():
    data, at = torch.zeros(6, 2, device="jax"), [0]

    @calque.jit
    def row():
        at[0] += 1
        return data[at[0]]

    rows = [row() for _ in range(5)]
    for i, one in enumerate(rows):
        one.fill_(i + 1)
        assert one.storage_offset() == 2 * (i + 1)
    assert data[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert len(row.history) <= 2


def test_methods_of_tensors_are_restored():
    before = dict(vars(torch.Tensor))
    data, at = torch.arange(6.0, device="jax"), [0]

    @calque.jit
    def item():
        at[0] += 1
        return data[at[0]] * 2

    assert [item().item() for _ in range(5)] == [2, 4, 6, 8, 10]
    with pytest.raises(IndexError, match="out of bounds"):
        item()
    assert dict(vars(torch.Tensor)) == before


def test_methods_of_tensors_that_a_program_has_replaced_stay(monkeypatch):
    data, at, original = torch.arange(6.0, device="jax"), [0], torch.Tensor.select
    monkeypatch.setattr(torch.Tensor, "select", lambda x, dim, i: original(x, dim, i) + 100)

    @calque.jit
    def item():
        at[0] += 1
        return data.select(0, at[0]) * 2

    assert [item().item() for _ in range(4)] == [202, 204, 206, 208]


@pytest.mark.parametrize("name", OTHERS)
def test_positions_that_are_needed(name):
    _check(OTHERS[name], _STARTS)


def test_tensors_are_no_sequences_while_and_after_a_function_is_traced():
    held, seen = Held("jax"), []

    @calque.jit
    def read():
        first = torch.ones(2)
        seen.append(torch.tensor([first[0], first[1]]).shape)
        held.i += 1
        return held.data[held.i] * 1

    for i in (1, 2, 3):
        assert read().tolist() == held.data[i].tolist()
    assert len(read.history) <= 2
    first = torch.ones(2)
    assert torch.tensor([first[0], first[1]]).tolist() == [1, 1]


def test_new_axes_before_a_position_have_the_strides_of_the_cpu():
    at = [0]

    def parts(data):
        at[0] += 1
        i = at[0]
        return data[None, i], data[:, None, i, None], data[..., None, i], data[None, i : i + 2]

    @calque.jit
    def step():
        return parts(data)

    data, expected = torch.zeros(4, 6, 6, device="jax"), torch.zeros(4, 6, 6)
    for _ in range(3):
        found, before = step(), at[0]
        at[0] -= 1
        for one, other in zip(found, parts(expected), strict=True):
            assert (one.stride(), one.storage_offset()) == (other.stride(), other.storage_offset())
        assert at[0] == before
    assert len(step.history) <= 2
