"""Calls like the last one on spread tensors: where these lie is compared, too."""

import jax
import pytest
import torch
from jax.sharding import NamedSharding
from torch import nn

import calque
from calque import sharding as sh
from calque.device.memory.cell import cell_of
from calque.sharding import P
from tests.jitting.taking import Taken


@pytest.fixture
def taken(monkeypatch):
    return Taken(monkeypatch)


def test_another_placement_of_an_argument_is_seen(taken):
    sh.mesh(dp=8)
    run = calque.jit(lambda x: x * 2)
    values = torch.arange(32.0).reshape(8, 4)
    spread = sh.shard(values, P("dp"))
    for _ in range(4):
        assert run(spread).tolist() == (values * 2).tolist()
    before = taken.count
    assert before > 0
    for other in (sh.shard(values, P(None)), values.to("jax")):
        assert run(other).tolist() == (values * 2).tolist()
        assert sh.placement(run(other)) == sh.placement(other)
    assert sh.placement(run(spread)) == sh.placement(spread)


def test_another_placement_of_the_state_is_seen(taken):
    sh.mesh(dp=8)
    weight = nn.Parameter(torch.ones(8, 4).to("jax"))
    run = calque.jit(lambda x: weight.detach() + x)
    x = torch.ones(8, 4, device="jax")
    for _ in range(4):
        run(x)
    assert taken.count > 0
    weight.data = sh.shard(weight.data, P("dp"))
    for _ in range(4):
        found = run(x)
        assert found.tolist() == (torch.ones(8, 4) * 2).tolist()
    assert sh.placement(found) == sh.placement(weight)


def test_a_step_that_ran_before_anything_was_spread_goes_on(taken):
    state = torch.zeros(4, device="jax")
    run = calque.jit(lambda x: state.add_(x) + 0)
    x = torch.ones(4, device="jax")
    for _ in range(4):
        run(x)
    sh.mesh(dp=8)
    sh.shard(torch.ones(8), P("dp"))
    before = taken.count
    assert [run(x)[0].item() for _ in range(4)] == [5, 6, 7, 8]
    assert taken.count > before


def test_another_placement_of_the_same_storage_is_seen(taken):
    mesh = sh.mesh(dp=8)
    state = sh.shard(torch.zeros(8, 4), P("dp"))
    run = calque.jit(lambda x: state.add_(x) + 0)
    x = sh.shard(torch.ones(8, 4), P("dp"))
    for _ in range(4):
        run(x)
    assert taken.count > 0
    for which in (state, x):
        cell = cell_of(which)
        cell.array = jax.device_put(cell.array, NamedSharding(mesh, P(None, None)))
        before, placement = state.clone(), sh.placement(state)
        assert torch.equal(run(x).cpu(), before.cpu() + 1)
        assert sh.placement(state) == placement
        before = taken.count
        for _ in range(4):
            run(x)
        assert taken.count > before
    assert state.tolist() == torch.full((8, 4), 14.0).tolist()


def test_an_argument_on_one_device_is_moved_at_each_call(taken):
    sh.mesh(dp=8)
    state = sh.shard(torch.zeros(8, 4), P("dp"))
    run = calque.jit(lambda x: state.add_(x) + 0)
    x = torch.ones(8, 4, device="jax")
    for count in range(1, 6):
        assert run(x).tolist() == torch.full((8, 4), float(count)).tolist()
    assert taken.count > 0
    assert sh.placement(state) == sh.placement(sh.shard(torch.zeros(8, 4), P("dp")))
    assert sh.placement(x) != sh.placement(state)
