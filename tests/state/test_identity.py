"""What is compared by identity, many objects at a time."""

from abc import ABC

import numpy as np
import pytest

from calque.state.identity import Identities
from calque.state.lookups import registered
from calque.state.paths import Path
from calque.state.rows import SetRow, SlotsRow, StateRow

PATH = Path("x")


class Slotted:
    __slots__ = ("a", "b")


class Abstract(ABC):  # noqa: B024
    pass


def elements():
    owner = {"a", "b", 1}
    return SetRow(owner, PATH), [
        lambda: owner.remove("a"),
        lambda: owner.add("a"),
        lambda: owner.add("c"),
        lambda: owner.discard("c"),
        lambda: (owner.discard(1), owner.add(True)),
        owner.clear,
    ]


def slots():
    owner = Slotted()
    owner.a, owner.b = 1, None
    return SlotsRow(owner, PATH), [
        lambda: setattr(owner, "a", True),
        lambda: setattr(owner, "a", 1),
        lambda: delattr(owner, "b"),
    ]


def setting():
    flags = {"on": False}
    row = StateRow(flags, PATH, lambda held: held["on"])
    return row, [lambda: flags.update(on=True), lambda: flags.update(on=False)]


def virtual_subclasses():
    class Another:
        pass

    return StateRow(Abstract, PATH, registered), [lambda: Abstract.register(Another)]


@pytest.mark.parametrize("made", [elements, slots, setting, virtual_subclasses])
def test_a_row_holds_only_what_it_held(made):
    row, changes = made()
    identities = Identities([row], {})
    assert not identities.others
    assert identities.hold()
    for change in changes:
        change()
        try:
            held = identities.hold()
        except AttributeError:  # the guard treats them as a difference
            held = False
        assert held is not row.is_changed()


def test_a_set_whose_order_changed_does_not_hold():
    owner = {0, 8, "a"}
    identities = Identities([SetRow(owner, PATH)], {})
    owner.clear()
    owner.update((8, 0, "a"))
    assert identities.hold() is (list(owner) == [0, 8, "a"])


def test_what_a_function_makes_anew_is_compared_by_value():
    row = StateRow(np.ones(2), PATH, lambda array: tuple(array.flat))
    assert Identities([row], {}).others == [row]
