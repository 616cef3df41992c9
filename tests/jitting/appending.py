"""Programs that append to lists, and programs that also read these lists.

A program is a function of a device and of what compiles a function. It returns the function to
call, a function that makes a change before some calls, and a function that returns the lists.
"""

import contextvars
import dataclasses
import functools
import operator
import pickle as serializer
import pprint
import sys
import threading
import weakref
from collections import ChainMap, defaultdict, deque
from copy import deepcopy as copied
from pickle import dumps as pickled
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils import _pytree as pytree

APPENDING = {}
READING = {}

losses = []
ends = deque(maxlen=3)
logs = {"loss": [], "norm": []}


def appending(traces=1):
    """A decorator of programs that are compiled, with at most so many traces."""

    def decorate(make):
        APPENDING[make.__name__] = make, traces
        return make

    return decorate


def reading(make):
    """A decorator of programs that read the lists."""
    READING[make.__name__] = make
    return make


def nothing(i):
    """The change of a program without changes."""


def reset():
    losses.clear()
    ends.clear()
    logs.clear()
    logs.update(loss=[], norm=[])


# Programs that append counts ----------------------------------------------------------------------


@appending(2)
def a_count_in_a_tuple(device, jit):
    class Trainer:
        def __init__(self):
            self.step, self.history = 0, []

        def train(self, x, i):
            self.step += 1
            self.history.append((self.step, x.sum()))

    trainer = Trainer()

    def change(i):
        if i in (3, 5):
            trainer.step = 0
        if i == 4:
            trainer.history = []

    return jit(trainer.train), change, lambda: (trainer.step, trainer.history)


@appending(2)
def a_count_in_a_dict(device, jit):
    state = SimpleNamespace(step=300, log=[])

    def step(x, i):
        entry = {"loss": x.sum(), "step": state.step, "next": [state.step + 1]}
        state.log.append(entry)
        state.step += 2

    return jit(step), nothing, lambda: (state.step, state.log)


@appending(2)
def a_bare_count_beside_a_constant(device, jit):
    k, log = 4, deque(maxlen=20)

    def step(x, i):
        nonlocal k
        k += 1
        log.append(k)
        log.append((5, k, 6, x))

    return jit(step), nothing, lambda: (k, log)


@appending(3)
def a_count_that_was_the_class(device, jit):
    class Trainer:
        step = 5

    trainer = Trainer()
    trainer.log = []

    def step(x, i):
        trainer.step += 1
        trainer.log.append((trainer.step, x))

    def change(i):
        if i in (2, 3):
            trainer.step = 5

    return jit(step), change, lambda: (trainer.step, trainer.log)


# Programs that only append ------------------------------------------------------------------------


@appending()
def a_global_list(device, jit):
    reset()

    def step(x, i):
        loss = (x * 2).sum()
        losses.append(loss.detach())
        return loss

    return jit(step), lambda i: losses.clear() if i == 4 else losses[:-1], lambda: losses


@appending()
def a_closure(device, jit):
    found = []

    def step(x, i):
        found.append(x + 1)
        found.append(x - 1)

    return jit(step), lambda i: found.insert(0, i) if i == 2 else None, lambda: found


@appending()
def an_attribute(device, jit):
    class Trainer:
        def __init__(self):
            self.history = []

        def step(self, x, i):
            self.history.append(x.mean())

    trainer = Trainer()

    def change(i):
        if i in (2, 4):
            trainer.history = trainer.history[1:]

    return jit(trainer.step), change, lambda: trainer.history


@appending()
def constant_keys(device, jit):
    reset()

    def step(x, i):
        logs["loss"].append(x.sum())
        logs["norm"].append(x.square().sum())

    def change(i):
        if i == 3:
            logs["loss"] = []

    return jit(step), change, lambda: logs


@appending()
def computed_keys(device, jit):
    meters = {name: [] for name in ("a", "b")}

    def step(x, i):
        for name, value in zip(("a", "b"), x.unbind()):
            meters[name].append(value)

    def change(i):
        if i == 3:
            for values in meters.values():
                values.clear()

    return jit(step), change, lambda: meters


