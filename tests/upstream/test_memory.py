"""Words of memory change with what they stand for, and are known in this environment."""

from collections import Counter, OrderedDict, defaultdict

import numpy as np
import pytest
import torch
from torch import nn

import calque  # noqa: F401  (registers the device)
from calque.upstream import memory


class Slotted:
    __slots__ = ("__dict__", "other")


class Numbers(list):
    pass


class Fault(Exception):
    pass


class Named(nn.Parameter):
    pass


def test_the_layouts_are_known():
    assert memory.knows_containers()
    assert memory.knows_tensors()


@pytest.mark.parametrize("kind", [dict, OrderedDict, lambda: defaultdict(int), list, set])
def test_a_length_is_read(kind):
    held = kind()
    place = memory.length_place(held)
    for length in range(40):
        assert memory.read(place) == len(held) == length
        if isinstance(held, dict):
            held[length] = length
        else:
            (held.append if isinstance(held, list) else held.add)(length)
    held.clear()
    assert memory.read(place) == 0


def test_lengths_of_other_classes_are_not():
    assert [memory.length_place(one) for one in (Counter(), Numbers(), (), "", frozenset())] == [
        None
    ] * 5


@pytest.mark.skipif(memory.sys.version_info >= (3, 12), reason="dicts have no versions")
@pytest.mark.parametrize("kind", [Slotted, Fault, nn.Linear, Counter, Numbers])
def test_the_dict_of_an_object_is_read(kind):
    owner = kind(2, 2) if kind is nn.Linear else kind()
    owner.__dict__["a"] = 1
    held, other = owner.__dict__, {"a": 2}
    place = memory.dict_place(owner, held)
    if kind is Counter or kind is Numbers:
        assert place is None or memory.read(place) == id(held)
    else:
        assert memory.read(place) == id(held)
    assert memory.dict_place(owner, other) is None
    owner.__dict__ = other
    assert place is None or memory.read(place) == id(other)


def words(tensor):
    objects = memory.object_places([tensor])
    tensors, autograd = memory.tensor_places(objects)
    places = [objects, memory.hook_places([tensor]), tensors, autograd]
    return [memory.read(one).tolist() for one in places]


def other_data(one):
    one.data = one.data.clone()


def transposed_data(one):
    one.data = one.data.t()


def moved_data(one):
    one.data = torch.zeros(20, device=one.device)[4:13].view(3, 3)


def wider_data(one):
    one.data = torch.zeros(3, 4, device=one.device)


def flat_data(one):
    one.data = one.data.view(9)


def deep_data(one):
    one.data = one.data.view(1, 1, 1, 1, 1, 3, 3)


def doubles(one):
    one.data = one.data.double()


def no_gradient(one):
    one.requires_grad_(False)


def gradient(one):
    one.grad = torch.zeros_like(one)


def hook(one):
    one.register_hook(lambda gradient: gradient)


def last_hook(one):
    one.register_post_accumulate_grad_hook(lambda leaf: None)


def swapped(one):
    torch.utils.swap_tensors(one, nn.Parameter(one.detach()))


def other_class(one):
    one.__class__ = Named


def set_storage(one):
    with torch.no_grad():
        one.set_(torch.zeros(3, 3, device=one.device))


CHANGES = (
    *(other_data, transposed_data, moved_data, wider_data, flat_data, deep_data, doubles),
    *(no_gradient, gradient, hook, last_hook, swapped, other_class, set_storage),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_of_a_tensor_changes_its_words(change):
    one = nn.Parameter(torch.zeros(3, 3, device="jax"))
    kept = one.untyped_storage()
    before = words(one)
    with torch.no_grad():
        one.add_(1)
        one.detach()
    assert words(one) == before  # values are no part of them
    change(one)
    assert words(one) != before
    del kept


@pytest.mark.parametrize("rank", range(6))
def test_geometries_of_every_rank_are_read(rank):
    size = tuple(range(2, 2 + rank))
    held = torch.zeros(2000, device="jax")
    strides = tuple(range(1, 1 + rank))
    found = {
        tuple(words(held.as_strided(size, stride, offset))[2])
        for offset in (0, 3)
        for stride in {strides, strides[::-1]}
    }
    assert len(found) == 2 * len({strides, strides[::-1]})


def test_tensors_that_hold_more_elsewhere_are_not_readable():
    plain = torch.zeros(2, 2, device="jax")
    assert memory.is_readable(plain)
    assert memory.is_readable(nn.Parameter(plain))
    assert not memory.is_readable(Named(plain))
    assert not memory.is_readable(plain.view(1, 1, 1, 1, 2, 2))
    assert not memory.is_readable(torch.eye(2).to_sparse())


def test_what_reads_memory_can_be_printed():
    assert "object at" in repr(memory.read)
    assert not any(isinstance(one, np.ndarray) for one in vars(memory).values())
