"""Python state that training code keeps in tools of the standard library and numpy."""

import array
import bisect
import contextlib
import copy
import dataclasses
import datetime
import decimal
import fractions
import functools
import heapq
import itertools
import pathlib
import queue
import re
import string
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("loops", "jit rows")
Seen = Iterator[Any]


@program(states=2)
def values_of_a_typed_array(case: Case) -> Seen:
    rates = array.array("d", [1.0, 2.0])
    run = case.fn(lambda x: x * rates[0] + len(rates))
    yield run(case.x)
    rates[0] = 3.0
    yield run(case.x)
    yield run(case.x)


@program(each_call=True)
def items_taken_from_a_queue(case: Case) -> Seen:
    waiting: Any = queue.Queue()
    for value in (1.0, 2.0, 3.0):
        waiting.put(value)
    run = case.fn(lambda x: x * waiting.get_nowait())
    for _ in range(3):
        yield run(case.x), waiting.qsize()


@program(each_call=True)
def best_results_in_a_heap(case: Case) -> Seen:
    heap: list[Any] = []
    clock = itertools.count()

    def run(x):
        step = next(clock)
        heapq.heappush(heap, (-step, step * 2.0))
        return x * heap[0][1]

    run = case.fn(run)
    for _ in range(4):
        yield run(case.x), list(heap)


@program(states=3)
def milestones_found_by_bisection(case: Case) -> Seen:
    loop = types.SimpleNamespace(epoch=0, milestones=[1, 3])

    def run(x):
        return x * 0.1 ** bisect.bisect_right(loop.milestones, loop.epoch)

    run = case.fn(run)
    for epoch in (0, 1, 3, 0):
        loop.epoch = epoch
        yield run(case.x)


@program(states=3)
def exact_numbers_in_a_config(case: Case) -> Seen:
    config: dict[str, Any] = {"rate": decimal.Decimal("0.5"), "part": fractions.Fraction(1, 4)}
    run = case.fn(lambda x: x * float(config["rate"]) + float(config["part"]))
    yield run(case.x)
    config["rate"] = decimal.Decimal("0.25")
    yield run(case.x)
    config["part"] = fractions.Fraction(3, 4)
    yield run(case.x)


@program(states=3)
def patterns_paths_and_dates(case: Case) -> Seen:
    m = case.on(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    config = types.SimpleNamespace(
        only=re.compile(r"0\."), out=pathlib.PurePosixPath("a/b"), day=datetime.date(2020, 1, 2)
    )

    def run(x):
        named = [p.sum() for n, p in m.named_parameters() if config.only.match(n)]
        return x * sum(named) + len(config.out.parts) + config.day.day

    run = case.fn(run)
    yield run(case.x)
    config.only = re.compile(r".*weight")
    yield run(case.x)
    config.out /= "c"
    config.day += datetime.timedelta(days=1)
    yield run(case.x)


@program(states=2)
def scalars_of_numpy_in_a_config(case: Case) -> Seen:
    config = {"scale": np.float32(2.0), "size": np.int64(2)}

    def run(x):
        return x[: int(config["size"])] * float(config["scale"])

    run = case.fn(run)
    yield run(case.x)
    config["size"] = np.int64(3)
    yield run(case.x)
    yield run(case.x)


@program(states=2)
def structured_array_of_numpy(case: Case) -> Seen:
    table = np.zeros(2, dtype=[("scale", "f4"), ("on", "?")])
    table["scale"] = 2.0
    run = case.fn(lambda x: x * float(table["scale"][1]) + bool(table["on"][0]))
    yield run(case.x)
    table["on"][0] = True
    yield run(case.x)
    yield run(case.x)


class Counted:
    made: ClassVar[int] = 0

    def __init__(self) -> None:
        type(self).made += 1


@program(each_call=True)
def class_that_counts_its_objects(case: Case) -> Seen:
    case.patch(Counted, "made", 0)

    def run(x):
        Counted()
        return x * Counted.made

    run = case.fn(run)
    for _ in range(3):
        yield run(case.x), Counted.made


class Guarded:
    """Checks what is assigned, and keeps when it was."""

    def __init__(self) -> None:
        object.__setattr__(self, "values", {})

    def __setattr__(self, name: str, value: Any) -> None:
        self.values[name] = value * 2

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "values")[name]
        except KeyError:
            raise AttributeError(name) from None