@appending(2)
def a_defaultdict(device, jit):
    found = defaultdict(list)

    def step(x, i):
        for name in ("a", "b"):
            found[name].append(x * len(name))

    return jit(step), lambda i: found.clear() if i == 3 else None, lambda: dict(found)


@appending(2)
def setdefault(device, jit):
    found = {}

    def step(x, i):
        found.setdefault("loss", []).append(x)

    return jit(step), nothing, lambda: found


@appending()
def a_bounded_deque(device, jit):
    reset()

    def step(x, i):
        ends.append(x + 1)
        ends.append(x + 2)

    return jit(step), lambda i: ends.popleft() if i == 3 else None, lambda: ends


@appending()
def a_full_deque(device, jit):
    values = deque([torch.ones(2, device=device)] * 3, maxlen=3)

    def step(x, i):
        values.append(x + 1)
        values.append(x + 2)
        return x + 1

    return jit(step), nothing, lambda: values


@appending()
def at_the_left(device, jit):
    found = deque()

    def step(x, i):
        found.appendleft(x)
        found.extendleft([x + 1, x + 2])

    return jit(step), lambda i: found.pop() if i == 3 else None, lambda: found


@appending()
def extended(device, jit):
    found = []

    def step(x, i):
        found.extend(x.unbind())
        found.extend((1, "a"))

    return jit(step), nothing, lambda: found


@appending()
def added_in_place(device, jit):
    class Holder:
        values = []

    holder, names = Holder(), {"a": []}
    holder.values = []

    def step(x, i):
        holder.values += [x, 3]
        names["a"] += [x + 1]
        key = "a"
        names[key] += [x + 2]

    return jit(step), nothing, lambda: (holder.values, names)


@appending()
def a_local_name(device, jit):
    holder = SimpleNamespace(values=[], inner={"a": []})

    def step(x, i):
        values = holder.values
        values.append(x)
        if i < 100:
            values += [x + 1]
        inner = holder.inner["a"]
        inner.append(x)

    return jit(step), nothing, lambda: (holder.values, holder.inner)


@appending()
def tuples_and_dicts(device, jit):
    found = []

    def step(x, i):
        found.append((x, x + 1, "text", 2.5))
        found.append({"loss": x.sum(), "inner": [x, None]})

    return jit(step), lambda i: found.pop() if i == 3 else None, lambda: found


@appending(3)
def under_a_flag(device, jit):
    state = SimpleNamespace(keeps=True)
    found = []

    def step(x, i):
        if state.keeps:
            found.append(x)
        return x + 1

    def change(i):
        state.keeps = i % 2 == 0

    return jit(step), change, lambda: found


@appending()
def a_forward_hook(device, jit):
    model, seen = nn.Linear(2, 2, bias=False).to(device), []
    nn.init.ones_(model.weight)
    model.register_forward_hook(lambda module, args, output: seen.append(output.detach()))

    def step(x, i):
        return model(x).sum()

    return jit(step), lambda i: seen.clear() if i == 3 else None, lambda: seen


@appending()
def a_module(device, jit):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, device=device))
            self.outputs = []

        def forward(self, x, i):
            x = x * self.weight
            self.outputs.append(x.detach())
            return x

    model = Model()
    return jit(model), nothing, lambda: model.outputs


@appending()
def a_class(device, jit):
    class Log:
        entries = []

        @classmethod
        def note(cls, x):
            cls.entries.append(x)

    def step(x, i):
        Log.note(x * 2)

    return jit(step), nothing, lambda: Log.entries


@appending(2)
def gradients(device, jit):
    weight, found = torch.ones(2, device=device, requires_grad=True), []

    def step(x, i):
        found.append((x * weight).sum())
        return None

    def change(i):
        if found and i % 2:
            found[-1].backward()

    return jit(step), change, lambda: (found, weight.grad, [one.requires_grad for one in found])


@appending(2)
def sums_of_losses(device, jit):
    weight, found = torch.ones(2, device=device, requires_grad=True), []

    def step(x, i):
        found.append((x * weight).square().sum())

    def change(i):
        if i in (3, 5):
            sum(found[-2:]).backward()
            found.clear()

    return jit(step), change, lambda: (found, weight.grad)


