"""L7: results are what eager returns: types, identity, containers."""

import collections
import dataclasses
import enum
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("results", "eager jit rows trace")
Seen = Iterator[Any]


def calls(case: Case, f: Any) -> Seen:
    """Four calls, the last of which repeats the first."""
    f = case.fn(f)
    for i in (0, 1, 2, 0):
        yield f(case.x + i)


@program
def shape_of_a_tensor(case: Case) -> Seen:
    yield from calls(case, lambda x: (x.shape, x[None].size(), torch.Size([1, 2])))


@program
def shape_alone(case: Case) -> Seen:
    yield from calls(case, lambda x: x.unsqueeze(0).shape)


@program
def named_tuples_of_sort_and_max(case: Case) -> Seen:
    yield from calls(case, lambda x: (x.sort(descending=True), x[None].max(dim=1)))


@program
def field_of_a_named_tuple_result(case: Case) -> Seen:
    f = case.fn(lambda x: torch.topk(x, 2))
    for i in range(3):
        y = f(case.x + i)
        yield y, y.values, y.indices, type(y).__name__


@program
def named_tuple_of_a_decomposition(case: Case) -> Seen:
    f = case.fn(lambda x: torch.linalg.slogdet(torch.eye(3, device=x.device) * x))
    for i in range(3):
        y = f(case.x + i)
        yield y, y.logabsdet


@program
def one_object_returned_twice(case: Case) -> Seen:
    def f(x):
        y = x * 2
        return y, y

    f = case.fn(f)
    for i in range(3):
        a, b = f(case.x + i)
        yield a is b
        a.add_(1)
        yield a, b


@program
def argument_returned(case: Case) -> Seen:
    f = case.fn(lambda x: x)
    for i in range(3):
        x = case.x + i
        yield f(x) is x


@program
def argument_returned_in_a_dict(case: Case) -> Seen:
    f = case.fn(lambda batch: {**batch, "y": batch["x"] * 2})
    for i in range(3):
        batch = {"x": case.x + i}
        made = f(batch)
        yield made, made["x"] is batch["x"]


@program
def parameter_returned(case: Case) -> Seen:
    m = case.linear()
    f = case.fn(lambda x: (m.weight, m(x), m.bias))
    for i in range(3):
        weight, y, bias = f(case.x + i)
        yield weight is m.weight, bias is m.bias, type(weight) is nn.Parameter, y


@program
def global_tensor_returned(case: Case) -> Seen:
    table = {"a": case.x, "b": case.x * 2}
    f = case.fn(lambda x: (table["a"], x + table["b"]))
    for i in range(3):
        a, y = f(case.x + i)
        yield a is table["a"], y
        table["a"].add_(1)


@program
def shared_list_in_a_result(case: Case) -> Seen:
    def f(x):
        part = [x * 2, "a"]
        return {"first": part, "second": part}

    f = case.fn(f)
    for i in range(3):
        made = f(case.x + i)
        yield made["first"] is made["second"]
        made["first"].append(1)
        yield made


@program
def list_of_the_caller_in_a_result(case: Case) -> Seen:
    shared = ["a", "b"]
    f = case.fn(lambda x: (x * 2, shared))
    for i in range(3):
        y, got = f(case.x + i)
        yield y, got is shared, got


@program(states=3, modes="eager jit rows")
def list_of_the_caller_that_changes(case: Case) -> Seen:
    s = types.SimpleNamespace(names=["a"])
    f = case.fn(lambda x: (x * len(s.names), s.names, tuple(s.names)))
    for name in ("b", "c"):
        yield f(case.x)
        s.names.append(name)
    yield f(case.x)


@program
def list_argument_returned(case: Case) -> Seen:
    f = case.fn(lambda parts: parts)
    for i in range(3):
        parts = [case.x + i, "a", {"b": case.x}]
        made = f(parts)
        yield made, made is parts, made[0] is parts[0], made[2] is parts[2]


@program
def nothing_returned(case: Case) -> Seen:
    yield from calls(case, lambda x: None)


@program
def nested_containers(case: Case) -> Seen:
    def f(x):
        return [{"a": (x, [x * 2, None]), 3: {"empty": {}, "no": [], "none": ()}}, "text", 2, 1.5]

    yield from calls(case, f)


@program
def containers_of_the_library(case: Case) -> Seen:
    def f(x):
        return (
            collections.OrderedDict(b=x, a=x * 2),
            collections.defaultdict(list, k=[x]),
            collections.deque([x, x + 1], maxlen=2),
            {"a", "b"},
            types.SimpleNamespace(x=x * 3, name="n"),
        )

    yield from calls(case, f)


