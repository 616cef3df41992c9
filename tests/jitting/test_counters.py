"""Numbers that a loop or the traced function itself counts up, and that nothing in it reads."""

import dataclasses
import logging
import sys
import types
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import calque

TOTAL = 0
FACTOR = 2


def ones(*shape):
    return torch.ones(*shape, device="jax")


@dataclasses.dataclass
class Data:
    step: int = 0
    scale: float = 2.0


@dataclasses.dataclass(slots=True)
class Slotted:
    step: int = 0
    scale: float = 2.0


class AsAttributes:
    def __init__(self, kind):
        self.holder = kind(step=0, scale=2.0)

    def count(self, by):
        self.holder.step += by

    def run(self, x):
        self.holder.step += len(x)
        return x * self.holder.scale

    def beside(self, x):
        return x * self.holder.scale

    def now(self, name="step", value=None):
        if value is not None:
            setattr(self.holder, name, value)
        return getattr(self.holder, name)


class AsItems:
    def __init__(self, kind):
        self.holder = kind(step=0, scale=2.0)

    def count(self, by):
        self.holder["step"] += by

    def run(self, x):
        self.holder["step"] += len(x)
        return x * self.holder["scale"]

    def beside(self, x):
        return x * self.holder["scale"]

    def now(self, name="step", value=None):
        if value is not None:
            self.holder[name] = value
        return self.holder[name]


STATES = [
    *[(AsAttributes, kind) for kind in (SimpleNamespace, Data, Slotted)],
    (AsItems, dict),
    (AsItems, lambda **items: {"inner": items}["inner"]),
]


@pytest.mark.parametrize(("state", "kind"), STATES)
def test_a_count_that_nothing_reads_brings_no_trace(state, kind):
    inside, outside = state(kind), state(kind)
    run, beside = calque.jit(inside.run), calque.jit(outside.beside)
    for step in range(1, 6):
        if step == 4:
            inside.now("scale", 3.0)
        outside.count(1)
        assert run(ones(2)).tolist() == [3.0 if step > 3 else 2.0] * 2
        assert beside(ones(1)).tolist() == [2.0]
        assert (inside.now(), outside.now()) == (2 * step, step)
    inside.now("step", 100)
    run(ones(2))
    assert inside.now() == 102
    assert len(run.history) == 2 and "scale" in run.history[1]
    assert len(beside.history) == 1


def test_variables_and_attributes_of_classes_are_counted_too():
    global TOTAL
    TOTAL = count = 0

    class Layer(nn.Module):
        made = 0

        def forward(self, x):
            nonlocal count
            global TOTAL
            count += 1
            TOTAL += 2
            type(self).made += 3
            return x * sys.modules[__name__].FACTOR  # so that the module is also reached

    run = calque.jit(Layer())
    for step in range(1, 5):
        assert run(ones(1)).tolist() == [2]
        assert (count, TOTAL, Layer.made) == (step, 2 * step, 3 * step)
    assert len(run.history) == 1


def test_a_function_named_like_pythons_getattr_may_do_anything():
    module = types.ModuleType("own_getattr")
    source = """
class getattr(int):
    def __new__(cls, owner, name, default):
        return int.__new__(cls, 7)

class Meter:
    def run(self, x):
        self.n = getattr(self, "n", 0) + 1
        return x * 2
"""
    sys.modules[module.__name__] = module
    exec(compile(source, f"{__file__}.own", "exec"), vars(module))
    meter = module.Meter()
    run = calque.jit(meter.run)
    for start in (0, 0, 10, 20):
        meter.n = start
        assert run(ones(1)).tolist() == [2]
        assert meter.n == 8


def test_a_name_that_is_called_is_not_one_that_is_read():
    trainer = SimpleNamespace(step=0, weight=nn.Parameter(ones(1)))
    optimizer = torch.optim.SGD([trainer.weight], lr=0.5)

    @calque.jit
    def train(x):
        optimizer.zero_grad()
        (x * trainer.weight).sum().backward()
        optimizer.step()

    for step in range(5):
        trainer.step += 1
        train(ones(1))
        assert trainer.weight.item() == 0.5 - 0.5 * step
    assert len(train.history) == 2, train.history


class Hidden:
    """Counts in ways that each read the count somewhere."""

    base = 10

    def __init__(self):
        self.n, self.stats, self.space = 0, {"n": 0}, SimpleNamespace(n=0)
        self.listed = [self.stats]

    @property
    def twice(self):
        return 2 * self.n

    def by_property(self, x):
        self.n += 1
        return x * self.twice

    def by_computed_key(self, x, key="".join("n")):
        self.stats["n"] += 1
        return x * self.stats[key]

    def by_another_name(self, x):
        self.stats["n"] += 1
        return x * sum(self.listed[0].values())

    def by_text(self, x):
        self.space.n += 10
        return x * len(repr(self.space))

    def by_comparing(self, x):
        self.space.n += 1
        return x * (5 if self.space == SimpleNamespace(n=2) else 1)

    def by_itself(self, x):
        self.n += self.n + 1
        return x

    def set_between(self, x):
        self.n = 4
        self.n += 1
        return x

    def by_class(self, x):
        self.base += 1  # initially an attribute of the class
        return x


@pytest.mark.parametrize("name", [n for n in vars(Hidden) if n.startswith(("by_", "set_"))])
def test_a_count_that_is_read_is_compared(name):
    eager, jitted = Hidden(), Hidden()
    run = calque.jit(getattr(jitted, name))
    for step in range(4):
        if step == 3:
            for one in (eager, jitted):
                one.__dict__.pop("base", None)
                one.n += 1
        expected = getattr(eager, name)(torch.ones(1))
        assert run(ones(1)).tolist() == expected.tolist()
        assert (jitted.n, jitted.stats, jitted.space, jitted.base) == (
            eager.n,
            eager.stats,
            eager.space,
            eager.base,
        )


