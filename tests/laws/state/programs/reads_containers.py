"""L1: values read from containers, of Python's own and of its library."""

import argparse
import collections
import enum
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("reads", "jit rows")
Seen = Iterator[Any]


@program(states=3)
def attribute_of_an_argparse_namespace(case: Case) -> Seen:
    args = argparse.Namespace(scale=2.0, name="run")
    f = case.fn(lambda x: x * args.scale)
    for args.scale in (2.0, 3.0, 5.0, 2.0):
        yield f(case.x)


@program(states=3)
def attribute_of_a_simple_namespace(case: Case) -> Seen:
    cfg = types.SimpleNamespace(model=types.SimpleNamespace(width=1, act="relu"))

    def f(x):
        return getattr(torch, cfg.model.act)(x - cfg.model.width)

    f = case.fn(f)
    yield f(case.x)
    cfg.model.width = 2
    yield f(case.x)
    cfg.model.act = "tanh"
    yield f(case.x)
    cfg.model = types.SimpleNamespace(width=1, act="relu")
    yield f(case.x)


@program(states=3)
def membership_in_a_set(case: Case) -> Seen:
    enabled = {"relu", "bias"}
    f = case.fn(lambda x: (x.relu() if "relu" in enabled else x) + ("bias" in enabled))
    yield f(-case.x)
    enabled.remove("relu")
    yield f(-case.x)
    enabled.clear()
    yield f(-case.x)
    enabled |= {"relu", "bias"}
    yield f(-case.x)


@program(states=3)
def length_of_a_set_of_frozensets(case: Case) -> Seen:
    seen = {frozenset({1, 2}), frozenset({3})}
    f = case.fn(lambda x: x * sum(len(s) for s in seen))
    yield f(case.x)
    seen.add(frozenset({4, 5, 6}))
    yield f(case.x)
    seen.discard(frozenset({3}))
    yield f(case.x)


@program(states=3)
def a_frozenset_replaced(case: Case) -> Seen:
    holder = {"skip": frozenset({0})}
    f = case.fn(lambda x: sum(x[i] for i in range(3) if i not in holder["skip"]))
    for holder["skip"] in (frozenset({0}), frozenset({1}), frozenset(), frozenset({0})):
        yield f(case.x)


@program(states=3)
def ends_of_a_deque(case: Case) -> Seen:
    window = collections.deque([1.0, 2.0, 3.0], maxlen=3)
    f = case.fn(lambda x: x * window[0] + window[-1] + len(window))
    yield f(case.x)
    window.append(4.0)
    yield f(case.x)
    window.rotate(1)
    yield f(case.x)
    window.rotate(-1)
    yield f(case.x)


@program(states=3)
def maxlen_of_a_deque(case: Case) -> Seen:
    cfg = {"recent": collections.deque([1, 2], maxlen=4)}
    f = case.fn(lambda x: x * (cfg["recent"].maxlen or 0))
    yield f(case.x)
    cfg["recent"] = collections.deque([1, 2], maxlen=7)
    yield f(case.x)
    cfg["recent"] = collections.deque([1, 2])
    yield f(case.x)


@program(states=3)
def counts_of_a_counter(case: Case) -> Seen:
    labels = collections.Counter("aab")
    f = case.fn(lambda x: x * labels["a"] / labels.total())
    yield f(case.x)
    labels.update("bb")
    yield f(case.x)
    labels["a"] += 5
    yield f(case.x)


@program(states=3)
def most_common_of_a_counter(case: Case) -> Seen:
    votes = collections.Counter({"neg": 1, "sin": 1})
    f = case.fn(lambda x: getattr(torch, votes.most_common(1)[0][0])(x))
    yield f(case.x)
    votes["sin"] += 1
    yield f(case.x)
    votes["neg"] += 2
    yield f(case.x)


@program(states=3)
def lookup_in_a_chain_map(case: Case) -> Seen:
    defaults, own = {"scale": 2.0, "shift": 1.0}, {}
    options = collections.ChainMap(own, defaults)
    f = case.fn(lambda x: x * options["scale"] + options["shift"])
    yield f(case.x)
    own["scale"] = 4.0
    yield f(case.x)
    defaults["shift"] = 0.5
    yield f(case.x)
    own.clear(), defaults.update(shift=1.0)
    yield f(case.x)


@program(states=2)
def maps_of_a_chain_map_reordered(case: Case) -> Seen:
    options = collections.ChainMap({"scale": 2.0}, {"scale": 3.0})
    f = case.fn(lambda x: x * options["scale"])
    yield f(case.x)
    options.maps.reverse()
    yield f(case.x)
    options.maps.reverse()
    yield f(case.x)