@appending()
def new_objects(device, jit):
    class Meter:
        def __init__(self):
            self.values, self.logs = [], {"a": []}

    holder = SimpleNamespace(meter=Meter())
    kept = []

    def step(x, i):
        holder.meter.values.append(x)
        holder.meter.logs["a"].append(x + 1)

    def change(i):
        if i in (3, 5):
            kept.append(holder.meter)
            holder.meter = Meter()

    return jit(step), change, lambda: [(one.values, one.logs) for one in (*kept, holder.meter)]


@appending(2)
def views_of_state(device, jit):
    weight, found = torch.ones(2, 2, device=device), []

    def step(x, i):
        weight.add_(x)
        found.append(weight.detach())
        found.append(weight[0])
        found.append(weight.clone())

    return jit(step), nothing, lambda: found


@appending(2)
def a_flag_and_a_clear(device, jit):
    state = SimpleNamespace(log=[], keeps=True)

    def step(x, i):
        y = x * 2
        if state.keeps:
            state.log.append(y)
        return y

    def change(i):
        state.keeps = i not in (1, 2, 4)
        if i == 3:
            state.log = []

    return jit(step), change, lambda: state.log


@appending()
def what_is_returned(device, jit):
    found, same = [], []

    def step(x, i):
        y, pair = x + 1, {"y": x + 2}
        found.append(y)
        found.append(pair)
        return y, pair

    step = jit(step)

    def call(x, i):
        y, pair = step(x, i)
        same.append((found[-2] is y, found[-1] is pair))

    return call, nothing, lambda: (found, same)


@appending()
def two_names(device, jit):
    holder = SimpleNamespace(first=[])
    holder.second = holder.first

    def step(x, i):
        holder.first.append(x)
        holder.second.append(x + 1)

    return jit(step), nothing, lambda: (holder.first, holder.first is holder.second)


@appending()
def lists_in_a_list(device, jit):
    found = [[], []]

    def step(x, i):
        found[0].append(x)
        found[1].append(x + 1)

    return jit(step), lambda i: found[1].clear() if i == 3 else None, lambda: found


@appending()
def a_meter(device, jit):
    class Meter:
        def __init__(self):
            self.values, self.count, self.total = [], 0, torch.zeros((), device=device)

        def update(self, value):
            self.values.append(value)
            self.count += 1
            self.total += value

    meters = {"loss": Meter(), "norm": Meter()}

    def step(x, i):
        meters["loss"].update(x.sum())
        meters["norm"].update(x.square().sum())

    def state():
        return [(one.values, one.count, one.total) for one in meters.values()]

    return jit(step), nothing, state


@appending()
def slots_and_data_classes(device, jit):
    class Slotted:
        __slots__ = ("values",)

    @dataclasses.dataclass
    class Data:
        values: list = dataclasses.field(default_factory=list)

    slotted, data = Slotted(), Data()
    slotted.values = []

    def step(x, i):
        slotted.values.append(x)
        data.values.append(x + 1)

    def change(i):
        if i == 3:
            data.values = []

    return jit(step), change, lambda: (slotted.values, data.values)


@appending(2)
def a_hidden_state(device, jit):
    class Cell:
        def __init__(self):
            self.hidden, self.history = torch.zeros(2, device=device), []

        def step(self, x, i):
            self.hidden = self.hidden * 0.5 + x
            self.history.append(self.hidden)

    cell = Cell()
    return jit(cell.step), nothing, lambda: (cell.hidden, cell.history)


@appending(2)
def the_last_one(device, jit):
    class Trainer:
        def __init__(self):
            self.last, self.losses = None, []

        def step(self, x, i):
            loss = (x if self.last is None else x + self.last).sum()
            self.last = loss
            self.losses.append(loss.detach())
            self.losses.append(loss.detach()[None])

    trainer = Trainer()
    return jit(trainer.step), nothing, lambda: (trainer.last, trainer.losses)


