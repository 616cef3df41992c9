"""Plain objects as arguments, made anew for each call: two traces, one compilation."""

import collections
import copy
import dataclasses
import enum
import threading
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("objects")
Seen = Iterator[Any]


@dataclasses.dataclass
class Batch:
    x: Any
    scale: float = 2.0
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    children: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Any
    calls: int = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    scale: float = 1.0

    @property
    def scaled(self) -> Any:
        return self.x * self.scale


class Mode(enum.Enum):
    PLAIN = 1
    DOUBLED = 2


class Items(dict):  # type: ignore[type-arg]
    def __getattr__(self, name: str) -> Any:
        return self[name]


class Rows(list):  # type: ignore[type-arg]
    tag = "rows"


@program
def data_class_made_anew(case: Case) -> Seen:
    f = case.fn(lambda batch: batch.x * batch.scale)
    for i in range(4):
        yield f(Batch(case.x + i))


@program
def namespace_made_anew(case: Case) -> Seen:
    f = case.fn(lambda batch: batch.inputs.sum() + batch.meta.weight)
    for i in range(4):
        yield f(types.SimpleNamespace(inputs=case.x + i, meta=types.SimpleNamespace(weight=3)))


@program(states=5)
def a_number_in_a_fresh_object(case: Case) -> Seen:
    f = case.fn(lambda batch: batch.x * batch.scale)
    for scale in (2.0, 2.0, 2.0, 3.0, 2.0, 2, 3.0, True, 1.0, 2.0):
        yield f(Batch(case.x, scale))


@program
def fresh_objects_that_are_written(case: Case) -> Seen:
    def f(batch):
        batch.doubled = batch.x * 2
        batch.extra["sum"] = batch.doubled.sum()
        batch.children.append(batch.scale)
        return batch

    f = case.fn(f)
    for i in range(4):
        batch = Batch(case.x + i)
        result = f(batch)
        yield result is batch, vars(batch)


@program
def an_attribute_of_a_fresh_object_is_deleted(case: Case) -> Seen:
    def f(batch):
        del batch.scale
        batch.x = batch.x + 1
        return batch.x

    f = case.fn(f)
    for i in range(4):
        batch = Batch(case.x + i)
        before = batch.x
        yield f(batch), vars(batch), before


@program
def a_tensor_of_a_fresh_object_is_written_in_place(case: Case) -> Seen:
    def f(batch):
        batch.x.mul_(2)
        return batch.x.sum()

    f = case.fn(f)
    for i in range(4):
        batch = Batch(case.x + i)
        alias = batch.x
        yield f(batch), alias, batch.x is alias


@program
def slots_of_a_fresh_object(case: Case) -> Seen:
    def f(one):
        one.calls += 1
        one.x = one.x * 2
        return one.x + one.calls

    f = case.fn(f)
    for i in range(4):
        one = Slotted(case.x + i)
        yield f(one), one.calls, one.x


@program
def a_frozen_data_class_with_a_property(case: Case) -> Seen:
    f = case.fn(lambda one: one.scaled.sum())
    for i in range(4):
        yield f(Frozen(case.x + i, 3.0))


@program(states=2)
def the_class_of_fresh_objects_changes(case: Case) -> Seen:
    class Scaled:
        factor = 2.0

        def __init__(self, x):
            self.x = x

        def value(self):
            return self.x * self.factor

    f = case.fn(lambda one: one.value())
    for i in range(3):
        yield f(Scaled(case.x + i))
    Scaled.factor = 5.0
    for i in range(3):
        yield f(Scaled(case.x + i))


@program(states=3)
def two_classes_of_fresh_objects(case: Case) -> Seen:
    class A:
        def __init__(self, x):
            self.x = x

    class B(A):
        pass

    f = case.fn(lambda one: one.x * 2 if type(one) is A else one.x * 3)
    for kind in (A, A, B, A, B, B):
        yield f(kind(case.x))


@program(states=3)
def one_object_in_two_places(case: Case) -> Seen:
    def f(a, b):
        a.extra["seen"] = a is b
        b.x = b.x + 1
        return a.x

    f = case.fn(f)
    for _ in range(2):
        yield f(Batch(case.x), Batch(case.x + 1))
    for _ in range(2):
        both = Batch(case.x)
        yield f(both, both), both.x, both.extra
    for _ in range(2):
        a, b = Batch(case.x), Batch(case.x)
        yield f(a, b), a.x, b.x, a.extra, b.extra


@program(states=2)
def one_list_in_two_fresh_objects(case: Case) -> Seen:
    def f(a, b):
        a.children.append(1)
        return a.x * len(b.children)

    f = case.fn(f)
    for _ in range(3):
        children: list[int] = []
        yield f(Batch(case.x, children=children), Batch(case.x, children=children)), children
    for _ in range(3):
        yield f(Batch(case.x), Batch(case.x))


