"""L2: what a call changes in its arguments, and in counters, heaps and queues."""

import bisect
import collections
import heapq
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("writes", "eager jit rows trace")
Seen = Iterator[Any]


@program(states=3)
def a_list_argument_that_grows(case: Case) -> Seen:
    def f(x, log):
        log.append(len(log))
        return x * len(log)

    f = case.fn(f)
    first: list[int] = []
    for log in (first, [1, 2], first):
        yield f(case.x, log), log


@program(states=2)
def a_list_argument_that_gets_a_tensor(case: Case) -> Seen:
    def f(x, outputs):
        outputs.append(x * 2)
        return x + 1

    f = case.fn(f)
    outputs: list[Any] = []
    yield f(case.x, outputs), outputs
    yield f(case.x + 1, []), outputs
    outputs.clear()
    yield f(case.x + 2, outputs), outputs


@program(states=2)
def a_dict_argument_that_is_filled(case: Case) -> Seen:
    def f(x, info):
        if "first" not in info:
            info["first"] = "yes"
            return x * 2
        return x

    f = case.fn(f)
    info: dict[str, Any] = {}
    yield f(case.x, info), info
    yield f(case.x, info), info
    yield f(case.x, {}), info
    other: dict[str, Any] = {}
    yield f(case.x, other), other


@program(states=2)
def an_item_of_a_nested_argument(case: Case) -> Seen:
    def f(x, state):
        state["inner"][0] = not state["inner"][0]
        return x if state["inner"][0] else -x

    f = case.fn(f)
    state = {"inner": [False]}
    for _ in range(4):
        yield f(case.x, state), state


@program(states=2)
def a_dict_argument_loses_a_key(case: Case) -> Seen:
    def f(batch):
        x = batch.pop("x")
        return x * len(batch)

    f = case.fn(f)
    for more in ({}, {"y": 1}, {}, {"y": 1}):
        batch = {"x": case.x, **more}
        yield f(batch), batch


@program(states=2)
def a_tensor_replaced_in_a_dict_argument(case: Case) -> Seen:
    def f(batch):
        batch["x"] = batch["x"] * 2
        return batch["x"].sum()

    f = case.fn(f)
    for i in range(3):
        batch = {"x": case.x + i}
        yield f(batch), batch


@program(states=2)
def an_object_argument_that_is_changed(case: Case) -> Seen:
    def f(x, s):
        s.flag = not s.flag
        return x if s.flag else -x

    f = case.fn(f)
    s = types.SimpleNamespace(flag=False)
    for _ in range(4):
        yield f(case.x, s), s
    other = types.SimpleNamespace(flag=False)
    yield f(case.x, other), other, s


@program(states=2)
def entry_counted_in_a_dict(case: Case) -> Seen:
    calls = {"f": 0}

    def f(x):
        calls["f"] = (calls["f"] + 1) % 2
        return x * calls["f"]

    f = case.fn(f)
    for _ in range(5):
        yield f(case.x), calls


@program(each_call=True)
def counter_updated(case: Case) -> Seen:
    counts: collections.Counter[str] = collections.Counter()

    def f(x):
        counts[str(x.dtype)] += 1
        counts.update(["all"])
        return x + 1

    f = case.fn(f)
    for _ in range(3):
        yield f(case.x), counts
    yield f(case.x.long()), counts


@program(each_call=True)
def default_dict_of_lists(case: Case) -> Seen:
    logs: Any = collections.defaultdict(list)

    def f(x):
        logs["numel"].append(x.numel())
        return x * len(logs["numel"])

    f = case.fn(f)
    for _ in range(3):
        yield f(case.x), logs


@program(states=2)
def default_dict_filled_by_reading(case: Case) -> Seen:
    gains: Any = collections.defaultdict(lambda: 2.0)

    def f(x):
        return x * len(gains) + gains["head"]

    f = case.fn(f)
    yield f(case.x), gains
    yield f(case.x), gains
    gains.clear()
    yield f(case.x), gains


@program(each_call=True)
def deque_with_maxlen(case: Case) -> Seen:
    recent: collections.deque[int] = collections.deque([0], maxlen=2)

    def f(x):
        recent.append(recent[-1] + 1)
        return x * recent[0]

    f = case.fn(f)
    for _ in range(4):
        yield f(case.x), recent


@program(states=3)
def deque_rotated(case: Case) -> Seen:
    ring = collections.deque(["sin", "cos", "neg"])

    def f(x):
        ring.rotate(-1)
        return getattr(torch, ring[0])(x)

    f = case.fn(f)
    for _ in range(6):
        yield f(case.x), ring


