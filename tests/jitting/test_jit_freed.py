"""What a trace has met dies with its last other reference, and not when the collector runs."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import calque


class Entry:
    def __init__(self, gain):
        self.gain, self.part, self.shift = gain, Part(), torch.ones(2, device="jax")


class Part:
    pass


@pytest.fixture
def no_collector(few_objects):
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("end", ["returns", "raises", "is refused", "swallows the refusal"])
def test_what_is_held_weakly_dies_at_once(no_collector, end):
    entry, layer, x = Entry(2.0), nn.Linear(2, 2).to("jax"), torch.ones(2, device="jax")
    registry = weakref.WeakValueDictionary(entry=entry, layer=layer, part=entry.part)

    @calque.jit
    def f(x):
        if "entry" not in registry:
            return x
        y = registry["layer"](x * registry["entry"].gain)
        assert "part" in registry
        if end == "raises":
            raise KeyError("the user's own")
        if end == "is refused":
            y.sum().item()
        if end == "swallows the refusal":
            try:
                y.sum().item()
            except calque.TraceError:
                pass
        return y

    for _ in range(3):
        try:
            f(x)
        except (KeyError, calque.TraceError):
            assert end != "returns"
        else:
            assert end == "returns"
    watched = [weakref.ref(one) for one in (entry, entry.part, entry.shift, layer, x)]
    del entry, layer, x
    assert [one() for one in watched] == [None] * 5
    assert not registry
    assert f(torch.full((2,), 3.0, device="jax")).tolist() == [3, 3]


@pytest.mark.parametrize("kind", [list, dict, set, "a variable"])
def test_what_containers_and_a_reference_hold_dies_when_it_leaves_the_containers(
    no_collector, kind
):
    entry, other = Entry(2.0), Entry(3.0)
    references, held = [weakref.ref(entry), weakref.ref(other)], [entry, other]
    holder = {"a": entry, "b": other} if kind is dict else held
    holder = set(held) if kind is set else holder
    variable = entry

    @calque.jit
    def f(x):
        for one in references:
            found = one()
            x = x if found is None else x * found.gain
        return x + (0 if variable is None else 1) + len(holder)

    x = torch.ones(2, device="jax")
    assert [f(x)[0].item() for _ in range(3)] == [9, 9, 9]
    other.gain = 5.0
    assert f(x)[0].item() == 13
    del entry, other, held
    variable = None
    holder.clear()
    assert [one() for one in references] == [None, None]
    assert f(x)[0].item() == 1


def test_a_functional_module_lets_go_of_what_its_trace_has_met(no_collector):
    entry = Entry(2.0)
    registry = weakref.WeakValueDictionary(entry=entry)

    class Layer(nn.Module):
        def forward(self, x):
            return x * registry["entry"].gain

    apply, params = calque.functional(Layer())
    assert apply(params, np.ones(2, np.float32)).tolist() == [2, 2]
    del entry
    assert not registry
