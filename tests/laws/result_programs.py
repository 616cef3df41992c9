"""Programs whose results have types, identities and containers of their own."""

import collections
import dataclasses
import enum
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

PROGRAMS: dict[str, Callable[..., Any]] = {}


def program(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Add a program to the table."""
    PROGRAMS[fn.__name__] = fn
    return fn


def twice(run: Callable[..., Any], *args: Any) -> list[Any]:
    """The results of two calls."""
    return [run(*args), run(*args)]


def shape(value: Any) -> Any:
    """What a result is made of: types, and what is in them."""
    if isinstance(value, torch.Tensor):
        return type(value).__name__, value.dtype, tuple(value.shape), value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value), [shape(v) for v in vars(value).values()]
    if isinstance(value, dict):
        return type(value), [(k, shape(v)) for k, v in value.items()]
    if isinstance(value, np.ndarray):
        return type(value), value.dtype, value.tolist()
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        return type(value), [shape(v) for v in value]
    return type(value), value


@program
def sizes(t, jit):
    return [
        shape(r) for r in twice(jit(lambda x: (x.shape, x.size(), x.shape[1:], [x.shape])), t(1, 2))
    ]


@program
def named_results_of_operators(t, jit):
    def f(x):
        m = x.view(2, 2)
        return torch.sort(m), m.max(1), torch.linalg.slogdet(m), m.topk(1)

    found = twice(jit(f), t(4, 2, 1, 3))[1]
    return [shape(r) for r in found], found[0].values, found[1].indices


@program
def one_object_twice(t, jit):
    w = t(3, 4)

    def f(x):
        y = x * 2
        v = w[:1]
        n = x[1:]
        return y, y, {"again": [y]}, x, x, w, w, v, v, n, n

    y, again, inner, x, x2, w1, w2, v, v2, n, n2 = twice(jit(f), t(1, 2))[1]
    return y is again, inner["again"][0] is y, x is x2, w1 is w, w2 is w, v is v2, n is n2


@program
def arguments_and_state_keep_their_identity(t, jit):
    w, x = nn.Parameter(t(1, 2)), t(3, 4)
    h = w * 2
    run = jit(lambda x: (x, w, h))
    return [[r is o for r, o in zip(run(x), (x, w, h), strict=True)] for _ in range(2)]


@program
def a_list_that_state_holds(t, jit):
    class Box:
        items: typing.ClassVar = [1, 2]
        table: typing.ClassVar = {"a": 1}

    def f(x):
        return Box.items, x + 1, {"t": Box.table}

    run = jit(f)
    seen = []
    for _ in range(2):
        items, y, tables = run(t(1, 2))
        seen += [items is Box.items, tables["t"] is Box.table, y]
    return seen


@program
def a_list_that_is_returned_twice(t, jit):
    def f(x):
        many = [x, x + 1]
        return many, many, {"same": many}

    one, two, three = twice(jit(f), t(1, 2))[1]
    one.append(3)
    return one is two, three["same"] is one, len(two)


@program
def a_container_of_the_arguments(t, jit):
    run, batch = jit(lambda batch: (batch, batch["x"] * 2)), {"x": t(1, 2), "n": [1]}
    found = [run(batch)[0] for _ in range(2)]
    return [(shape(one), one["x"] is batch["x"]) for one in found]


Pair = collections.namedtuple("Pair", "first second")


class Typed(typing.NamedTuple):
    one: torch.Tensor
    two: int = 3


@dataclasses.dataclass
class Plain:
    x: torch.Tensor
    name: str
    rest: list


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    n: int = 1


class Table(dict):
    """A dict of one's own."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Kind(enum.Enum):
    A = "a"


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x


@program
def containers(t, jit):
    def f(x):
        y = x * 2
        return (
            Pair(y, [y, None]),
            Typed(y),
            Plain(y, "name", [y, 1]),
            Frozen(y),
            Table(a=y, b=1),
            collections.OrderedDict(b=y, a=1),
            collections.defaultdict(list, a=[y]),
            collections.deque([y, 2], maxlen=5),
            {2: y, 1: y, "z": 0},
            (),
            [],
            {},
            [[], ({},)],
        )

    found = twice(jit(f), t(1, 2))[1]
    return [shape(r) for r in found], found[7].maxlen, found[6].default_factory


@program
def objects(t, jit):
    found = twice(
        jit(lambda x: [Slotted(x + 1), Kind.A, frozenset([1]), range(3), slice(1, 2)]), t(1)
    )
    return [(type(r[0]), r[0].x, r[1:]) for r in found], found[0][0] is not found[1][0]


@program
def numbers_and_arrays(t, jit):
    def f(x):
        return (
            True, 2, 2.5, "s", None, 1j, b"b", torch.float32, x.dtype, x.ndim, x.numel(),
            np.arange(3), np.float32(2), np.array([1.5]), torch.arange(2),
        )  # fmt: skip

    one, two = twice(jit(f), t(1, 2))
    one[11][0] = 7
    one[14][0] = 7
    return [shape(r) for r in two]


@program
def nothing(t, jit):
    return twice(jit(lambda x: None), t(1)), twice(jit(lambda x: [None, (None, x)]), t(1))


@program
def types_inside(t, jit):
    p = nn.Parameter(t(1, 2))

    def f(x):
        y = x + p
        return (
            type(x) is torch.Tensor, type(y) is torch.Tensor, type(p) is nn.Parameter,
            isinstance(x, torch.Tensor), isinstance(p, nn.Parameter), x.device == y.device,
            type(x.shape) is torch.Size, type(x.size(0)) is int, x.is_leaf, torch.is_tensor(x),
            torch.is_floating_point(x), x.is_contiguous(), y.dtype, x.stride(), x.element_size(),
        )  # fmt: skip

    run = jit(f)
    return run(t(1, 2)), run(nn.Parameter(t(1, 2)))[:1], run(t(1, 2, 3, 4)[::2])


@program
def parameters_made_inside(t, jit):
    def f(x):
        frozen = nn.Parameter(x * 3, requires_grad=False)
        return nn.Parameter(x.view(1, 2) * 2), frozen, nn.Parameter(x)

    return [[(type(p), p.requires_grad, p.detach()) for p in r] for r in twice(jit(f), t(1, 2))]


@program
def strides_and_views(t, jit):
    def f(x):
        m = x.view(2, 3)
        return (
            m.t(),
            m[:, 1],
            m.expand(2, 2, 3),
            (m * 2).t(),
            (m + 1)[:, ::2],
            m.clone().T.contiguous(),
        )

    return [
        [(v, v.stride(), v.is_contiguous()) for v in r] for r in twice(jit(f), t(1, 2, 3, 4, 5, 6))
    ]
