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


class Box:
    def __init__(self, factor):
        self.factor = factor
        self.weights = [1.0] * 40


class Guarded(Box):
    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


def other_dict(boxes):
    boxes[-1].__dict__ = {"factor": 7.0, "weights": boxes[-1].weights}


def other_dict_later_written(boxes):
    boxes[0].__dict__ = dict(vars(boxes[0]))
    boxes[0].factor = 5.0


def old_dict_written(boxes):
    held = vars(boxes[0])
    boxes[0].__dict__ = dict(held)
    held["factor"] = 9.0  # nothing reads it any more


def dicts_exchanged(boxes):
    boxes[0].__dict__, boxes[1].__dict__ = vars(boxes[1]), vars(boxes[0])


def dict_shared(boxes):
    boxes[0].__dict__ = vars(boxes[1])
    boxes[1].factor = 11.0


def item_of_a_long_list(boxes):
    boxes[0].weights[-1] = 2.0


def long_list_shorter(boxes):
    boxes[0].weights.pop()


def long_list_longer(boxes):
    boxes[1].weights.append(3.0)


@pytest.mark.parametrize("count", [2, 80])
@pytest.mark.parametrize("kind", [Box, Guarded])
@pytest.mark.parametrize(
    "change",
    [
        *(other_dict, other_dict_later_written, old_dict_written, dicts_exchanged, dict_shared),
        *(item_of_a_long_list, long_list_shorter, long_list_longer),
    ],
)
def test_the_dict_and_the_lists_of_an_object_are_seen(change, kind, count):
    boxes = [kind(float(i)) for i in range(count)]

    def total(x):
        return x + sum(box.factor * (i + 1) + sum(box.weights) for i, box in enumerate(boxes))

    with pytest.MonkeyPatch.context() as patch:
        taken = Taken(patch)
        step = calque.jit(total)
        x = torch.ones(2, device="jax")
        for _ in range(4):
            assert step(x).tolist() == total(x).tolist()
        assert taken.count > 0
        for _ in range(2):
            change(boxes)
            for _ in range(3):
                assert step(x).tolist() == total(x).tolist()
