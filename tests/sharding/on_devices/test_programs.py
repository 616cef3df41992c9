"""Programs that nobody wrote: writes, views, copies and tensors like others.

Spread over devices they give what they give on one, and every storage stays where it was put.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import calque
from calque import sharding as sh
from calque.sharding import P

Tensor = torch.Tensor
State = list[Tensor]
SPECS = [P("dp", "tp"), P("tp"), P(None, "dp"), P(("dp", "tp")), P()]


VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    lambda x: x.t(),
    lambda x: x[2:5],
    lambda x: x[:, ::2],
    lambda x: x.view(-1),
    lambda x: x.view(4, 2, 8)[1],
    lambda x: x.diagonal(),
    lambda x: x.detach(),
    lambda x: x.data,
    lambda x: x.narrow(1, 3, 4),
]
CHANGES: list[Callable[[Tensor, Tensor], Any]] = [
    lambda v, o: v.add_(1),
    lambda v, o: v.mul_(0.5),
    lambda v, o: v.zero_(),
    lambda v, o: v.fill_(3),
    lambda v, o: v.copy_(torch.ones(())),
    lambda v, o: v.copy_(v.cpu() + 1),
    lambda v, o: v.add_(o.sum()),
    lambda v, o: v.sub_(o.max().cpu()),
    lambda v, o: v.masked_fill_(v > 2, 1.0),
    lambda v, o: v.clamp_(-3, 3),
    lambda v, o: v.uniform_(),
    lambda v, o: v.neg_() if v.ndim else v,
    lambda v, o: v.set_(v) if v.is_contiguous() else v,
    lambda v, o: torch.add(v, 1, out=v),
    lambda v, o: torch._foreach_add_([v], 1.0),
]
FRESH: list[Callable[[Tensor], Tensor]] = [
    torch.zeros_like,
    torch.ones_like,
    torch.randn_like,
    torch.clone,
    lambda x: torch.empty_like(x).copy_(x),
    lambda x: x.detach().clone(),
    lambda x: x + 0,
]

WRITING = st.tuples(
    st.just("write"),
    st.integers(0, 3),
    st.sampled_from(range(len(VIEWS))),
    st.sampled_from(range(len(CHANGES))),
    st.integers(0, 3),
    st.booleans(),
)
MAKING = st.tuples(st.just("make"), st.integers(0, 3), st.sampled_from(range(len(FRESH))))


def run(program: list[Any], state: State) -> None:
    torch.manual_seed(0)
    for step, which, *rest in program:
        target = state[which % len(state)]
        if step == "make":
            state.append(FRESH[rest[0]](target))
            continue
        view, change, other, jitted = rest
        source = state[other % len(state)]

        def write(x: Tensor, o: Tensor, view: int = view, change: int = change) -> None:
            CHANGES[change](VIEWS[view](x), o)

        if jitted and CHANGES[change].__code__.co_names.count("cpu") == 0 and source is not target:
            calque.jit(write, verify=False)(target, source)
        else:
            write(target, source)


PROGRAMS = (
    st.lists(st.one_of(WRITING, MAKING), min_size=1, max_size=5),
    st.sampled_from(range(len(SPECS))),
    st.sampled_from(range(len(SPECS))),
)


def compare(program: list[Any], first: int, second: int) -> None:
    first_values = torch.arange(64.0).reshape(8, 8)
    start = [first_values, first_values / 8 - 3]  # sums are exact in any order, and not 0
    whole = [x.to("jax") for x in start]
    run(program, whole)
    sh.mesh(dp=4, tp=2)
    spread = [sh.shard(x, SPECS[i]) for x, i in zip(start, (first, second), strict=True)]
    run(program, spread)
    for ours, theirs in zip(spread, whole, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs.cpu(), rtol=1e-5, atol=1e-4, equal_nan=True)
    for tensor, i in zip(spread, (first, second), strict=False):
        found = sh.placement(tensor)
        assert found is not None
        assert found.spec == SPECS[i]


@settings(max_examples=20, deadline=None)
@given(*PROGRAMS)
def test_programs_do_the_same_wherever_their_tensors_are(
    program: list[Any], first: int, second: int
) -> None:
    compare(program, first, second)


@pytest.mark.conformance
@settings(max_examples=200, deadline=None)
@given(*PROGRAMS)
def test_two_hundred_programs_do(program: list[Any], first: int, second: int) -> None:
    compare(program, first, second)
