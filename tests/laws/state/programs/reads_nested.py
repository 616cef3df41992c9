"""L1: values deep inside, among many, and in containers of the user's own."""

import collections
import heapq
import types
from collections.abc import Iterator
from typing import Any

import torch

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("reads", "jit rows")
Seen = Iterator[Any]


@program(states=3)
def bytes_of_a_bytearray(case: Case) -> Seen:
    mask = bytearray(b"\x01\x00\x01")
    f = case.fn(lambda x: x * x.new_tensor(list(mask)))
    yield f(case.x)
    mask[1] = 1
    yield f(case.x)
    mask[0] = 0
    yield f(case.x)


@program(states=3)
def a_heap(case: Case) -> Seen:
    queue = [(3, "neg"), (5, "sin"), (7, "cos")]
    heapq.heapify(queue)
    f = case.fn(lambda x: getattr(torch, queue[0][1])(x) * queue[0][0])
    for _ in range(3):
        yield f(case.x)
        heapq.heappop(queue), heapq.heappush(queue, (9, "tan"))


@program(states=3)
def deeply_nested_value(case: Case) -> Seen:
    leaf = {"value": 2.0}
    tree: Any = leaf
    for i in range(60):
        tree = [tree] if i % 2 else {"down": tree}

    def f(x):
        node = tree
        while "value" not in node:
            node = node["down"] if isinstance(node, dict) else node[0]
        return x * node["value"]

    f = case.fn(f)
    for leaf["value"] in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def one_of_many_thousand_values(case: Case) -> Seen:
    table = [float(i) for i in range(30_000)]
    f = case.fn(lambda x: x * table[29_999])
    for table[29_999] in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def one_of_many_thousand_keys(case: Case) -> Seen:
    table = {f"key{i}": {"gain": float(i)} for i in range(5_000)}
    f = case.fn(lambda x: x * table["key4321"]["gain"])
    for table["key4321"]["gain"] in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def a_list_that_contains_itself(case: Case) -> Seen:
    loop: list[Any] = [2.0]
    loop.append(loop)
    f = case.fn(lambda x: x * loop[1][1][1][0])
    for loop[0] in (2.0, 3.0, 4.0, 2.0):
        yield f(case.x)


@program(states=3)
def a_tuple_replaced_in_a_list(case: Case) -> Seen:
    pairs = [("add", 1.0), ("mul", 2.0)]

    def f(x):
        for name, value in pairs:
            x = getattr(torch, name)(x, value)
        return x

    f = case.fn(f)
    yield f(case.x)
    pairs[0] = ("sub", 1.0)
    yield f(case.x)
    pairs.reverse()
    yield f(case.x)
    pairs[:] = [("add", 1.0), ("mul", 2.0)]
    yield f(case.x)


class Stack(list):
    """A list that has a name and a limit."""

    limit = 2


@program(states=3)
def attribute_of_a_subclass_of_list(case: Case) -> Seen:
    stack = Stack([1.0, 2.0, 3.0])
    f = case.fn(lambda x: x * sum(stack[: stack.limit]))
    yield f(case.x)
    stack.limit = 3
    yield f(case.x)
    stack[0] = 7.0
    yield f(case.x)


class Bag(dict):
    """A dict whose keys are attributes, too."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@program(states=3)
def attribute_access_of_a_subclass_of_dict(case: Case) -> Seen:
    cfg = Bag(model=Bag(scale=2.0))
    f = case.fn(lambda x: x * cfg.model.scale)
    yield f(case.x)
    cfg.model.scale = 100.0  # an attribute, which hides the key
    yield f(case.x)
    del cfg.model.scale
    cfg["model"]["scale"] = 5.0
    yield f(case.x)


@program(states=3)
def a_mapping_proxy(case: Case) -> Seen:
    own = {"scale": 2.0}
    view = types.MappingProxyType(own)
    f = case.fn(lambda x: x * view["scale"])
    for own["scale"] in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def views_of_a_dict(case: Case) -> Seen:
    own = {"a": 2.0}
    values, keys = own.values(), own.keys()
    f = case.fn(lambda x: x * sum(values) + len(keys))
    yield f(case.x)
    own["a"] = 3.0
    yield f(case.x)
    own["b"] = 1.0
    yield f(case.x)


@program(states=3)
def user_dict_and_user_list(case: Case) -> Seen:
    options = collections.UserDict(scale=2.0)
    parts = collections.UserList([1.0])
    f = case.fn(lambda x: x * options["scale"] + sum(parts))
    yield f(case.x)
    options["scale"] = 3.0
    yield f(case.x)
    parts.append(4.0)
    yield f(case.x)
