"""Objects of the state that a function returns or stores, and others with equal contents."""

import pytest
import torch

import calque

pytestmark = pytest.mark.filterwarnings("ignore::calque.RetraceWarning")


class Space:
    def __init__(self, **values):
        self.__dict__.update(values)


def x():
    return torch.ones(2, device="jax")


def returned(holder, x):
    return holder.item


def in_a_list(holder, x):
    return [x, (holder.item, 2)][1][0]


def in_a_function(holder, x):
    item = holder.item
    return lambda: item


def in_a_new_object(holder, x):
    return Space(result=x * 2, item=holder.item).item


def as_an_attribute(holder, x):
    y = x + 1
    y.item = holder.item
    return y


def stored(holder, x):
    holder.kept = holder.item
    return holder.kept


def appended(holder, x):
    holder.log.append(holder.item)
    return holder


def in_a_dict(holder, x):
    holder.log.append({"item": [holder.item]})
    return holder


def taken(found):
    """Returns the item that a call returned or stored."""
    found = found() if callable(found) else found
    found = found.log[-1] if isinstance(found, Space) and hasattr(found, "log") else found
    found = found["item"][0] if isinstance(found, dict) and "item" in found else found
    return getattr(found, "item", found)


WAYS = (
    *(returned, in_a_list, in_a_function, in_a_new_object),
    *(as_an_attribute, stored, appended, in_a_dict),
)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [lambda: Space(unread=1), lambda: [1], lambda: {"a": 1}])
def test_each_call_keeps_the_current_object(way, make):
    holder = Space(item=make(), log=[])
    step = calque.jit(lambda x: way(holder, x))
    for i in range(5):
        if i in (2, 4):
            holder.item = make()
        assert taken(step(x())) is holder.item


def test_an_object_that_is_only_read_may_be_replaced():
    holder = Space(item=Space(scale=2, log=[]))
    step = calque.jit(lambda x: x * holder.item.scale)
    for _ in range(4):
        holder.item = Space(scale=2, log=[])
        assert step(x()).tolist() == [2, 2]
    assert step.history == ["first call"]


def test_each_call_appends_the_current_tensor():
    holder, log = Space(item=x()), []

    @calque.jit
    def step(x):
        log.append(holder.item)
        log.append((holder.item, x))

    for i in range(6):
        if i in (2, 4, 5):
            holder.item = i * x()
        step(x())
        assert log[-2] is holder.item and log[-1][0] is holder.item
    assert len(step.history) == 2


def test_an_argument_that_holds_the_object_already_gets_the_current_one():
    holder, given = Space(item=Space(value=1)), {"item": None}

    @calque.jit
    def step(x, given):
        given["item"] = holder.item
        return x * 2

    for i in range(8):
        if i in (2, 4, 5):
            holder.item = Space(value=1)
        step(x(), given)
        assert given["item"] is holder.item


def test_functions_close_over_objects_of_their_call():
    kept = []

    @calque.jit
    def step(x):
        added, items = [], [1]

        def add(value):
            added.append(value)
            return added

        kept.append(lambda: items)
        return x * 2, add

    for i in range(4):
        _, add = step(x())
        assert add(i) == [i]
        assert kept[-1]() == [1]
        kept[-1]().append(2)
