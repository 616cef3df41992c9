"""Tensors and objects as the keys of dicts, and tensors that are told apart by identity."""

import collections
import types
from collections.abc import Iterator
from typing import Any

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("keys", "jit rows")
Seen = Iterator[Any]
Place = types.SimpleNamespace


@program(each_call=True)
def visits_counted_by_hidden_state(case: Case) -> Seen:
    b, seen = Place(h=case.x), {}

    def f(x):
        count = seen.get(b.h, 0)
        seen[b.h] = count + 1
        if count >= 2:
            b.h = b.h + x
        return x * (count + 1)

    f = case.fn(f)
    for i in range(8):
        yield f(case.x), list(seen.values()), b
        if i == 4:
            b.h = case.x


@program(each_call=True)
def new_hidden_state_as_a_key(case: Case) -> Seen:
    b, seen = Place(h=case.x), {}

    def f(x):
        count = seen.get(b.h, 0)
        b.h = b.h + x
        seen[b.h] = count + 1
        return x * (count + 1)

    f = case.fn(f)
    for i in range(7):
        yield f(case.x), list(seen.values()), b.h in seen
        if i == 4:
            b.h = case.x


@program(each_call=True)
def old_hidden_state_as_a_key(case: Case) -> Seen:
    b, seen = Place(h=case.x), {}

    def f(x):
        seen[b.h] = 1
        b.h = b.h + x
        return b.h

    f = case.fn(f)
    for _ in range(5):
        h = b.h
        yield f(case.x), h in seen, list(seen), b


@program(each_call=True)
def hidden_state_in_a_set(case: Case) -> Seen:
    b = Place(h=case.x)
    good = {b.h}

    def f(x):
        y = x * 2 if b.h in good else x
        b.h = b.h + x
        return y

    f = case.fn(f)
    for i in range(8):
        yield f(case.x), b, len(good)
        if i in (1, 2):
            good.add(b.h)
        if i == 5:
            good.clear()


@program(each_call=True)
def hidden_state_found_by_its_id(case: Case) -> Seen:
    b = Place(h=case.x)
    scales, keep = {id(b.h): 5.0}, []

    def f(x):
        y = x * scales.get(id(b.h), 1.0)
        b.h = b.h + x
        return y

    f = case.fn(f)
    for i in range(6):
        keep.append(b.h)
        yield f(case.x), b
        if i in (1, 2):
            scales[id(b.h)] = 7.0


@program(each_call=True)
def hidden_state_found_in_a_list(case: Case) -> Seen:
    b = Place(all=[case.x, case.x])
    b.h = b.all[1]

    def f(x):
        found = [i for i, t in enumerate(b.all) if t is b.h]
        b.h = b.h * 1
        return x * sum(found, len(found))

    f = case.fn(f)
    for i in range(8):
        yield f(case.x), b
        if i in (1, 2):
            b.all[0] = b.h
        if i == 4:
            b.h = b.all[1]


@program(each_call=True)
def new_object_as_a_key_and_in_an_attribute(case: Case) -> Seen:
    class Node:
        def __init__(self, v: Any) -> None:
            self.v = v

    b: Any = Place(cur=None)
    parents: dict[Any, Any] = {}
    depth: dict[Any, int] = {}

    def f(x):
        node = Node(x * 2)
        parents[node], depth[node] = b.cur, depth.get(b.cur, 0) + 1
        b.cur = node
        return node, depth[node]

    f = case.fn(f)
    for i in range(5):
        node, d = f(case.x + i)
        yield d, node is b.cur, node in parents, node in depth, [k.v for k in parents]


@program(each_call=True)
def new_tensor_as_a_key_and_returned(case: Case) -> Seen:
    found, b = collections.defaultdict(list), Place(last=None)

    def f(x):
        y = x + 1
        found[y].append(x)
        b.last = y
        return y, [y]

    f = case.fn(f)
    for i in range(5):
        r = f(case.x + i)
        yield r, r[0] in found, b.last in found, len(found), r[0] is b.last
