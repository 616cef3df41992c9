"""Functions with so much state that the words of its tensors and containers are compared."""

import sys

import pytest
import torch
from torch import nn

import calque
from calque.jitting.generated import words
from calque.upstream import memory
from tests.jitting.taking import Taken
from tests.upstream.test_memory import CHANGES, Named

COUNT = 12


class Settings:
    def __init__(self):
        self.bounds, self.names, self.seen, self.rest = [], {}, set(), {"scale": 1.0}


class State:
    """Tensors and parameters, objects with containers that are empty, and a function."""

    def __init__(self):
        self.tensors = [nn.Parameter(torch.full((3, 3), float(i), device="jax")) for i in range(6)]
        self.tensors += [torch.full((3, 3), 0.5 * i, device="jax") for i in range(6)]
        self.settings = [Settings() for _ in range(COUNT)]

    def total(self, *args):
        found = sum(args)
        for index, one in enumerate(self.tensors):
            found = found + one[..., :3].sum().float() * (index + 1) + one.requires_grad * index
            found = found + one.dim() + one.stride(0) + (0 if one.grad is None else one.grad.sum())
        for index, one in enumerate(self.settings):
            counts = len(one.bounds), len(one.names) * 2, len(one.seen) * 3, one.rest["scale"]
            found = found + sum(counts) * index
        return found


@pytest.fixture
def taken(monkeypatch):
    return Taken(monkeypatch)


@pytest.fixture
def made(monkeypatch):
    """The words that were made."""
    found = []
    for kind in (words.TensorWords, words.ContainerWords):
        monkeypatch.setattr(kind, "write", noting(kind.write, found))
    return found


def noting(write, found):
    return lambda self, source: (found.append(type(self)), write(self, source))[1]


def started(state, args, taken, made):
    step = calque.jit(state.total)
    for _ in range(5):
        assert step(*args).item() == state.total(*args).item()
    assert taken.count > 0
    assert {words.TensorWords, words.ContainerWords} <= set(made)
    return step


def agree(step, state, args):
    for _ in range(3):
        assert step(*args).item() == state.total(*args).item()


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("given", [0, 1, 6])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.sampled(12)
def test_a_change_of_one_of_many_tensors_is_seen(change, given, grad, taken, made):
    state = State()
    args = [torch.ones((), device="jax") for _ in range(given)]
    with torch.set_grad_enabled(grad):
        step = started(state, args, taken, made)
        for index in (3, 3, 0):
            change(state.tensors[index])
            agree(step, state, args)


@pytest.mark.parametrize("named", [range(12), range(0, 12, 2), range(6)])
@pytest.mark.parametrize("change", CHANGES[:4] + CHANGES[-7:-4], ids=lambda one: one.__name__)
@pytest.mark.sampled(4)
def test_tensors_of_other_classes_are_compared_beside(change, named, taken):
    state = State()
    for index in named:
        held = state.tensors[index]
        state.tensors[index] = Named(held.detach(), requires_grad=held.requires_grad)
    step = calque.jit(state.total)
    for _ in range(5):
        assert step().item() == state.total().item()
    assert taken.count > 0
    for index in (3, 4):
        change(state.tensors[index])
        agree(step, state, [])


def filled_list(one):
    one.bounds.append(1)


def filled_dict(one):
    one.names["a"] = 1


def filled_set(one):
    one.seen.add(1)


def other_scale(one):
    one.rest["scale"] += 1.0


def equal_scale(one):
    one.rest["scale"] = float("1.0")


def other_dict(one):
    one.__dict__ = {**vars(one), "bounds": [1, 2]}


def other_list(one):
    one.bounds = [1, 2, 3]


def emptied(one):
    one.bounds.append(1)
    one.bounds.clear()


CONTAINERS = (
    *(filled_list, filled_dict, filled_set, other_scale, equal_scale, other_dict, other_list),
    emptied,
)


@pytest.mark.parametrize("given", [0, 1])
@pytest.mark.parametrize("change", CONTAINERS, ids=lambda change: change.__name__)
@pytest.mark.sampled(6)
def test_a_change_of_one_of_many_containers_is_seen(change, given, taken, made):
    state, args = State(), [torch.ones((), device="jax")] * given
    step = started(state, args, taken, made)
    for index in (5, 5, 11):
        change(state.settings[index])
        agree(step, state, args)


@pytest.mark.parametrize("given", [1, 6])
def test_an_argument_that_is_one_of_many_tensors_is_seen(given, taken, made):
    state = State()
    own = state.tensors[7]

    def total(*args):
        args[0].add_(1)
        return sum(args).sum() + sum(one.sum() for one in state.tensors)

    args = [torch.ones(3, 3, device="jax") for _ in range(given)]
    step = calque.jit(total)
    for _ in range(5):
        step(*args)
    assert taken.count > 0 and words.TensorWords in made
    for others in ([own, *args[1:]], args, [*args[1:], own], [own] * given):
        before = others[0].clone(), own.clone()
        expected = total(*others)
        others[0].copy_(before[0]), own.copy_(before[1])
        assert step(*others).item() == expected.item()


def test_a_change_back_and_forth_returns_to_the_short_way(taken, made):
    state = State()
    step = started(state, [], taken, made)
    for _ in range(3):
        state.tensors[0].grad = torch.ones_like(state.tensors[0])
        agree(step, state, [])
        state.tensors[0].grad = None
        agree(step, state, [])
    before = taken.count
    for _ in range(4):
        agree(step, state, [])
    assert taken.count == before + 12


def test_written_values_and_gradients_of_others_need_no_second_look(taken, made, monkeypatch):
    state = State()
    step = started(state, [], taken, made)
    monkeypatch.setattr(words.TensorWords, "hold", None)
    for one in state.tensors:
        one.data.add_(1)
    assert step().item() == state.total().item()


@pytest.mark.parametrize("name", ["knows_tensors", "knows_containers"])
def test_without_known_layouts_changes_are_seen_too(name, taken, monkeypatch):
    monkeypatch.setattr(memory, name, lambda: False)
    state = State()
    step = calque.jit(state.total)
    for _ in range(5):
        step()
    assert taken.count > 0
    for change in (*CHANGES[:3], CHANGES[-1]):
        change(state.tensors[2])
        agree(step, state, [])
    filled_list(state.settings[1])
    agree(step, state, [])


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="dicts have no versions")
def test_a_tensor_that_was_exchanged_may_be_freed(taken, made):
    state = State()
    step = started(state, [], taken, made)
    for _ in range(3):
        for index in range(6):
            torch.utils.swap_tensors(
                state.tensors[index], nn.Parameter(torch.ones(3, 3, device="jax"))
            )
        held = [torch.zeros(3, 3, device="jax") for _ in range(50)]
        agree(step, state, [])
        del held