@program(each_call=True)
def a_fresh_object_that_the_function_reaches_too(case: Case) -> Seen:
    holder = types.SimpleNamespace(current=None)

    def f(batch):
        if batch is holder.current:
            return batch.x * 2
        return batch.x

    f = case.fn(f)
    for i in range(2):
        yield f(Batch(case.x + i))
    for i in range(3):
        holder.current = Batch(case.x + i)
        yield f(holder.current)
        yield f(Batch(case.x + i))


@program(each_call=True)
def a_fresh_object_written_through_the_state(case: Case) -> Seen:
    holder = types.SimpleNamespace(current=Batch(case.x))

    def f(batch):
        holder.current.x = holder.current.x + 1
        return batch.x * 1

    f = case.fn(f)
    for i in range(3):
        yield f(Batch(case.x + i))
    for _ in range(3):
        yield f(holder.current), holder.current.x


@program(each_call=True)
def a_list_in_a_fresh_object_is_the_states(case: Case) -> Seen:
    log: list[int] = []

    def f(batch):
        log.append(1)
        return batch.x * len(batch.children)

    f = case.fn(f)
    for i in range(3):
        yield f(Batch(case.x + i))
    for i in range(3):
        yield f(Batch(case.x + i, children=log))


@program(each_call=True)
def fresh_objects_found_by_their_ids(case: Case) -> Seen:
    seen: dict[int, int] = {}

    def f(batch):
        return batch.x * seen.get(id(batch), 1)

    f = case.fn(f)
    kept = [Batch(case.x + i) for i in range(4)]
    seen[id(kept[2])] = 5
    for batch in kept:
        yield f(batch)


@program(each_call=True)
def fresh_objects_as_keys_of_the_state(case: Case) -> Seen:
    class Key:
        def __init__(self, x):
            self.x = x

    scales: dict[Any, int] = {}

    def f(key):
        return key.x * scales.get(key, 1)

    f = case.fn(f)
    kept = [Key(case.x + i) for i in range(5)]
    scales[kept[3]] = 5
    for key in kept:
        yield f(key)


@program
def an_object_without_a_tensor_made_anew(case: Case) -> Seen:
    f = case.fn(lambda x, options: x * options.scale)
    for i in range(4):
        yield f(case.x + i, types.SimpleNamespace(scale=2, names=("a", "b")))


@program
def an_object_that_nobody_looks_at(case: Case) -> Seen:
    f = case.fn(lambda batch: batch.x * batch.scale)
    for i in range(4):
        yield f(Batch(case.x + i, extra={"lock": threading.Lock(), "set": {object()}}))


@program(each_call=True)
def an_object_that_is_looked_at(case: Case) -> Seen:
    f = case.fn(lambda batch: batch.x * len(batch.extra["set"]))
    for i in range(4):
        yield f(Batch(case.x + i, extra={"set": {object() for _ in range(i + 1)}}))


@program(each_call=True)
def an_object_that_is_looked_at_in_a_try(case: Case) -> Seen:
    def f(batch):
        try:
            with batch.extra["lock"]:
                return batch.x * 2
        except BaseException:
            return batch.x

    f = case.fn(f)
    for i in range(4):
        yield f(Batch(case.x + i, extra={"lock": threading.Lock()}))


@program
def an_object_that_is_handed_on(case: Case) -> Seen:
    def f(batch):
        batch.kept = batch.extra["lock"]
        return {"x": batch.x, "lock": batch.extra["lock"]}

    f = case.fn(f)
    for i in range(4):
        batch = Batch(case.x + i, extra={"lock": threading.Lock()})
        made = f(batch)
        lock = batch.extra["lock"]
        yield made["x"], made["lock"] is lock, batch.kept is lock


@program
def a_subclass_of_dict_made_anew(case: Case) -> Seen:
    def f(items):
        items["doubled"] = items.x * 2
        items.note = "seen"
        return items.doubled.sum()

    f = case.fn(f)
    for i in range(4):
        items = Items(x=case.x + i)
        yield f(items), dict(items), vars(items)


@program
def a_subclass_of_list_made_anew(case: Case) -> Seen:
    def f(rows):
        rows.append(rows[0] + rows[1])
        return len(rows), rows.tag

    f = case.fn(f)
    for i in range(4):
        rows = Rows([case.x + i, case.x])
        yield f(rows), list(rows)


