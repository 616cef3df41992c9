"""Whatever a step reads may change between two calls: calls that take the short way see it."""

import random

import pytest
import torch

import calque
from calque.jitting.fast_call import FastCalls
from tests.jitting.changes import CHANGES, run
from tests.jitting.taking import Taken

OPTIMIZERS = {
    "SGD": {"momentum": 0.5},
    "Adam": {"make": torch.optim.Adam},
}


def in_general(changes, **settings):
    """What the general path alone gives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FastCalls, "like", lambda *_: None)
        return run("jax", changes, calque.jit, **settings)


def on_the_short_way(changes, **settings):
    """What calls give that take the short way where they can; some of them must."""
    with pytest.MonkeyPatch.context() as patch:
        taken = Taken(patch)
        found = run("jax", changes, calque.jit, **settings)
    assert taken.count > 0
    return found


def same(found, expected, exactly):
    for a, b in zip(found, expected, strict=True):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            tolerance = {"rtol": 0, "atol": 0} if exactly else {"rtol": 2e-4, "atol": 1e-5}
            torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_seen(change):
    found = on_the_short_way([change], momentum=0.5)
    same(found, run("cpu", [change], momentum=0.5), exactly=False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(6))
def test_both_ways_agree_after_any_changes(seed):
    """One sequence each: to trace and to compile takes far longer than the calls."""
    chosen = random.Random(seed)
    changes = chosen.sample(CHANGES, 3)
    keeps, name = seed % 2 == 1, chosen.choice(sorted(OPTIMIZERS))
    settings = {"keeps": keeps, **OPTIMIZERS[name]}
    try:
        expected = in_general(changes, **settings)
    except Exception as error:
        with pytest.raises(type(error)):
            on_the_short_way(changes, **settings)
    else:
        same(on_the_short_way(changes, **settings), expected, exactly=True)
