"""Containers and objects of tensors that the loop replaces between calls."""

import collections
import dataclasses
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("exchanged_containers", "jit rows")
Seen = Iterator[Any]
_Pair = collections.namedtuple("_Pair", "x y")


@dataclasses.dataclass
class _Batch:
    x: Any
    y: Any
    n: int = 1


def _run(
    case: Case, make: Callable[[Any, Any], Any], read: Callable[[Any, Any], Any], n: int = 6
) -> Seen:
    """Yields what calls return and leave; `make` makes what the loop stores before each call."""
    held: Any = types.SimpleNamespace(batch=None, last=None)
    f = case.fn(lambda x: read(held, x))
    for i in range(n):
        batch = held.batch = make(case.x, i)
        result = f(case.x + i)
        yield result, held.batch, held.batch is batch, result is batch, held.last is batch


@program
def dict_of_tensors_replaced(case: Case) -> Seen:
    read = lambda held, x: held.batch["x"] * x + held.batch["y"]
    yield from _run(case, lambda x, i: {"x": x * i, "y": x + i}, read)


@program
def dataclass_of_tensors_replaced(case: Case) -> Seen:
    read = lambda held, x: held.batch.x * x + held.batch.y
    yield from _run(case, lambda x, i: _Batch(x * i, x + i), read)


@program
def tuple_of_tensors_replaced(case: Case) -> Seen:
    read = lambda held, x: held.batch[0] * x + held.batch[1]
    yield from _run(case, lambda x, i: (x * i, x + i), read)


@program
def named_tuple_of_tensors_replaced(case: Case) -> Seen:
    read = lambda held, x: held.batch.x * x + held.batch.y
    yield from _run(case, lambda x, i: _Pair(x * i, x + i), read)


@program
def nested_containers_of_tensors_replaced(case: Case) -> Seen:
    def read(held, x):
        batch = held.batch["in"]
        return batch.x["ids"] + batch.y[0] * batch.y[1][0] * batch.y[1][1] + x

    make = lambda x, i: {"in": _Batch({"ids": x * i}, [x + i, (x - i, 2)])}
    yield from _run(case, make, read)


@program
def tensor_of_a_replaced_dict_written_in_place(case: Case) -> Seen:
    def read(held, x):
        held.batch["x"].add_(x)
        return held.batch["y"] * 2

    yield from _run(case, lambda x, i: {"x": x * i, "y": x + i}, read)


@program
def attribute_of_a_replaced_object_assigned(case: Case) -> Seen:
    def read(held, x):
        held.batch.y = held.batch.x + x
        held.batch.n += 1
        return held.batch.y

    yield from _run(case, lambda x, i: _Batch(x * i, x + i), read)


@program(each_call=True)
def replaced_tuple_returned(case: Case) -> Seen:
    yield from _run(case, lambda x, i: (x * i, x + i), lambda held, x: held.batch)


@program(each_call=True)
def replaced_tuple_kept(case: Case) -> Seen:
    def keep(held, x):
        held.last = held.batch
        return x * 2

    yield from _run(case, lambda x, i: (x * i, x + i), keep)


@program(each_call=True)
def replaced_dict_with_one_tensor_twice(case: Case) -> Seen:
    def make(x, i):
        first = x * i
        return {"x": first, "y": first if i in (1, 4) else x + i}

    def read(held, x):
        held.batch["x"].add_(1)
        return held.batch["x"] * held.batch["y"]

    yield from _run(case, make, read, 7)


@program(each_call=True)
def replaced_dict_with_other_shapes_and_numbers(case: Case) -> Seen:
    make = lambda x, i: {"x": x if i % 3 else x[:2], "n": i // 2}
    yield from _run(case, make, lambda held, x: held.batch["x"] * held.batch["n"], 8)


@program
def hidden_state_of_an_lstm_detached_by_the_loop(case: Case) -> Seen:
    held: Any = types.SimpleNamespace(hidden=(case.x, case.x), after=None)

    def step(x):
        held.after = (torch.tanh(held.hidden[0] + x), held.hidden[1] * 0.9)
        return held.after[0]

    f = case.fn(step)
    for i in range(6):
        yield f(case.x + i), held.after
        held.hidden = tuple(one.detach() * 0.5 for one in held.after)


@program(states=2)
def batch_in_an_attribute_of_a_module(case: Case) -> Seen:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.batch: Any = None

        def forward(self):
            return self.layer(self.batch["x"]).square().mean() + self.batch["m"].mean()

    model = case.on(Model())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        optimizer.zero_grad()
        loss = model()
        loss.backward()
        optimizer.step()
        return loss.detach()

    f = case.fn(step)
    for i in range(6):
        model.batch = {"x": case.rows + i, "m": case.x * i}
        yield f(), model.layer.weight