class Pair(NamedTuple):
    left: Any
    right: Any = None


@program
def named_tuple_of_the_user(case: Case) -> Seen:
    yield from calls(case, lambda x: Pair(x * 2, Pair(x, "end")))


@dataclasses.dataclass
class Output:
    logits: Any
    loss: Any = None
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


@program
def data_class_result(case: Case) -> Seen:
    yield from calls(case, lambda x: Output(x * 2, x.sum(), {"n": x.shape[0]}))


@program
def data_class_result_is_new_at_each_call(case: Case) -> Seen:
    f = case.fn(lambda x: Output(x * 2))
    a = f(case.x)
    a.extra["seen"] = True
    b = f(case.x)
    yield a is b, b
    b.logits = None
    yield f(case.x)
    yield a


@dataclasses.dataclass(frozen=True)
class FrozenOutput:
    y: Any
    name: str = "out"


@program
def frozen_data_class_result(case: Case) -> Seen:
    yield from calls(case, lambda x: FrozenOutput(x * 2))


class Color(enum.Enum):
    RED = 1


@program
def values_that_are_no_tensors(case: Case) -> Seen:
    def f(x):
        return x.dtype, x.ndim, x.numel(), str(x.dtype), Color.RED, 1 + 2j, b"b", ..., None, True

    yield from calls(case, f)


@program
def integers_of_shapes(case: Case) -> Seen:
    f = case.fn(lambda x: (x.shape[0], len(x), x.shape[0] / 2, f"{x.shape[0]} rows"))
    for n in (3, 2, 3):
        yield f(case.x[:n])


@program
def attributes_of_a_result(case: Case) -> Seen:
    w = case.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def f(x):
        y = x * w
        y.kind, y.parts = "product", [y.sum(), x.shape]
        plain = x * 2
        plain.partner = y
        return y, plain, plain

    f = case.fn(f)
    for k in range(4):
        y, plain, again = f(case.x + k)
        yield y, vars(y), plain, vars(plain).keys(), plain.partner is y, plain is again
        y.parts[0].backward()
        yield w.grad


@program
def attributes_of_a_result_that_is_kept(case: Case) -> Seen:
    class Model:
        last = None

    model = Model()

    def f(x):
        model.last = x * 2
        model.last.step = len(x)
        return x.sum()

    f = case.fn(f)
    for k in range(4):
        yield f(case.x + k), model.last, vars(model.last)


@program(modes="eager jit rows", each_call=True)
def state_dict_that_is_kept_has_its_attributes(case: Case) -> Seen:
    model, kept = case.linear(), types.SimpleNamespace(last=None)

    def f(x):
        kept.last = model.state_dict()
        return x * 2

    f = case.fn(f)
    for i in range(3):
        yield f(case.x + i), kept.last, kept.last._metadata


@program(modes="eager jit rows")
def state_dict_with_its_attributes(case: Case) -> Seen:
    model = case.linear()

    def f(x):
        made = collections.OrderedDict(a=x * 2)
        made.tag = x + 1  # type: ignore[attr-defined]
        return {"model": model.state_dict(), "made": made, "again": [made]}

    f = case.fn(f)
    for i in range(3):
        found = f(case.x + i)
        yield found, found["made"].tag


class Saved(NamedTuple):
    model: Any
    step: Any


@program(modes="eager jit rows", states=2)
def state_dict_in_a_named_tuple(case: Case) -> Seen:
    model = case.linear()
    f = case.fn(lambda x, saved=None: Saved(model.state_dict(), x if saved is None else saved))
    for i in range(3):
        saved = f(case.x + i)
        again = f(case.x, saved)
        yield saved, again, again.step.model._metadata


@program(modes="eager jit rows")
def state_dict_as_an_argument(case: Case) -> Seen:
    class Batch:
        def __init__(self, x):
            self.x = x

    one, other = case.on(nn.BatchNorm1d(3)), case.on(nn.BatchNorm1d(3))

    def f(batch, state):
        loaded = one.load_state_dict(state)
        state.seen = True
        return loaded, state._metadata, one(batch.x).shape

    f = case.fn(f)
    for _ in range(4):
        with torch.no_grad():
            other.weight.add_(1)
        state = other.state_dict()
        yield f(Batch(case.rows), state), one, state