@program(states=2)
def attributes_that_are_checked_when_assigned(case: Case) -> Seen:
    settings = Guarded()
    settings.gain = 1.0
    run = case.fn(lambda x: x * settings.gain)
    yield run(case.x)
    settings.gain = 2.0
    yield run(case.x)
    yield run(case.x), settings.values


@program(each_call=True)
def attributes_that_the_step_assigns_through_a_check(case: Case) -> Seen:
    settings = Guarded()
    settings.gain = 1.0

    def run(x):
        settings.gain = settings.gain + 1
        return x * settings.gain

    run = case.fn(run)
    for _ in range(3):
        yield run(case.x), dict(settings.values)


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    scale: float
    tags: tuple[str, ...] = ()


@program(states=3)
def frozen_data_class_with_slots(case: Case) -> Seen:
    box = [Point(1.0)]
    run = case.fn(lambda x: x * box[0].scale + len(box[0].tags))
    yield run(case.x)
    box[0] = dataclasses.replace(box[0], scale=2.0)
    yield run(case.x)
    box[0] = dataclasses.replace(box[0], tags=("a",))
    yield run(case.x)


class Negated(nn.Linear):
    def forward(self, x: Any) -> Any:
        return -super().forward(x)


@program(states=3)
def methods_put_on_objects(case: Case) -> Seen:
    m = case.linear()
    run = case.fn(lambda x: m(x))
    yield run(case.rows)
    m.forward = types.MethodType(lambda self, x: x @ self.weight.t(), m)  # type: ignore[method-assign]
    yield run(case.rows)
    del m.forward
    m.__class__ = type(
        "Other", (nn.Linear,), {"forward": lambda self, x: -nn.Linear.forward(self, x)}
    )
    yield run(case.rows)


# The second layer's gradients are not cleared until they have a group: they are created in the
# first call, accumulated in the second, and belong to the optimizer's state in the third.
@program(states=3)
def parameter_groups_added_later(case: Case) -> Seen:
    first, second = case.linear(), case.linear()
    sgd = torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        sgd.zero_grad()
        (first(x) + second(x)).square().mean().backward()
        sgd.step()

    step = case.fn(step)
    for i in range(4):
        if i == 2:
            sgd.add_param_group({"params": list(second.parameters()), "lr": 0.5})
        step(case.rows + i)
        yield list(first.parameters()), list(second.parameters())


@program(states=2)
def state_of_an_optimizer_cleared(case: Case) -> Seen:
    m = case.linear()
    adam = torch.optim.Adam(m.parameters(), lr=0.1)

    def step(x):
        adam.zero_grad()
        m(x).square().mean().backward()
        adam.step()

    step = case.fn(step)
    for i in range(5):
        if i == 3:
            adam.state.clear()
        step(case.rows + i)
        yield list(m.parameters()), [float(s["step"]) for s in adam.state.values()]


# Both models start without gradients, because PyTorch does not copy those of a parameter.
@program(states=3)
def optimizer_copied_with_its_model(case: Case) -> Seen:
    made = {"m": case.linear()}
    made["o"] = torch.optim.SGD(made["m"].parameters(), lr=0.1, momentum=0.9)

    def step(x):
        made["o"].zero_grad()
        made["m"](x).square().mean().backward()
        made["o"].step()

    step = case.fn(step)
    step(case.rows)
    kept = copy.deepcopy(made)
    step(case.rows)
    yield list(made["m"].parameters())
    made.update(kept)
    step(case.rows + 1)
    yield list(made["m"].parameters())
    step(case.rows + 2)
    yield list(made["m"].parameters())


@program(states=2)
def buffers_registered_between_calls(case: Case) -> Seen:
    m = case.linear(3, 3)

    def run(x):
        out = m(x)
        for _, buffer in m.named_buffers():
            out = out + buffer
        return out

    run = case.fn(run)
    yield run(case.rows)
    m.register_buffer("shift", case.tensor([1.0, 2.0, 3.0]))
    yield run(case.rows)
    m.shift += 1
    yield run(case.rows)