@appending(3)
def changed_and_then_replaced(device, jit):
    holder = SimpleNamespace(last=torch.zeros(2, device=device), values=[])

    def step(x, i):
        holder.last.mul_(0.5)  # also changes what the list holds of it
        holder.last = holder.last + x
        holder.values.append(holder.last)
        holder.values.append(holder.last.detach()[0])

    return jit(step), nothing, lambda: (holder.last, holder.values)


@appending(2)
def a_training_step(device, jit):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    history = {"loss": [], "norm": []}

    def step(x, i):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        history["norm"].append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        history["loss"].append(loss.detach())
        return loss

    return jit(step), nothing, lambda: (history, list(model.parameters()))


@appending()
def tensors_that_exist(device, jit):
    weight, found = torch.ones(2, device=device), []

    def step(x, i):
        weight.add_(x)
        found.append(weight)
        found.append(weight.clone())
        found.append(x)

    def state():
        return found, [one is weight for one in found]

    return jit(step), nothing, state


@appending()
def a_nested_dict(device, jit):
    found = {"train": {"loss": [], "steps": 0}, "best": None}

    def step(x, i):
        found["train"]["loss"].append(x)
        found["train"]["steps"] += 1

    return jit(step), nothing, lambda: found


@appending()
def other_items_are_read(device, jit):
    found = {"values": [], "scale": 2.0}

    def step(x, i):
        found["values"].append(x * found["scale"])

    return jit(step), nothing, lambda: found


@appending()
def in_an_error(device, jit):
    found = []

    def step(x, i):
        found.append(x)
        found.append(x.sum())

    step = jit(step)

    def call(x, i):
        try:
            step(x if i != 3 else None, i)
        except (AttributeError, TypeError):
            del found[6:]  # eagerly, the first item is appended

    return call, nothing, lambda: found


@appending()
def a_new_dict(device, jit):
    holder = SimpleNamespace(logs={"a": [], "b": []})

    def step(x, i):
        holder.logs["a"].append(x)
        holder.logs["b"].append(x + 1)

    kept = []

    def change(i):
        if i == 3:
            kept.append(holder.logs)
            holder.logs = {"a": [], "b": []}

    return jit(step), change, lambda: (holder.logs, kept)


@appending()
def beside_a_dict_argument(device, jit):
    found = []

    def step(x, i):
        batch(x={"x": x, "list": [x]})

    def inner(x):
        found.append(x["x"] + x["list"][0])

    batch = jit(inner)
    return step, nothing, lambda: found


# Programs that also read --------------------------------------------------------------------------


def _reads(read, name):
    """Returns a program that reads a list and appends to it."""

    def make(device, jit):
        class Holder:
            def __init__(self):
                self.items, self.seen = [torch.ones(2, device=device)], None

        holder = Holder()

        def step(x, i):
            holder.items.append(x + 1)
            return read(holder, x)

        return (
            jit(step),
            lambda i: holder.items and i == 3 and holder.items.pop(0),
            lambda: holder.items,
        )

    READING[name] = make