@program(states=2)
def order_of_an_ordered_dict(case: Case) -> Seen:
    stages = collections.OrderedDict(double=lambda x: x * 2, shift=lambda x: x + 1)

    def f(x):
        for stage in stages.values():
            x = stage(x)
        return x

    f = case.fn(f)
    for _ in range(4):
        yield f(case.x)
        stages.move_to_end(next(iter(stages)))


@program(states=2)
def order_of_the_keys_of_a_dict(case: Case) -> Seen:
    stages = {"relu": torch.relu, "neg": torch.neg}

    def f(x):
        for stage in stages.values():
            x = stage(x)
        return x

    f = case.fn(f)
    for _ in range(4):
        yield f(case.x)
        first = next(iter(stages))
        stages[first] = stages.pop(first)


@program(states=3)
def first_key_of_a_dict(case: Case) -> Seen:
    weights = {"a": 1.0, "b": 2.0}
    f = case.fn(lambda x: x * weights[next(iter(weights))])
    yield f(case.x)
    weights["a"] = weights.pop("a")
    yield f(case.x)
    weights["z"] = 3.0
    del weights["b"]
    yield f(case.x)


@program(states=3)
def length_and_keys_of_a_dict(case: Case) -> Seen:
    tasks = {"a": 1.0}
    f = case.fn(lambda x: x / len(tasks) + sum(map(len, tasks)))
    yield f(case.x)
    tasks["bcd"] = 1.0
    yield f(case.x)
    tasks["efghi"] = tasks.pop("bcd")
    yield f(case.x)


@program(states=3)
def a_default_dict_that_has_the_key(case: Case) -> Seen:
    gains = collections.defaultdict(lambda: 1.0, head=2.0)
    f = case.fn(lambda x: x * gains["head"])
    for gains["head"] in (2.0, 3.0, 4.0, 2.0):
        yield f(case.x)


@program(states=3)
def the_factory_of_a_default_dict(case: Case) -> Seen:
    gains = collections.defaultdict(lambda: 1.0)
    f = case.fn(lambda x: x * gains.default_factory())
    yield f(case.x)
    gains.default_factory = lambda: 2.0
    yield f(case.x)
    gains.default_factory = float
    yield f(case.x)


class Phase(enum.Enum):
    WARMUP = 1
    MAIN = 2
    COOLDOWN = 3


@program(states=3)
def a_member_of_an_enum(case: Case) -> Seen:
    state = types.SimpleNamespace(phase=Phase.WARMUP)

    def f(x):
        if state.phase is Phase.WARMUP:
            return x * 0.1
        return x * state.phase.value

    f = case.fn(f)
    for state.phase in (Phase.WARMUP, Phase.MAIN, Phase.COOLDOWN, Phase.WARMUP):
        yield f(case.x)


class Flags(enum.Flag):
    SQUARE = 1
    NEGATE = 2


@program(states=3)
def flags_of_an_enum(case: Case) -> Seen:
    state = {"flags": Flags.SQUARE}

    def f(x):
        x = x * x if Flags.SQUARE in state["flags"] else x
        return -x if state["flags"] & Flags.NEGATE else x

    f = case.fn(f)
    for state["flags"] in (Flags.SQUARE, Flags.SQUARE | Flags.NEGATE, Flags(0), Flags.SQUARE):
        yield f(case.x)


@program(states=3)
def an_attribute_of_an_enum_member(case: Case) -> Seen:
    case.undo(lambda: delattr(Phase.MAIN, "gain"))
    Phase.MAIN.gain = 2.0
    f = case.fn(lambda x: x * Phase.MAIN.gain)
    for Phase.MAIN.gain in (2.0, 3.0, 4.0):
        yield f(case.x)


@program(states=3)
def weak_dict_by_its_keys(case: Case) -> Seen:
    class Layer:
        pass

    layer, gains = Layer(), weakref.WeakKeyDictionary()
    gains[layer] = 2.0
    f = case.fn(lambda x: x * gains[layer])
    for gains[layer] in (2.0, 2.0, 2.0, 3.0, 4.0):
        yield f(case.x)


@program(states=3)
def weak_dict_by_its_values(case: Case) -> Seen:
    class Layer:
        def __init__(self, gain):
            self.gain = gain

    one, other = Layer(2.0), Layer(3.0)
    layers = weakref.WeakValueDictionary(a=one)
    f = case.fn(lambda x: x * layers["a"].gain)
    for _ in range(3):
        yield f(case.x)
    layers["a"] = other
    yield f(case.x)
    other.gain = 5.0
    yield f(case.x)


@program(states=2)
def weak_set_that_grows(case: Case) -> Seen:
    class Layer:
        gain = 2.0

    layers = [Layer()]
    live = weakref.WeakSet(layers)
    f = case.fn(lambda x: x * sum(layer.gain for layer in live))
    for _ in range(3):
        yield f(case.x)
    layers.append(Layer())
    live.add(layers[-1])
    yield f(case.x)