@program(states=2)
def value_of_a_thread_and_a_lock(case: Case) -> Seen:
    local, lock = threading.local(), threading.Lock()
    local.scale = 1.0

    def run(x):
        with lock:
            return x * local.scale

    run = case.fn(run)
    yield run(case.x)
    local.scale = 2.0
    yield run(case.x)
    yield run(case.x), lock.locked()


@program
def cleanup_pushed_on_an_exit_stack(case: Case) -> Seen:
    done: list[str] = []

    def run(x):
        with contextlib.ExitStack() as stack:
            stack.callback(done.append, "out")
            stack.callback(done.pop)
            done.append("in")
            return x * len(done)

    run = case.fn(run)
    for _ in range(3):
        yield run(case.x), list(done)
        done.clear()


@program(states=2)
def template_of_names(case: Case) -> Seen:
    table = {"layer_0": 1.0, "layer_1": 3.0}
    config = {"name": string.Template("layer_$i"), "i": 0}
    run = case.fn(lambda x: x * table[config["name"].substitute(config)])
    yield run(case.x)
    config["i"] = 1
    yield run(case.x)
    table["layer_0"] = 5.0
    yield run(case.x)


class Node:
    def __init__(self, value: float, parent: Any = None) -> None:
        self.value, self.children = value, []
        self.parent = None if parent is None else weakref.ref(parent)
        if parent is not None:
            parent.children.append(self)

    @property
    def total(self) -> float:
        return self.value + sum(child.total for child in self.children)

    @property
    def root(self) -> Any:
        return self if self.parent is None else self.parent().root


@program(states=4)
def tree_with_weak_parents(case: Case) -> Seen:
    root = Node(1.0)
    leaf = Node(2.0, Node(3.0, root))
    run = case.fn(lambda x: x * leaf.root.total + leaf.value)
    yield run(case.x)
    leaf.parent().value = 5.0
    yield run(case.x)
    Node(7.0, root)
    yield run(case.x)
    root.children.pop()
    leaf.value = 0.5
    yield run(case.x)


@program(each_call=True)
def memory_of_a_recursive_function(case: Case) -> Seen:
    @functools.cache
    def fib(n: int) -> int:
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    loop = types.SimpleNamespace(n=3)
    run = case.fn(lambda x: x * fib(loop.n))
    for n in (3, 4, 5, 4):
        loop.n = n
        yield run(case.x), fib.cache_info().currsize


@program(each_call=True)
def shuffled_order_of_indices(case: Case) -> Seen:
    order = list(range(3))
    rng = np.random.default_rng(0)

    def run(x):
        rng.shuffle(order)
        return x[order]

    run = case.fn(run)
    for _ in range(3):
        yield run(case.x), list(order)


@program
def parametrization_cached_around_the_calls(case: Case) -> Seen:
    class Scaled(nn.Module):
        factor, calls = 2.0, 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return x * self.factor

    m, scaled = case.linear(), Scaled()
    nn.utils.parametrize.register_parametrization(m, "weight", scaled)
    run = case.fn(lambda x: m(x))
    for _ in range(3):
        yield run(case.rows), scaled.calls
    for _ in range(3):
        with nn.utils.parametrize.cached():
            yield run(case.rows), run(case.rows + 1), scaled.calls
            scaled.factor += 1.0
            loss = run(case.rows).sum() + run(case.rows + 2).sum()
            yield loss, scaled.calls, torch.autograd.grad(loss, list(m.parameters()))


@program(states=2)
def cached_parametrization(case: Case) -> Seen:
    class Doubled(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2

    m = case.linear(3, 3)
    nn.utils.parametrize.register_parametrization(m, "weight", Doubled())

    def run(x):
        with nn.utils.parametrize.cached():
            return m(m(x))

    run = case.fn(run)
    yield run(case.rows)
    yield run(case.rows + 1)
    with torch.no_grad():
        m.parametrizations.weight.original.add_(1.0)
    yield run(case.rows + 1)