_WAYS = {
    "length": lambda h, x: x * len(h.items),
    "truth": lambda h, x: x * 2 if h.items[1:] else x,
    "not": lambda h, x: x * 2 if not h.items[2:] else x,
    "last": lambda h, x: h.items[-2] + x,
    "part": lambda h, x: sum(h.items[-2:]),
    "iteration": lambda h, x: [y * 2 for y in h.items],
    "sum": lambda h, x: sum(h.items),
    "stack": lambda h, x: torch.stack(h.items).mean(),
    "cat": lambda h, x: torch.cat(h.items),
    "copy": lambda h, x: h.items.copy(),
    "list": lambda h, x: list(h.items),
    "tuple": lambda h, x: (*h.items, x),
    "passed": lambda h, x: torch.broadcast_tensors(*h.items),
    "reversed": lambda h, x: [y + 1 for y in reversed(h.items)],
    "enumerated": lambda h, x: [y * n for n, y in enumerate(h.items)],
    "zipped": lambda h, x: [a + b for a, b in zip(h.items, h.items[1:])],
    "added": lambda h, x: h.items + [x],
    "added to": lambda h, x: [x] + h.items,
    "repeated": lambda h, x: h.items * 2,
    "popped": lambda h, x: h.items.pop(),
    "popped first": lambda h, x: h.items.pop(0),
    "inserted": lambda h, x: h.items.insert(0, x),
    "inserted late": lambda h, x: h.items.insert(2, x),
    "deleted": lambda h, x: h.items.__delitem__(0),
    "set": lambda h, x: h.items.__setitem__(0, x),
    "turned": lambda h, x: h.items.reverse(),
    "cleared": lambda h, x: h.items.clear(),
    "returned": lambda h, x: h.items,
    "own length": lambda h, x: x * h.items.__len__(),
    "unbound": lambda h, x: x * list.__len__(h.items),
    "getattr": lambda h, x: x * len(h.items),
    "computed": lambda h, x: x * len(getattr(h, "it" + "ems")),
    "vars": lambda h, x: x * len(vars(h)["items"]),
    "dict": lambda h, x: x * len(h.__dict__["items"]),
    "eval": lambda h, x: x * eval("len(h.items)", {"h": h}),
    "matched": lambda h, x: x * _matched(h.items),
    "mapped": lambda h, x: list(map(torch.neg, h.items)),
    "any": lambda h, x: x * 2 if any(y is x for y in h.items) else x,
    "equal": lambda h, x: x * (h.items == h.items[:1]) if len(h.items) == 1 else x,
    "text": lambda h, x: x * len(str([0 for _ in h.items])),
    "iterator": lambda h, x: next(iter(h.items)) + x,
    "star": lambda h, x: max([1, *(2 for _ in h.items)]) * x,
    "both": lambda h, x: (h.items.append(x), x * len(h.items))[1],
    "added in place": lambda h, x: _added(h, x),
    "alias": lambda h, x: _alias(h, x),
    "inner function": lambda h, x: (lambda: x * len(h.items))(),
    "later": lambda h, x: setattr(h, "seen", h.items) or x * (1 if h.seen is None else len(h.seen)),
    "method": lambda h, x: _after(h.items.append, x),
}


def _matched(values):
    match values:
        case [_]:
            return 1
        case [_, _]:
            return 2
        case _:
            return 3


def _added(holder, x):
    values = holder.items
    values += values[:1]
    return x * len(values)


def _alias(holder, x):
    values = holder.items
    values.append(x)
    return x * len(values)


def _after(append, x):
    append(x)
    return x * len(append.__self__)


for _name, _read in _WAYS.items():
    _reads(_read, _name)


@reading
def a_count_that_is_read(device, jit):
    trainer = SimpleNamespace(step=0, log=[])

    def step(x, i):
        trainer.step += 1
        trainer.log.append((trainer.step, x))
        return x * 2 if trainer.step % 3 == 0 else x

    return jit(step), nothing, lambda: (trainer.step, trainer.log)


@reading
def a_count_in_a_full_deque(device, jit):
    trainer = SimpleNamespace(step=0, log=deque(maxlen=3))

    def step(x, i):
        trainer.step += 1
        trainer.log.append((trainer.step, x))
        trainer.log.append(trainer.step)

    return jit(step), nothing, lambda: (trainer.step, trainer.log)


@reading
def a_second_name(device, jit):
    holder = SimpleNamespace(first=[])
    holder.second = holder.first

    def step(x, i):
        holder.first.append(x)
        return x * len(holder.second)

    def change(i):
        if i == 3:
            holder.second = []

    return jit(step), change, lambda: (holder.first, holder.second)


@reading
def a_second_name_later(device, jit):
    holder = SimpleNamespace(first=[], second=[torch.ones(2, device=device)])

    def step(x, i):
        holder.first.append(x)
        return sum(holder.second) + x

    def change(i):
        if i == 3:
            holder.second = holder.first
        if i == 5:
            holder.first, holder.second = [], [torch.ones(2, device=device)]

    return jit(step), change, lambda: (holder.first, holder.second)


@reading
def replaced_by_one_that_is_read(device, jit):
    holder = SimpleNamespace(first=[], second=[torch.ones(2, device=device)])

    def step(x, i):
        holder.first.append(x)
        return sum(holder.second) + x

    def change(i):
        if i == 3:
            holder.first = holder.second

    return jit(step), change, lambda: (holder.first, holder.second)