@program(states=2)
def heap_pushed_and_popped(case: Case) -> Seen:
    heap = [2, 5, 9]

    def f(x):
        least = heapq.heappop(heap)
        heapq.heappush(heap, least % 9 + 3)
        bisect.insort(heap, heap.pop())
        return x * least

    f = case.fn(f)
    heap_first = list(heap)
    yield f(case.x), heap
    heap[:] = heap_first
    yield f(case.x), heap
    yield f(case.x), heap


@program(states=2)
def move_to_end_of_an_ordered_dict(case: Case) -> Seen:
    cache = collections.OrderedDict(a=1.0, b=2.0)

    def f(x):
        first = next(iter(cache))
        cache.move_to_end(first)
        return x * cache[first]

    f = case.fn(f)
    for _ in range(5):
        yield f(case.x), cache


@program(states=2)
def slice_assignment_of_a_default(case: Case) -> Seen:
    values = [1, 2, 3]

    def f(x, values=values):
        values[1:] = [values[0] + 1]
        return x * sum(values)

    f = case.fn(f)
    for _ in range(3):
        yield f(case.x), values
    values[:] = [1, 2, 3]
    yield f(case.x), values


@program(states=2)
def swap_of_two_items(case: Case) -> Seen:
    pair = ["neg", "sin"]

    def f(x):
        pair[0], pair[1] = pair[1], pair[0]
        return getattr(torch, pair[0])(x)

    f = case.fn(f)
    for _ in range(5):
        yield f(case.x), pair


@program(states=2)
def bytearray_written(case: Case) -> Seen:
    used = bytearray(2)

    def f(x):
        used[0] ^= 1
        return x * used[0]

    f = case.fn(f)
    for _ in range(5):
        yield f(case.x), list(used)


@program
def attributes_of_a_tensor_argument_are_set(case: Case) -> Seen:
    def f(x):
        x.seen = "yes"
        x.total = x.sum()
        return x * 2

    f = case.fn(f)
    for k in range(4):
        x = case.x + k
        yield f(x), vars(x)


@program
def attribute_of_a_view_that_is_an_argument_is_deleted(case: Case) -> Seen:
    rows = case.rows

    def f(x):
        del x.todo
        return x * 2

    f = case.fn(f)
    for _ in range(3):
        row = rows[1]
        row.todo = row.done = True
        yield f(row), vars(row)


class Batch:
    """Known to PyTorch as a container."""

    def __init__(self, x, notes):
        self.x, self.notes = x, notes


_pytree.register_pytree_node(
    Batch, lambda b: ([b.x, b.notes], None), lambda parts, _: Batch(*parts)
)


@program(modes="eager jit rows")
def object_of_a_registered_class_is_changed(case: Case) -> Seen:
    def f(batch):
        batch.notes["calls"] = batch.notes.get("calls", 0) + 1
        batch.x = batch.x * 2
        batch.total = batch.x.sum()
        return batch, batch.notes

    f = case.fn(f)
    for k in range(4):
        batch = Batch(case.x + k, {"name": "a"})
        made, notes = f(batch)
        yield vars(batch), made is batch, notes is batch.notes


@program(each_call=True, modes="eager jit rows")  # the stored object is new in each call
def object_of_a_registered_class_is_kept(case: Case) -> Seen:
    seen = types.SimpleNamespace(last=None)

    def f(batch):
        seen.last = batch
        return batch.x * 2

    f = case.fn(f)
    for k in range(4):
        batch = Batch(case.x + k, {})
        yield f(batch), seen.last is batch


@program(modes="eager jit rows")
def containers_of_an_argument_change_places(case: Case) -> Seen:
    def f(items, x):
        items[0], items[1] = items[1], items[0]
        items[0].append(x)
        items[1].append(len(items[0]))
        return items[0]

    f = case.fn(f)
    for i in range(3):
        first, second = [1], [2]
        items = [first, second]
        made = f(items, case.x + i)
        yield items, items[0] is second, items[1] is first, made is second


@program(modes="eager jit rows")
def containers_move_up_in_an_argument(case: Case) -> Seen:
    def f(held):
        held["items"].insert(0, {"n": held["x"].sum()})
        held["items"][1]["n"] += 1
        del held["items"][2]
        held["old"] = held.pop("new")
        held["old"].append(held["items"][2])
        return held["items"][2], held["old"]

    f = case.fn(f)
    for i in range(3):
        held = {"items": [{"n": 1}, {"n": 2}, {"n": 3}], "x": case.x + i, "new": [], "old": {}}
        last, new = held["items"][2], held["new"]
        one, other = f(held)
        yield held, one is last, other is new