@program
def user_dict_made_anew(case: Case) -> Seen:
    def f(batch):
        batch["y"] = batch["x"] * 2
        return batch["y"].sum()

    f = case.fn(f)
    for i in range(4):
        batch = collections.UserDict(x=case.x + i)
        yield f(batch), dict(batch)


@program(states=2)
def an_enum_in_a_fresh_object(case: Case) -> Seen:
    f = case.fn(lambda one: one.x * (2 if one.mode is Mode.DOUBLED else 1))
    for mode in (Mode.PLAIN, Mode.PLAIN, Mode.DOUBLED, Mode.PLAIN, Mode.DOUBLED):
        yield f(types.SimpleNamespace(x=case.x, mode=mode))


@program
def a_module_in_a_fresh_object(case: Case) -> Seen:
    model = case.linear()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    def f(state):
        loss = state.model(state.x).sum()
        loss.backward()
        state.optimizer.step()
        state.optimizer.zero_grad()
        return loss

    f = case.fn(f)
    for i in range(4):
        one = types.SimpleNamespace(model=model, optimizer=sgd, x=case.x + i)
        yield f(one), model.weight


@program
def fresh_objects_in_a_list(case: Case) -> Seen:
    f = case.fn(lambda batches: sum(b.x.sum() * b.scale for b in batches))
    for i in range(4):
        yield f([Batch(case.x + i), Batch(case.x, 3.0)])


@program(states=2)
def more_fresh_objects_in_a_list(case: Case) -> Seen:
    f = case.fn(lambda batches: sum(b.x.sum() * b.scale for b in batches))
    for count in (2, 2, 3, 2, 3):
        yield f([Batch(case.x + i) for i in range(count)])


@program
def a_cycle_among_fresh_objects(case: Case) -> Seen:
    def f(node):
        node.next.x = node.x + 1
        return node.next.next is node

    f = case.fn(f)
    for i in range(4):
        a, b = types.SimpleNamespace(x=case.x + i), types.SimpleNamespace(x=case.x)
        a.next, b.next = b, a
        yield f(a), a.x, b.x


@program
def a_copy_of_a_fresh_object(case: Case) -> Seen:
    def f(batch):
        other = copy.copy(batch)
        other.x = batch.x * 2
        return other

    f = case.fn(f)
    for i in range(4):
        batch = Batch(case.x + i)
        made = f(batch)
        yield made.x, batch.x, made.extra is batch.extra, made.scale


@program
def gradients_to_a_fresh_object(case: Case) -> Seen:
    def f(batch):
        (batch.x * batch.scale).pow(2).sum().backward()
        return batch.x.grad

    f = case.fn(f)
    for i in range(4):
        batch = Batch((case.x + i).requires_grad_())
        yield f(batch), batch.x.grad


@program
def methods_that_change_fresh_objects(case: Case) -> Seen:
    class Meter:
        def __init__(self, x):
            self.total, self.count, self._log = x, 0, []

        def update(self, value):
            self.total, self.count = self.total + value, self.count + 1
            self._log.append(value.shape)

        @property
        def mean(self):
            return self.total / self.count

    def f(x, meter):
        meter.update(x)
        meter.update(x * 2)
        return meter.mean

    f = case.fn(f)
    for i in range(4):
        meter = Meter(case.x)
        yield f(case.x + i, meter), vars(meter)


@program(states=3)
def objects_that_last_and_take_turns(case: Case) -> Seen:
    f = case.fn(lambda x, one: x * one.x.sum())
    a, b = Batch(case.x), Batch(case.x + 1)
    for one in (a, b, a, b, a):
        yield f(case.x, one)
    a.x, b.scale = case.x * 5, 7.0
    for one in (a, b, a, b):
        yield f(case.x, one)


class Pair:
    def __init__(self, k, v):
        self.k, self.v = k, v


_pytree.register_pytree_node(
    _Registered := type("_Registered", (Pair,), {}),
    lambda p: ([p.k, p.v], None),
    lambda parts, _: _Registered(*parts),
)


def _keeping(case: Case, keep: Any, kind: type) -> Seen:
    holder = types.SimpleNamespace(cache=kind(case.x, case.x))
    f = case.fn(lambda x, pair: keep(holder, x, pair))
    for i in range(5):
        pair = kind(case.x + i, case.x * i)
        result = f(case.x + i, pair)
        yield result, holder.cache.k, holder.cache.v, holder.cache is pair, type(holder.cache)


def _argument(holder: Any, x: Any, pair: Any) -> Any:
    holder.cache = pair
    return x + pair.k


def _made(holder: Any, x: Any, pair: Any) -> Any:
    old, holder.cache = holder.cache, type(pair)(x * 2, x + pair.v)
    return old.k + pair.v


@program
def a_registered_argument_is_kept(case: Case) -> Seen:
    yield from _keeping(case, _argument, _Registered)