@reading
def the_dict_is_read(device, jit):
    found = {"a": [], "b": []}

    def step(x, i):
        found["a"].append(x)
        return [x * len(values) for values in found.values()]

    return jit(step), nothing, lambda: found


@reading
def an_item_of_the_dict_is_read(device, jit):
    found = {"a": [], "b": []}

    def step(x, i):
        found["a"].append(x)
        found["b"].append(x + 1)
        return x * len(found.get("b"))

    return jit(step), nothing, lambda: found


@reading
def the_outer_list_is_read(device, jit):
    found = [[], []]

    def step(x, i):
        found[-1].append(x)
        found.append([])

    return jit(step), lambda i: found.pop() if i == 4 else None, lambda: found


@reading
def a_tuple_holds_it(device, jit):
    values = []
    pair = (values, 1)

    def step(x, i):
        values.append(x)
        return x * len(pair[0])

    return jit(step), nothing, lambda: values


@reading
def a_default_holds_it(device, jit):
    values = []

    def step(x, i, seen=values):
        values.append(x)
        return x * len(seen)

    return jit(step), nothing, lambda: values


@reading
def a_property_reads_it(device, jit):
    class Log:
        def __init__(self):
            self.entries = []

        @property
        def size(self):
            return len(self.entries)

        def __len__(self):
            return len(self.entries)

    log = Log()

    def step(x, i):
        log.entries.append(x)
        return x * log.size * len(log)

    return jit(step), nothing, lambda: log.entries


@reading
def a_data_class_is_compared(device, jit):
    @dataclasses.dataclass
    class Log:
        entries: list

    one, other = Log([]), Log([])

    def step(x, i):
        one.entries.append(1)
        return x * (2 if one == other else 3)

    return jit(step), lambda i: other.entries.append(1) if i < 3 else None, lambda: one.entries


@reading
def a_namespace_is_printed(device, jit):
    space = SimpleNamespace(entries=[])

    def step(x, i):
        space.entries.append(1)
        return x * len(repr(space))

    return jit(step), nothing, lambda: space.entries


@reading
def a_namespace_is_compared(device, jit):
    space, other = SimpleNamespace(entries=[]), SimpleNamespace(entries=[1, 1])

    def step(x, i):
        space.entries.append(1)
        return x * (2 if space == other else 3)

    return jit(step), nothing, lambda: space.entries


@reading
def a_library_prints_it(device, jit):
    @dataclasses.dataclass
    class Log:
        entries: list

    log = Log([])

    def step(x, i):
        log.entries.append(1)
        return x * len(pprint.pformat(log))

    return jit(step), nothing, lambda: log.entries


@reading
def it_is_pickled(device, jit):
    @dataclasses.dataclass
    class Log:
        entries: list

        def __reduce__(self):
            return list, (self.entries,)

    log = Log([])

    def step(x, i):
        log.entries.append(1)
        return x * len(serializer.dumps(log))

    return jit(step), nothing, lambda: log.entries


@reading
def another_name_pickles_it(device, jit):
    log = Picklable()

    def step(x, i):
        log.entries.append(1)
        return x * len(pickled(log))

    return jit(step), nothing, lambda: log.entries


class Picklable:
    def __init__(self):
        self.entries = []


@reading
def it_is_copied(device, jit):
    class Log:
        def __init__(self):
            self.entries = []

    log = Log()

    def step(x, i):
        log.entries.append(1)
        return x * len(copied(log).entries)

    return jit(step), nothing, lambda: log.entries


@reading
def a_registered_class(device, jit):
    @dataclasses.dataclass
    class Log:
        entries: list

    pytree.register_dataclass(Log)
    log, flat = Log([]), pytree.tree_flatten

    def step(x, i):
        log.entries.append(x)
        return sum(flat(log)[0]) * 2

    return jit(step), nothing, lambda: log.entries


@reading
def a_getter(device, jit):
    found, get = {"a": []}, operator.itemgetter("a")

    def step(x, i):
        found["a"].append(x)
        return x * len(get(found))

    return jit(step), nothing, lambda: found


