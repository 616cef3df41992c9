"""L6: modules and optimizers that the function makes, and returns."""

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("results", "jit rows")
Seen = Iterator[Any]


def _made(x: torch.Tensor) -> nn.Linear:
    made = nn.Linear(3, 1, bias=False, device=x.device)
    nn.init.ones_(made.weight)
    return made


@program
def module_made_and_returned_with_its_loss(case: Case) -> Seen:
    def f(x):
        made = _made(x)
        return made(x).sum(), made, made.weight

    f = case.fn(f)
    for _ in range(3):
        loss, made, weight = f(case.rows)
        loss.backward()
        yield loss.detach(), made.weight is weight, weight


@program
def module_made_with_a_part_and_an_older_one(case: Case) -> Seen:
    older = case.linear(3, 3)

    def f(x):
        made = nn.Sequential(older, nn.Tanh(), _made(x))
        return {"all": made, "last": made[2], "loss": made(x).sum(), "again": made}

    f = case.fn(f)
    for _ in range(3):
        older.zero_grad()
        found = f(case.rows)
        found["loss"].backward()
        made = found["all"]
        yield found["again"] is made, found["last"] is made[2], made[0] is older, made


@program
def module_made_that_keeps_its_loss(case: Case) -> Seen:
    def f(x):
        made = _made(x)
        made.loss = made(x).sum()
        return made

    f = case.fn(f)
    for _ in range(3):
        made = f(case.rows)
        made.loss.backward()
        yield made.loss.detach(), made


@program
def object_with_a_module_made_and_returned(case: Case) -> Seen:
    class Pair:
        pass

    def f(x):
        pair = Pair()
        pair.made = _made(x)  # type: ignore[attr-defined]
        return pair.made(x).sum(), pair  # type: ignore[attr-defined]

    f = case.fn(f)
    for _ in range(3):
        loss, pair = f(case.rows)
        loss.backward()
        yield loss.detach(), pair.made


@program(states=2)
def module_made_kept_and_returned(case: Case) -> Seen:
    s = types.SimpleNamespace(made=None)

    def f(x):
        s.made = _made(x)
        return s.made(x).sum(), s.made

    f = case.fn(f)
    for _ in range(3):
        loss, made = f(case.rows)
        loss.backward()
        yield loss.detach(), made is s.made, made


@program(states=2)
def optimizer_made_and_returned(case: Case) -> Seen:
    def f(x):
        made = _made(x)
        sgd = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9)
        made(x).square().sum().backward()
        sgd.step()
        sgd.zero_grad()
        return made, sgd

    f = case.fn(f)
    for _ in range(3):
        made, sgd = f(case.rows)
        yield made, sgd.param_groups[0]["params"][0] is made.weight
        made(case.rows).sum().backward()
        sgd.step()
        yield made, sgd


@program
def module_made_with_a_hook_over_itself(case: Case) -> Seen:
    def f(x):
        made = _made(x)
        made.register_forward_hook(lambda m, a, out: out * (2 if made.training else 3))
        return made(x).sum(), made

    f = case.fn(f)
    for _ in range(3):
        loss, made = f(case.rows)
        loss.backward()
        yield loss.detach(), made


@program
def modules_over_the_tensors_of_arguments(case: Case) -> Seen:
    def f(x):
        held = nn.Module()
        held.weight = nn.Parameter(x)
        held.register_buffer("buffer", x)
        listed = nn.ParameterList([x]), nn.ParameterDict({"a": x * 2})
        return held, held.weight, {"listed": listed}

    f = case.fn(f)
    for i in range(3):
        x = case.x + i
        held, weight, named = f(x)
        yield held, held.weight is weight, held.buffer is x, named


@program
def modules_around_a_layer_that_exists(case: Case) -> Seen:
    layer, kept = case.linear(), []

    def f(x):
        made = nn.Sequential(layer, nn.ReLU())
        return made, torch.optim.SGD(made.parameters(), lr=0.1), made[1]

    f = case.fn(f)
    for _ in range(3):
        made, optimizer, last = f(case.x)
        kept += [made, optimizer]
        yield made[0] is layer, made[1] is last, len(set(map(id, kept)))
        yield optimizer.param_groups[0]["params"][0] is layer.weight
