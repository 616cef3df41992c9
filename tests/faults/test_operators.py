"""The operators of PyTorch that a function holds: its dispatcher points to them, and owns nothing.

An operator's overload is an attribute of the operator, set when it is first called. The dispatcher
keeps a pointer to it and no reference. Were the attribute taken back with what else an abandoned
trace left behind, the overload would be freed, and the next call would read freed memory.
"""

import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import calque

_numbers = itertools.count()

pytestmark = [
    pytest.mark.filterwarnings("ignore:calque_faults..* has no rule"),
    pytest.mark.usefixtures("few_objects"),
]


def operator(kernel: Callable[..., Any], schema: str = "(Tensor x) -> Tensor") -> Any:
    """An operator that nobody has called yet, with a kernel for the CPU."""
    name = f"calque_faults::op_{next(_numbers)}"
    torch.library.define(name, schema)
    torch.library.impl(name, "CPU", kernel)
    return getattr(torch.ops.calque_faults, name.partition("::")[2])


def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


class Holder:
    """An object of the user's with an operator in it, and in its containers."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.ops = {"op": [op]}

    def __call__(self, x: torch.Tensor) -> Any:
        return self.ops["op"][0](x) * 2


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("held", [lambda op: lambda x: op(x) * 2, Holder])
def test_an_abandoned_trace_leaves_an_operators_overloads(held):
    op = operator(positive)
    jitted = calque.jit(held(op), specialize=True)
    x = torch.tensor([1.0, -2.0, 3.0], device="jax")
    assert "default" not in vars(op)
    assert jitted(x).tolist() == [2.0, 6.0]  # its trace was abandoned because of an unknown shape
    assert "default" in vars(op)
    overload = weakref.ref(vars(op)["default"])
    for _ in range(3):
        gc.collect()
        assert jitted(x).tolist() == [2.0, 6.0]
        assert vars(op)["default"] is overload()


@pytest.mark.usefixtures("few_objects")
def test_a_refused_trace_leaves_an_operators_overloads():
    op = operator(lambda x: x + 1)

    def refused(x):
        return op(x).item()

    jitted = calque.jit(refused)
    for _ in range(2):
        with pytest.raises(calque.TraceError):
            jitted(torch.ones(1, device="jax"))
        assert "default" in vars(op)
        gc.collect()
        assert op(torch.ones(1, device="jax")).tolist() == [2.0]


@pytest.mark.usefixtures("few_objects")
def test_a_trace_that_is_kept_leaves_an_operators_overloads():
    op = operator(lambda x, y: x * y, "(Tensor x, Tensor y) -> Tensor")
    torch.library.register_fake(op._qualified_op_name, lambda x, y: torch.empty_like(x))
    jitted = calque.jit(lambda x: op(x, x))
    overloads = []
    for _ in range(3):
        assert jitted(torch.full((2,), 3.0, device="jax")).tolist() == [9.0, 9.0]
        overloads.append(vars(op)["default"])
        gc.collect()
    assert len(set(map(id, overloads))) == 1