@reading
def a_chain_of_dicts(device, jit):
    found = {"a": []}
    chain = ChainMap({}, found)

    def step(x, i):
        found["a"].append(x)
        return x * len(chain["a"])

    return jit(step), nothing, lambda: found


@reading
def a_helper(device, jit):
    values = []

    def add(to, x):
        to.append(x)
        return len(to)

    def step(x, i):
        return x * add(values, x)

    return jit(step), nothing, lambda: values


@reading
def a_context_variable(device, jit):
    values, variable = [], contextvars.ContextVar("values")
    variable.set(values)

    def step(x, i):
        values.append(x)
        return x * len(variable.get())

    return jit(step), nothing, lambda: values


@reading
def a_local_of_a_thread(device, jit):
    values, local = [], threading.local()
    local.seen = values

    def step(x, i):
        values.append(x)
        return x * len(local.seen)

    return jit(step), nothing, lambda: values


@reading
def a_partial(device, jit):
    values = []
    size = functools.partial(len, values)

    def step(x, i):
        values.append(x)
        return x * size()

    return jit(step), nothing, lambda: values


@reading
def a_cached_result(device, jit):
    values = []

    @functools.lru_cache
    def cached():
        return values

    cached()

    def step(x, i):
        values.append(x)
        return x * len(cached())

    return jit(step), nothing, lambda: values


@reading
def a_weak_reference(device, jit):
    values = deque()
    weak = weakref.ref(values)

    def step(x, i):
        values.append(x)
        return x * len(weak())

    return jit(step), nothing, lambda: values


@reading
def a_frame_is_read(device, jit):
    values = []

    def size():
        return len(sys._getframe(1).f_locals["values"])

    def step(x, i):
        values.append(x)
        return x * size()

    return jit(step), nothing, lambda: values


@reading
def a_namespace_with_a_dict_is_printed(device, jit):
    space = SimpleNamespace(logs={"a": [], "b": 1})

    def step(x, i):
        space.logs["a"].append(1)
        return x * len(repr(space)) * space.logs["b"]

    return jit(step), nothing, lambda: space.logs


@reading
def a_namespace_is_an_argument(device, jit):
    space = SimpleNamespace(entries=[])

    def inside(x, given):
        space.entries.append(1)
        return x * len(repr(given))

    inner = jit(inside)
    return lambda x, i: inner(x, space), nothing, lambda: space.entries


@reading
def globals_are_read(device, jit):
    reset()

    def step(x, i):
        losses.append(x)
        return x * len(globals()["losses"])

    return jit(step), nothing, lambda: losses


@reading
def the_module_is_read(device, jit):
    reset()

    def step(x, i):
        losses.append(x)
        return x * len(sys.modules[__name__].losses)

    return jit(step), nothing, lambda: losses


@reading
def a_deque_is_turned(device, jit):
    values = deque()

    def step(x, i):
        values.append(x)
        values.rotate(1)

    return jit(step), nothing, lambda: values


@reading
def both_ends(device, jit):
    values = deque()

    def step(x, i):
        values.append(x)
        values.appendleft(x + 1)

    return jit(step), nothing, lambda: values


@reading
def a_full_deque_of_numbers(device, jit):
    values = deque([1, 1, 1], maxlen=3)

    def step(x, i):
        values.append(1)
        values.append(2)
        return x

    def change(i):
        values.extend([1, 1, 1] if i % 2 else [2, 1, 2])

    return jit(step), change, lambda: values


@reading
def an_iterator_holds_it(device, jit):
    values = []
    iterator = iter(values)

    def step(x, i):
        values.append(x)
        return next(iterator) * 2

    return jit(step), nothing, lambda: values


@reading
def a_method_holds_it(device, jit):
    values = []
    append = values.append

    def step(x, i):
        append(x)
        values.append(x + 1)
        return x * len(append.__self__)

    return jit(step), nothing, lambda: values


@reading
def a_list_argument(device, jit):
    values = []

    def step(x, i):
        return inner(x, values)

    def inside(x, seen):
        seen.append(x)
        return x * len(seen)

    inner = jit(inside)
    return step, lambda i: values.clear() if i == 4 else None, lambda: values


