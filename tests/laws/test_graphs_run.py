"""A graph of calque.trace computes the same wherever it runs, and gradients too."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import calque
from calque.graph import JaxInterpreter
from calque.tracing import lower
from tests.laws.programs import PROGRAMS
from tests.laws.tracers import TRACERS

COMPILED = ("pointwise", "views", "writes_to_its_input", "Convolutions", "Attention")


def _on(device: str, value: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone().to(device), value)


def _on_cpu(graph: nn.Module, args: tuple[Any, ...]) -> Any:
    return graph(*args), args


def _on_the_device(graph: nn.Module, args: tuple[Any, ...]) -> Any:
    moved = _on("jax", args)
    with torch.device("jax"):
        return graph.to("jax")(*moved), moved


def _under_jit(graph: nn.Module, args: tuple[Any, ...]) -> Any:
    moved = _on("jax", args)
    with torch.device("jax"):
        return calque.jit(graph.to("jax"))(*moved), moved


def _compiled(graph: nn.Module, args: tuple[Any, ...]) -> Any:
    torch._dynamo.reset()
    return torch.compile(graph, backend="calque")(*args), args


RUNNERS: dict[str, Callable[[nn.Module, tuple[Any, ...]], Any]] = {
    "CPU": _on_cpu,
    "device": _on_the_device,
    "calque.jit": _under_jit,
    "torch.compile": _compiled,
}


MAKES_TENSORS = ("accumulates", "shapes_decide", "iterates")
LOWERED = ("calque.record, operators", "calque.lower")
"""Operators name the device on which they make tensors: lower on the device, to run there."""
TRACED = ("calque.record", "calque.record, modules", "calque.record, operators", "calque.lower")


@pytest.mark.sampled(30)
@pytest.mark.parametrize(
    "tracer",
    ["calque.trace", *(pytest.param(t, marks=pytest.mark.conformance) for t in TRACED)],
)
@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_computes_the_same_wherever_it_runs(name: str, runner: str, tracer: str) -> None:
    if runner == "torch.compile" and name not in COMPILED:
        pytest.skip("compiled for a few, because each takes seconds")
    program, draw = PROGRAMS[name]()
    twin = copy.deepcopy(program)  # tracers that run the program change its state
    graph: Any = copy.deepcopy(TRACERS[tracer](program, *draw()))
    if isinstance(program, nn.Module):
        graph.load_state_dict(twin.state_dict(), strict=False)
        program = twin
    args = draw()
    if tracer in LOWERED and runner in ("device", "calque.jit") and name in MAKES_TENSORS:
        with pytest.raises((RuntimeError, ValueError, TypeError), match="cpu|CPU"):
            RUNNERS[runner](graph, args)
        return
    found = _on("cpu", RUNNERS[runner](graph, copy.deepcopy(args)))
    expected = _on("cpu", (program(*args), args))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _arrays(value: Any) -> Any:
    return pytree.tree_map_only(
        torch.Tensor, lambda t: jax.numpy.asarray(t.detach().numpy()), value
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_lowered_graph_is_a_jax_function(name: str) -> None:
    program, draw = PROGRAMS[name]()
    run = jax.jit(JaxInterpreter(lower(calque.trace(program, *draw()))))
    args = draw()
    with jax.enable_x64(True):  # otherwise JAX only has 32-bit integers
        found = run(*_arrays(args))
    expected = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().numpy(), program(*args))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        assert a.dtype == b.dtype


DIFFERENTIABLE = ("pointwise", "views", "no_gradient_inside", "Perceptron", "Convolutions")


def _loss(result: Any) -> Any:
    return (result * result).sum()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*DIFFERENTIABLE, "Attention", "writes_through_a_view"])
def test_gradients_of_a_lowered_graph_are_those_of_the_program(name: str) -> None:
    program, draw = PROGRAMS[name]()
    twin = copy.deepcopy(program)
    lowered = lower(calque.trace(program, *draw()))
    args = draw()
    inputs, same = ([t.clone().requires_grad_() for t in args] for _ in range(2))
    expected = torch.autograd.grad(_loss(twin(*inputs)), inputs)
    torch.testing.assert_close(torch.autograd.grad(_loss(lowered(*same)), same), expected)

    run = JaxInterpreter(lowered)
    indices = tuple(range(len(args)))
    found = jax.grad(lambda *xs: _loss(run(*xs)), indices)(*_arrays(args))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-3, atol=1e-5)