def test_what_is_no_number_any_more_is_compared():
    state = SimpleNamespace(n=0)

    @calque.jit
    def run(x):
        state.n += 1
        return x

    for value, expected in [(0, 1), (1, 2), (2.5, 3.5), (True, 2), (7, 8)]:
        state.n = value
        run(ones(1))
        assert (type(state.n), state.n) == (type(expected), expected)
    del state.n
    with pytest.raises(AttributeError):
        run(ones(1))


def test_a_number_that_two_objects_tell_is_set_once():
    logger = logging.getLogger("tests.counters")  # shares its manager with the root logger
    logger.setLevel(logging.DEBUG)

    @calque.jit
    def run(x):
        found = logger.isEnabledFor(logging.DEBUG)
        logging.disable(logging.ERROR)
        return x * (2 if found else 1)

    try:
        for expected in (2, 1):
            assert run(ones(1)).tolist() == [expected]
            assert logging.root.manager.disable == logging.ERROR
    finally:
        logging.disable(logging.NOTSET)


def test_a_default_of_a_keyword_is_compared():
    def helper(x, *, factor=2):
        return x * factor

    run = calque.jit(lambda x: helper(x) * 1)
    for factor in (2, 3, 4):
        helper.__kwdefaults__["factor"] = factor
        assert run(ones(1)).tolist() == [factor]


class Noting(nn.Module):
    def __init__(self, read=None):
        super().__init__()
        self.losses, self.notes, self.read = [], {"seen": [], "factor": 2}, read

    def forward(self, x):
        x = doubled(x) * self.notes["factor"]
        return x if self.read is None else x * self.read(self)


def doubled(x):
    doubled.calls += 1
    return x * 2


doubled.calls = 0


def test_lists_that_only_the_loop_fills_are_not_compared():
    doubled.calls = 0
    run = calque.jit(noting := Noting())
    for step in range(4):
        noting.losses.append(step)
        noting.notes["seen"].append({"step": step})
        assert run(ones(1)).tolist() == [4]
    assert doubled.calls == 4
    assert len(run.history) == 1, run.history


def test_lists_that_code_reaches_are_compared():
    kept = Noting()
    alias, length = kept.losses, kept.losses.__len__

    def by_default(module, found=alias):
        return len(found)

    for read in (
        lambda module: len(module.losses),
        lambda module: len(alias),
        lambda module: length(),
        lambda module: len(getattr(module, "".join(("los", "ses")))),
        by_default,
    ):
        kept.read = read
        run = calque.jit(kept)
        for _ in range(3):
            kept.losses.append(0)
            assert run(ones(1)).tolist() == [4 * len(kept.losses)]


def test_lists_of_pytorchs_modules_are_its_own():
    torch.manual_seed(0)
    layer = nn.GRU(2, 2).to("jax")
    run, x = calque.jit(layer), ones(3, 1, 2)
    for _ in range(3):
        assert torch.allclose(run(x)[0], layer(x)[0], atol=1e-5)
        layer._flat_weights[0] = nn.Parameter(layer._flat_weights[0].detach() * 0.5)


def test_items_are_counted_by_computed_keys():
    s = SimpleNamespace(phase="train", n={"train": 0, "val": 0}, seen={}, hits=[0, 0], at=-1)

    @calque.jit
    def step(x):
        s.n[s.phase] += 1
        s.seen[s.phase] = s.seen.get(s.phase, 0) + 1
        s.hits[s.at] += len(x)
        return x * 2 if s.phase == "train" else x

    for phase in ("train", "train", "train", "val", "val", "val", "train"):
        s.phase = phase
        assert step(ones(2))[0].item() == (2 if phase == "train" else 1)
    assert (s.n, s.seen, s.hits) == ({"train": 4, "val": 3}, {"train": 4, "val": 3}, [0, 14])
    traces = len(step.history)
    assert traces <= 6  # each phase has at most two traces
    s.n["val"], s.seen["val"], s.hits[0] = 100, 200, 300
    step(ones(2))
    assert len(step.history) == traces
    s.hits.append(1)
    step(ones(2))
    s.hits[:] = [0.5]
    step(ones(2))
    assert (s.n["train"], s.hits) == (7, [2.5])


def test_items_that_are_counted_and_read_otherwise_are_compared():
    n, hits, key = {"a": 0}, [0, 0], "a"

    @calque.jit
    def by_alias(x):
        n[key] += 1
        found = n
        return x * found["a"]

    @calque.jit
    def by_index(x):
        hits[len(key)] += 1
        return x * hits[1]

    for expected in range(1, 5):
        assert by_alias(ones(1)).item() == expected
        assert by_index(ones(1)).item() == expected


@pytest.mark.parametrize(
    ("first", "later"),
    [(0.0, [9, 2.5, -0.0]), (1e300, [4.0, 1e300, 5.0]), (0, [1.5, True, 3]), ("", ["a", 0])],
)
def test_what_an_addition_has_not_changed_is_added_to(first, later):
    added = {float: 1.0 if first else 0.0, int: 0, str: ""}[type(first)]
    run = []
    for jit in (lambda fn: fn, calque.jit):
        s = SimpleNamespace(total=first, by_name={"a": first}, items=[first], key="a", add=added)

        def step(x, s=s):
            s.total += s.add
            s.by_name[s.key] += s.add
            s.items[0] += s.add

        step, found = jit(step), []
        for value in (first, first, *later):
            s.total = s.by_name["a"] = s.items[0] = value
            try:
                step(ones(1))
            except TypeError:
                found.append("raised")
            found.append(repr((s.total, s.by_name, s.items)))
        run.append(found)
    assert run[1] == run[0]
