"""What a program leaves behind outside of itself is refused, and is as it was before the trace."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import calque
from calque import TraceError

X = torch.arange(3.0)
count = 0
last: Any = None


class Counter:
    shared = 0

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


counter = Counter()


def counts_globally(x: torch.Tensor) -> torch.Tensor:
    global count
    count += 1
    return x * count


def keeps_globally(x: torch.Tensor) -> torch.Tensor:
    global last
    last = x * 2
    return last


def makes_a_global(x: torch.Tensor) -> torch.Tensor:
    global made_by_a_trace
    made_by_a_trace = x * 2
    return x


def counts_in_an_object(x: torch.Tensor) -> torch.Tensor:
    return counter(x)


def counts_in_a_class(x: torch.Tensor) -> torch.Tensor:
    Counter.shared += 1
    return x * Counter.shared


def shadows_its_class(x: torch.Tensor) -> torch.Tensor:
    counter.shared += 1
    return x * counter.shared


def counts_on_itself(x: torch.Tensor) -> torch.Tensor:
    counts_on_itself.calls = getattr(counts_on_itself, "calls", 0) + 1
    return x * counts_on_itself.calls


CHANGES = [
    (counts_globally, "count changes from 0 to 1"),
    (keeps_globally, "last changes from None to a value of the traced program"),
    (makes_a_global, "made_by_a_trace changes from nothing to a value of the traced program"),
    (counts_in_an_object, "counter.calls changes from 0 to 1"),
    (counts_in_a_class, "Counter.shared changes from 0 to 1"),
    (shadows_its_class, "counter.shared becomes 1"),
    (counts_on_itself, "counts_on_itself.calls becomes 1"),
]


@pytest.mark.parametrize(("f", "change"), CHANGES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_change_outside_is_refused_and_taken_back(f: Callable[..., Any], change: str) -> None:
    for _ in range(2):
        with pytest.raises(TraceError) as caught:
            calque.trace(f, X)
        assert change in str(caught.value)
    assert (count, last, counter.calls, Counter.shared) == (0, None, 0, 0)
    assert "made_by_a_trace" not in globals()
    assert "shared" not in vars(counter)


def test_what_is_changed_before_another_error_is_taken_back() -> None:
    calls = 0
    seen: list[Any] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        seen.append(x)
        return x @ torch.ones(5) if calls else x * int(x.sum())

    with pytest.raises(RuntimeError):
        calque.trace(f, X)
    assert (calls, seen) == (0, [])


def test_an_object_of_a_module_is_watched() -> None:
    class Holding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.helper = Counter()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.helper(x)

    with pytest.raises(TraceError, match=r"self.helper.calls changes from 0 to 1"):
        calque.trace(Holding(), X)


def test_an_object_that_remembers_a_constant_is_let_be() -> None:
    class Lazy:
        table: Any = None

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            if self.table is None:
                self.table = [2.0]
            return x * self.table[0]

    lazy = Lazy()
    assert calque.trace(lambda x: lazy(x), X)(X).tolist() == [0, 2, 4]


_OF_A_PACKAGE = """
import functools
import torch

@functools.lru_cache
def direct(n):
    return torch.arange(n) / 2

def remembering(function):
    cached = functools.lru_cache(maxsize=4)(function)
    return functools.wraps(function)(lambda *args: cached(*args))

@remembering
def decorated(n):
    return torch.arange(n) / 2

def scaled(x):
    return x * direct(len(x)) + decorated(len(x))
"""


def test_what_a_package_remembers_holds_no_values_of_the_trace() -> None:
    names: dict[str, Any] = {"__name__": "somebodys.module"}
    exec(compile(_OF_A_PACKAGE, "/nowhere/site-packages/somebodys/module.py", "exec"), names)

    def program(x: torch.Tensor) -> torch.Tensor:
        return names["scaled"](x)

    x = torch.ones(3)
    for _ in range(2):  # each trace computes the tables
        graph = calque.trace(program, x)
        assert len(graph.graph.find_nodes(op="call_function", target=torch.arange)) == 2
        assert graph(x).tolist() == [0, 1, 2]
    assert program(x).tolist() == [0, 1, 2]
    assert calque.trace(program, x)(2 * x).tolist() == [0, 1.5, 3]  # from the cache
