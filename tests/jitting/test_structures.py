"""Arguments taken apart and put together again."""

import collections
import dataclasses
import threading
import types
from typing import Any

import pytest
import torch

from calque.program.lazy_arguments import (
    Restructure,
    UnreadObject,
    is_unread,
    value_of,
    watching_objects,
)
from calque.program.structures import Flattening, Structure, TooLarge, can_open, objects_in


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    x: Any
    y: Any = 1


class Private:
    __slots__ = ("__dict__", "__hidden")

    def __init__(self, value):
        self.__hidden = value
        self.shown = value

    @property
    def hidden(self):
        return self.__hidden


class Strict:
    def __init__(self, value):
        object.__setattr__(self, "value", value)

    def __setattr__(self, name, value):
        raise AttributeError(name)

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


class Named(collections.OrderedDict):
    pass


class Rows(list):
    pass


def flatten(value):
    flattening = Flattening(lambda kind, inside: can_open(kind), lambda kind: True)
    node = flattening.visit(value)
    return flattening.leaves, Structure(node, frozenset(flattening.opened))


def rebuilt(value):
    leaves, structure = flatten(value)
    return structure.build(leaves)


@pytest.mark.parametrize("kind", [Slots, Private, Strict, types.SimpleNamespace, Named, Rows])
def test_classes_that_are_opened(kind):
    assert can_open(kind)


@pytest.mark.parametrize(
    "kind",
    [
        *(torch.nn.Linear, torch.optim.SGD, torch.Tensor, int, str, dict, list, type, ValueError),
        *(type(threading.Lock()), type(iter([])), threading.Thread, type(lambda: 0)),
    ],
)
def test_classes_that_are_not_opened(kind):
    assert not can_open(kind)


def test_objects_come_back_as_they_were():
    made = rebuilt([Slots(1, "a"), Private(3), Strict({"k": (1, 2)}), Named(b=1, a=2), Rows([5])])
    assert made[0] == Slots(1, "a")
    assert (made[1].hidden, made[1].shown) == (3, 3)
    assert type(made[2]) is Strict
    assert made[2].value == {"k": (1, 2)}
    assert type(made[3]) is Named
    assert list(made[3].items()) == [("b", 1), ("a", 2)]
    assert (type(made[4]), made[4]) == (Rows, [5])


def test_slots_without_a_value_stay_so():
    empty = object.__new__(Slots)
    assert not hasattr(rebuilt(empty), "x")


def test_what_is_one_object_stays_one():
    shared = [1]
    node = types.SimpleNamespace(a=shared, b=shared)
    node.me = node
    made = rebuilt((node, shared))
    assert made[0].a is made[0].b is made[1]
    assert made[0].me is made[0]
    assert made[0] is not node


def test_structures_tell_sharing_and_keys_apart():
    one, two = [1], [1]
    objects = [
        types.SimpleNamespace(a=one, b=one),
        types.SimpleNamespace(a=one, b=two),
        types.SimpleNamespace(b=two, a=one),
        types.SimpleNamespace(a=one, b={1: 2}),
        types.SimpleNamespace(a=one, b={True: 2}),
        types.SimpleNamespace(a=one, b={1}),
        types.SimpleNamespace(a=one, b={2}),
    ]
    structures = [flatten(o)[1] for o in objects]
    assert len(set(structures)) == len(objects)
    again = types.SimpleNamespace(a=[1], b=[1])
    assert flatten(again)[1] == structures[1]


def test_too_much_is_left_alone():
    with pytest.raises(TooLarge):
        flatten(types.SimpleNamespace(items=list(range(20_000))))


def test_objects_in_arguments_are_found_with_their_containers():
    inner = [torch.ones(1)]
    one = types.SimpleNamespace(inner=inner)
    found = list(objects_in(([one, [2]], {}), frozenset((types.SimpleNamespace,))))
    assert {id(value) for value, _ in found} == {id(one), id(inner)}


@pytest.mark.parametrize(
    "use",
    [
        *(len, iter, repr, hash, bool, list, lambda u: u.anything, lambda u: u == 1),
        *(lambda u: u + 1, lambda u: 1 + u, lambda u: u[0], lambda u: u(), lambda u: "x" in u),
    ],
)
def test_an_object_that_nobody_reads_notices_who_does(use):
    unread = UnreadObject({1})
    with watching_objects() as touched, pytest.raises(Restructure):
        use(unread)
    assert touched == {set}


def test_an_object_that_nobody_reads_has_its_class_and_is_itself():
    unread = UnreadObject({1})
    with watching_objects() as touched:
        assert isinstance(unread, set)
        assert not isinstance(unread, list)
        assert unread is not None
        assert [unread][0] is unread
    assert not touched
    assert is_unread(unread)
    assert value_of(unread) == {1}
