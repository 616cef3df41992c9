"""Programs drawn at random: operators, views, writes through views, with and without gradients."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.laws.tracers import TRACERS

# Each step takes two tensors of four elements and returns one.
STEPS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda a, b: a + b.reshape(a.shape),
    "subtract a half": lambda a, b: 0.5 - a,
    "product": lambda a, b: torch.mul(a, b.reshape(a.shape)),
    "sine": lambda a, b: a.sin(),
    "matmul": lambda a, b: a.reshape(2, 2) @ b.reshape(2, 2),
    "flat": lambda a, b: a.reshape(-1),
    "square": lambda a, b: a.reshape(2, 2),
    "transposed": lambda a, b: a.reshape(2, 2).t(),
    "sorted": lambda a, b: a.flatten().sort().values,
    "where": lambda a, b: torch.where(a > 0, a, b.reshape(a.shape)),
    "by its norm": lambda a, b: a / (a.norm() + 1),
    "no gradient": lambda a, b: _no_gradient(a),
    "add in place": lambda a, b: a.add_(b.reshape(a.shape).sin()),
    "multiply in place": lambda a, b: _imul(a, b),
    "write to a part": lambda a, b: _write(a, b),
    "write a copy": lambda a, b: a.clone().zero_() + b.reshape(a.shape),
    "new": lambda a, b: torch.full((4,), 2.0) + a.flatten(),
}


def _no_gradient(a: Tensor) -> Tensor:
    with torch.no_grad():
        return a * 3


def _imul(a: Tensor, b: Tensor) -> Tensor:
    a *= 0.5
    return a


def _write(a: Tensor, b: Tensor) -> Tensor:
    a[0] = b.flatten()[:1].mean()
    return a


Step = tuple[str, int, int]
steps = st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 7), st.integers(0, 7))


def program_of(plan: list[Step]) -> Callable[..., Any]:
    def program(x: Tensor, y: Tensor) -> Any:
        values = [x, y]
        for name, first, second in plan:
            values.append(STEPS[name](values[first % len(values)], values[second % len(values)]))
        return {"last": values[-1], "all": values[2:]}

    return program


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "tracer",
    [
        "calque.trace",
        "calque.symbolic_trace",
        "calque.lower",
        "calque.lower, with writes",
        "calque.record",
        "calque.record, modules",
    ],
)
@settings(max_examples=25, deadline=None)
@given(plan=st.lists(steps, min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_a_graph_computes_what_the_program_does(tracer: str, plan: list[Step], seed: int) -> None:
    torch.manual_seed(seed)
    program = program_of(plan)
    graph = TRACERS[tracer](program, torch.randn(4), torch.randn(2, 2))
    args = torch.randn(4), torch.randn(2, 2)
    twins = copy.deepcopy(args)
    found, expected = graph(*args), program(*twins)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(args, twins)
