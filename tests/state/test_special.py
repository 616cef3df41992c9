"""Assignments to a function's code and to an object's class are counted, however they are made."""

import threading
import types

import pytest
import torch
from torch import nn

import calque
from calque.state.code_attributes import assignments
from tests.jitting.taking import Taken


@pytest.fixture
def taken(monkeypatch):
    return Taken(monkeypatch)


def made(factor=2, *, more=0):
    def scaled(x, by=factor, *, plus=more):
        return x * by + plus

    return scaled


def other(x, by=2, *, plus=0):
    return x * by * 10 + plus


CODE = types.FunctionType.__code__
ASSIGNMENTS = {
    "code": (lambda f: setattr(f, "__code__", other.__code__), 20),
    "code, by its descriptor": (lambda f: CODE.__set__(f, other.__code__), 20),
    "defaults": (lambda f: setattr(f, "__defaults__", (5,)), 5),
    "defaults for keywords": (lambda f: setattr(f, "__kwdefaults__", {"plus": 1}), 3),
    "an item of these": (lambda f: f.__kwdefaults__.update(plus=2), 4),
}


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_another_code_is_seen(name, taken):
    assign, expected = ASSIGNMENTS[name]
    scaled = made()
    run = calque.jit(lambda x: scaled(x))
    x = torch.ones(1, device="jax")
    for _ in range(4):
        assert run(x).item() == 2
    assert taken.alone > 0
    assign(scaled)
    for _ in range(4):
        assert run(x).item() == expected


def test_a_default_that_is_gone_is_seen(taken):
    scaled = made()
    run = calque.jit(lambda x: scaled(x))
    x = torch.ones(1, device="jax")
    for _ in range(4):
        run(x)
    del scaled.__defaults__
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        run(x)


class Double(nn.Module):
    def forward(self, x):
        return x * 2


class Triple(Double):
    def forward(self, x):
        return x * 3


def test_another_class_is_seen_and_the_short_way_found_again(taken):
    model = nn.Sequential(*[Double() for _ in range(3)])
    run = calque.jit(model)
    x = torch.ones(1, device="jax")
    for _ in range(4):
        assert run(x).item() == 8
    object.__setattr__(model[1], "__class__", Triple)
    for _ in range(4):
        assert run(x).item() == 12
    before = taken.count
    Double().__class__ = Triple  # on a different object
    assert run(x).item() == 12
    assert taken.count == before + 1
    model[1].__class__ = Double
    assert run(x).item() == 8


def test_what_threads_do_to_cells_is_not_counted():
    state = torch.zeros(2, device="jax")
    run = calque.jit(lambda x: state.add_(x))
    x = torch.ones(2, device="jax")
    for _ in range(3):
        run(x)
    before = assignments.count
    thread = threading.Thread(target=lambda: [run(x) for _ in range(5)])
    thread.start()
    thread.join()
    assert assignments.count == before
