"""What leaf functions return is unknown while tracing: what Python asks about it is checked."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import calque


def maybe(x: Tensor) -> Tensor | None:
    return x[0] if bool(x.sum() > 0) else None


def number(x: Tensor) -> int:
    return 3


def pair(x: Tensor) -> tuple[Tensor, None]:
    return x, None


calque.tracing.wrap("maybe")
calque.tracing.wrap("number")
calque.tracing.wrap("pair")


def asks(x: Tensor) -> Tensor:
    y = maybe(x)
    return x * 10 if y is None else y


def asks_elsewhere(x: Tensor) -> Tensor:
    return x if is_given(maybe(x)) else -x


def is_given(value: Any) -> bool:
    return value is not None


def asks_a_list(x: Tensor) -> list[Any]:
    return [part for part in [maybe(x)] if part is not None]


def asks_for_a_part(x: Tensor) -> Any:
    y, weights = pair(x)
    return y * 3 if weights is None else y


def asks_for_an_item(x: Tensor) -> Any:
    return x if pair(x)[1] is None else x * 7


def asks_for_a_class(x: Tensor) -> Tensor:
    y = number(x)
    return x * y if isinstance(y, (int, float)) else x + y


ASKING = asks, asks_elsewhere, asks_a_list, asks_for_a_part, asks_for_an_item, asks_for_a_class


@pytest.mark.parametrize("program", ASKING)
def test_a_wrong_answer_about_a_result_is_told_at_its_line(program: Any) -> None:
    for graph in (calque.trace(program, torch.ones(2)), calque.symbolic_trace(program)):
        with pytest.raises(calque.TraceError, match=f"in {program.__name__}: the result of"):
            graph(-torch.ones(2))


def returns_it(x: Tensor) -> Any:
    return maybe(x)


def drops_it(x: Tensor) -> Any:
    maybe(x)
    return x if x is not None else 3


def keeps_it(x: Tensor) -> Any:
    y = maybe(x)
    return y, x


def drops_a_part(x: Tensor) -> Any:
    y, weights = pair(x)
    return y * 2 if x is not None else weights


def returns_a_part(x: Tensor) -> Any:
    y = pair(x)
    return y[0] * 2, y[1], None if y is None else x


@pytest.mark.parametrize("program", [returns_it, drops_it, keeps_it, drops_a_part, returns_a_part])
def test_a_result_that_is_none_may_be_passed_on(program: Any) -> None:
    graph = calque.trace(program, torch.ones(2))
    for x in (torch.ones(2), -torch.ones(2)):
        found, expected = graph(x), program(x)
        assert str(found) == str(expected)


def absolute(x: Tensor) -> Tensor:
    return x.abs()


calque.tracing.wrap("absolute")


def asks_on_a_path(x: Tensor) -> Tensor:
    y = absolute(x)
    z = x * 2 if x.mean() > 0 else x - 1
    return z + y if y is not None else x


def test_the_checks_survive_branches_copies_and_another_trace() -> None:
    graph = calque.trace(asks, torch.ones(2))
    for again in (copy.deepcopy(graph), calque.trace(graph, torch.ones(2))):
        torch.testing.assert_close(again(torch.ones(2)), asks(torch.ones(2)))
        with pytest.raises(calque.TraceError, match="the result of maybe is None"):
            again(-torch.ones(2))
    branching = calque.trace(asks_on_a_path, torch.ones(2))
    for x in (torch.ones(2), -torch.ones(2)):
        for graph in (branching, copy.deepcopy(branching), calque.lower(branching)):
            torch.testing.assert_close(graph(x), asks_on_a_path(x))


NOTHING = None


def asks_for_the_class_of_none(x: Tensor) -> Tensor:
    return x * 3 if isinstance(maybe(x), type(None)) else x * 5


def asks_for_a_default(x: Tensor, nothing: Any = NOTHING) -> Tensor:
    return x * 3 if maybe(x) is nothing else x * 5


def asks_the_other_way(x: Tensor) -> Tensor:
    y = maybe(x)
    return x * 3 if NOTHING is y else x * 5


@pytest.mark.parametrize(
    "program", [asks_for_the_class_of_none, asks_for_a_default, asks_the_other_way]
)
def test_none_is_found_by_its_class_and_by_other_names(program: Any) -> None:
    x = torch.ones(2)
    graph = calque.trace(program, x)
    torch.testing.assert_close(graph(x), program(x))
    with pytest.raises(calque.TraceError, match="the result of maybe"):
        graph(-x)


def test_a_name_is_no_question() -> None:
    def program(data_ptr: Tensor) -> Tensor:
        return data_ptr * 2

    class Holds(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.data_ptr = torch.nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.data_ptr

    x = torch.ones(2)
    torch.testing.assert_close(calque.trace(program, x)(x), x * 2)
    torch.testing.assert_close(calque.trace(Holds(), x)(x), x)