@program
def a_plain_argument_is_kept(case: Case) -> Seen:
    yield from _keeping(case, _argument, Pair)


@program
def a_registered_object_is_made_and_kept(case: Case) -> Seen:
    yield from _keeping(case, _made, _Registered)


@program
def a_plain_object_is_made_and_kept(case: Case) -> Seen:
    yield from _keeping(case, _made, Pair)


@program(states=2)
def a_kept_object_is_changed_outside(case: Case) -> Seen:
    holder = types.SimpleNamespace(cache=types.SimpleNamespace(k=case.x, scale=2.0))

    def f(x):
        old = holder.cache
        holder.cache = types.SimpleNamespace(k=x, scale=old.scale)
        return old.k * old.scale

    f = case.fn(f)
    for i in range(6):
        yield f(case.x + i), vars(holder.cache)
        if i == 3:
            holder.cache.scale = 5.0
        holder.cache.k = holder.cache.k + 1


def _sharing(case: Case, make: Any, first: Any) -> Seen:
    a, b = types.SimpleNamespace(kept=None), types.SimpleNamespace(kept=None)

    def f(x):
        same = a.kept is b.kept
        before = x if a.kept is None else x + first(a.kept)
        a.kept = b.kept = made = make(x * 2, x)
        return before, same, made

    f = case.fn(f)
    for i in range(4):
        before, same, made = f(case.x + i)
        yield before, same, a.kept is b.kept, made is a.kept, first(made)


@program(each_call=True)
def a_list_kept_in_two_places_and_returned(case: Case) -> Seen:
    yield from _sharing(case, lambda a, b: [a, b], lambda one: one[0])


@program(each_call=True)
def an_object_kept_in_two_places_and_returned(case: Case) -> Seen:
    yield from _sharing(case, Pair, lambda one: one.k)


@program(each_call=True)
def a_dict_kept_in_two_places_and_returned(case: Case) -> Seen:
    yield from _sharing(case, lambda a, b: {"k": a, "v": b}, lambda one: one["k"])


@program(states=2)
def a_list_kept_and_returned(case: Case) -> Seen:
    holder = types.SimpleNamespace(kept=None)

    def f(x):
        before = x if holder.kept is None else x + holder.kept[0]
        holder.kept = [x * 2, x]
        return before, holder.kept

    f = case.fn(f)
    for i in range(5):
        before, kept = f(case.x + i)
        yield before, kept, kept is holder.kept


@program
def a_list_kept_inside_of_a_result(case: Case) -> Seen:
    holder = types.SimpleNamespace(kept=[case.x])

    def f(x):
        holder.kept = [x * 2]
        return Pair(x + 1, holder.kept)

    f = case.fn(f)
    for i in range(4):
        made = f(case.x + i)
        yield made.k, made.v, made.v is holder.kept


@program(states=2)
def one_tensor_in_two_places_of_which_one_is_rebound(case: Case) -> Seen:
    a, b = types.SimpleNamespace(t=case.x), types.SimpleNamespace()
    b.t = a.t

    def f(x):
        result = x + b.t + a.t * 10
        a.t = x * 2
        return result

    f = case.fn(f)
    for i in range(5):
        yield f(case.x + i), a.t, b.t


@program(states=2)
def one_tensor_in_a_tuple_and_in_a_place_that_is_rebound(case: Case) -> Seen:
    a, b = types.SimpleNamespace(t=case.x), types.SimpleNamespace()
    b.t = (a.t, 1)

    def f(x):
        result = x + b.t[0] + a.t * 10
        a.t = x * 2
        return result

    f = case.fn(f)
    for i in range(5):
        yield f(case.x + i), a.t, b.t


@program(each_call=True)
def one_object_in_two_places_of_which_one_is_rebound(case: Case) -> Seen:
    a, b = types.SimpleNamespace(t=Pair(case.x, case.x)), types.SimpleNamespace()
    b.t = a.t

    def f(x):
        result = x + b.t.k + a.t.k * 10
        a.t = Pair(x * 2, x)
        return result

    f = case.fn(f)
    for i in range(5):
        yield f(case.x + i), a.t.k, b.t.k


@program(each_call=True)
def an_existing_list_is_put_into_a_place(case: Case) -> Seen:
    a, b = types.SimpleNamespace(kept=[case.x]), types.SimpleNamespace(kept=[case.x + 1])

    def f(x):
        result = x + a.kept[0]
        a.kept, b.kept = b.kept, a.kept
        return result

    f = case.fn(f)
    one, two = a.kept, b.kept
    for i in range(5):
        yield f(case.x + i), a.kept is one, b.kept is one, a.kept is two