@reading
def an_argument_that_is_the_list(device, jit):
    values, other = [], [torch.ones(2, device=device)]

    def inside(x, seen):
        values.append(x)
        return x * len(seen)

    inner = jit(inside)

    def step(x, i):
        return inner(x, values if i in (2, 3) else other)

    return step, nothing, lambda: values


@reading
def an_argument_that_is_the_new_list(device, jit):
    holder = SimpleNamespace(values=[])
    other = [torch.ones(2, device=device)]

    def inside(x, seen):
        holder.values.append(x)
        return x * len(seen)

    inner = jit(inside)

    def step(x, i):
        return inner(x, holder.values if i == 4 else other)

    def change(i):
        if i == 3:
            holder.values = []

    return step, change, lambda: holder.values


@reading
def a_count_of_its_own(device, jit):
    class Log:
        def __init__(self):
            self.entries, self.steps = [], 0

    log = Log()

    def step(x, i):
        log.steps += 1
        log.entries.append(log.steps)
        return x

    return jit(step), nothing, lambda: (log.entries, log.steps)


@reading
def a_subclass(device, jit):
    class Log(list):
        def append(self, value):
            super().append(value * len(self))

    entries = Log()

    def step(x, i):
        entries.append(x)

    return jit(step), nothing, lambda: list(entries)


@reading
def another_class_later(device, jit):
    class Counting(list):
        def append(self, value):
            super().append(value * len(self))

    holder = SimpleNamespace(values=[])

    def step(x, i):
        holder.values.append(x)

    def change(i):
        if i == 3:
            holder.values = Counting([1])

    return jit(step), change, lambda: list(holder.values)


@reading
def a_backward_hook_reads_it(device, jit):
    weight, values = torch.ones(2, device=device, requires_grad=True), []

    def step(x, i):
        y = x * weight
        values.append(x)
        y.register_hook(lambda gradient: gradient * len(values))
        y.sum().backward()

    return jit(step), nothing, lambda: (values, weight.grad)


@reading
def a_list_made_by_the_factory(device, jit):
    shared = []
    found = defaultdict(lambda: shared)

    def step(x, i):
        found["a"].append(x)
        return x * len(shared)

    return jit(step), nothing, lambda: shared


@reading
def one_of_two(device, jit):
    state = SimpleNamespace(first=[], second=[], flag=True)

    def step(x, i):
        (state.first if state.flag else state.second).append(x)
        chosen = state.first or state.second
        chosen.append(x + 1)

    def change(i):
        state.flag = i % 2 == 0

    return jit(step), change, lambda: (state.first, state.second)


@reading
def added_to_by_a_tensor(device, jit):
    holder = SimpleNamespace(values=[1.0])

    def step(x, i):
        holder.values.append(2.0)
        total = holder.values
        total += [3.0]
        return x + torch.tensor(total, device=device).sum()

    return jit(step), nothing, lambda: holder.values


@reading
def a_closure_is_searched(device, jit):
    values = []

    def note(x):
        values.append(x)

    def step(x, i):
        note(x)
        return x * len(note.__closure__[0].cell_contents)

    return jit(step), nothing, lambda: values


@reading
def an_inner_dict_is_read(device, jit):
    logs = {"run_a": {"list_a": []}}

    def step(x, i):
        logs["run_a"]["list_a"].append(x)
        inner = logs["run_a"]
        return [x * len(one) for one in inner.values()]

    return jit(step), nothing, lambda: logs


@reading
def an_inner_dict_is_compared(device, jit):
    logs, other = {"run_a": {"list_a": []}}, {"list_a": [1, 1, 1]}

    def step(x, i):
        logs["run_a"]["list_a"].append(1)
        return x * (2 if logs["run_a"] == other else 3)

    return jit(step), nothing, lambda: logs


@reading
def computed_keys_at_the_other_end(device, jit):
    logs, keys = {"run_a": deque(), "run_b": deque()}, ["run_a"]

    def step(x, i):
        for key in keys:
            logs[key].appendleft(x)
        logs["run_a"].append(x + 1)
        return x * len(logs["run_b"])

    return jit(step), nothing, lambda: logs
