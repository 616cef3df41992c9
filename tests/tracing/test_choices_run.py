"""Choices of a traced graph on the device, under calque.jit and under compilers."""

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import calque
from calque import TraceError
from tests.tracing.test_branches import (
    FAR,
    UP,
    WAYS,
    elif_chain,
    gated,
    gradients,
    if_else,
    nested,
    raises,
    writes,
    writes_to_view,
)

PURE = [if_else, nested, elif_chain]


def on_device(values: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda v: v.to("jax"), values)


@pytest.mark.parametrize("f", [*PURE, writes, writes_to_view], ids=lambda f: f.__name__)
def test_a_jitted_graph_is_one_program_for_every_way(f: Any) -> None:
    graph = calque.trace(f, UP.clone())
    jitted = calque.jit(graph)
    for x in WAYS:
        expected, given = x.clone(), x.to("jax")
        torch.testing.assert_close(jitted(given).cpu(), f(expected))
        torch.testing.assert_close(given.cpu(), expected)
    assert jitted.compilations == 1


@pytest.mark.parametrize("f", PURE, ids=lambda f: f.__name__)
def test_the_device_runs_it_without_jit(f: Any) -> None:
    graph = calque.trace(f, UP.clone())
    for x in WAYS:
        torch.testing.assert_close(graph(x.to("jax")).cpu(), f(x.clone()))


def test_a_jitted_training_step_with_a_choice() -> None:
    model, inputs = gated()
    reference, _ = gated()
    graph = calque.trace(model, inputs[0]).to("jax")
    optimizer = torch.optim.SGD(graph.parameters(), lr=0.01)
    expected = torch.optim.SGD(reference.parameters(), lr=0.01)

    @calque.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = graph(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    for x in inputs:
        expected.zero_grad()
        loss = reference(x).square().sum()
        loss.backward()
        expected.step()
        torch.testing.assert_close(step(x.to("jax")).cpu(), loss.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(graph.inner._modules["1"].calls.cpu(), reference.inner[1].calls)
    found = {name: p.cpu() for name, p in graph.named_parameters()}
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(found[name].data, parameter.data, rtol=1e-4, atol=1e-5)


def test_gradients_of_inputs_through_a_jitted_choice() -> None:
    graph = calque.trace(nested, UP)

    @calque.jit
    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        graph(x).square().sum().backward()
        assert x.grad is not None
        return x.grad

    for x in WAYS:
        expected = x.clone().requires_grad_()
        nested(expected).square().sum().backward()
        torch.testing.assert_close(gradient(x.to("jax")).cpu(), expected.grad)


def test_the_backward_of_a_jitted_choice_sees_the_random_numbers_of_the_forward() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return torch.nn.functional.dropout(x, 0.5)
        return x * 3

    graph = calque.trace(f, torch.ones(50))

    @calque.jit
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_()
        y = graph(x)
        y.sum().backward()
        assert x.grad is not None
        return y.detach(), x.grad

    torch.manual_seed(0)
    y, slope = both(torch.ones(50, device="jax"))
    torch.testing.assert_close(y, slope)
    assert set(y.tolist()) == {0.0, 2.0}
    again, _ = both(torch.ones(50, device="jax"))
    assert not torch.equal(again, y)
    y, slope = both(-torch.ones(50, device="jax"))
    assert set(slope.tolist()) == {3.0}


def test_random_numbers_behind_a_choice_are_not_those_within() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(x) if x.sum() > 0 else x
        return x + noise + 10 * torch.rand_like(x)

    jitted = calque.jit(calque.trace(f, torch.ones(100)))
    torch.manual_seed(0)
    ones = torch.ones(100, device="jax")
    first, second = (jitted(ones).cpu() for _ in range(2))
    rest = (first - 1) % 1
    assert not torch.equal(first, second)
    assert len(first.unique()) > 90
    assert abs(torch.corrcoef(torch.stack([rest, first]))[0, 1]) < 0.5


def test_an_error_of_the_program_needs_a_value_under_jit() -> None:
    graph = calque.trace(raises, UP)
    with pytest.raises(ValueError, match="too large"):
        graph(FAR.to("jax"))
    with pytest.raises(TraceError):
        calque.jit(graph)(UP.to("jax"))


def test_a_write_that_autograd_takes_part_in_is_refused_under_jit() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * 1
        if x.sum() > 0:
            y.mul_(w)
        return y.sum() + y[0]

    graph = calque.trace(f, UP, UP)
    w = torch.ones(3, device="jax", requires_grad=True)
    graph(UP.to("jax"), w).backward()
    torch.testing.assert_close(w.grad.cpu(), torch.tensor([2.0, 1.0, 1.0]))
    with pytest.raises(TraceError, match="autograd"):
        calque.jit(graph)(UP.to("jax"), w)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "calque"])
def test_torch_compile_keeps_both_ways(backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(calque.trace(nested, UP), backend=backend, fullgraph=True)
    for x in WAYS:
        torch.testing.assert_close(compiled(x), nested(x))


def test_torch_compile_has_gradients_of_the_layers_in_branches() -> None:
    torch._dynamo.reset()

    class Pure(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.up(x) if x.sum() > 0 else self.down(x)

    pure = Pure()
    compiled = torch.compile(calque.trace(pure, UP), backend="aot_eager", fullgraph=True)
    for x in (UP, -UP):
        expected, found = gradients(pure, pure, x), gradients(pure, compiled, x)
        for a, b in zip(expected, found):
            torch.testing.assert_close(b, torch.zeros_like(b) if a is None else a)


def test_export_and_make_fx_have_torch_cond() -> None:
    graph = calque.trace(nested, UP)
    aten = make_fx(graph)(UP)
    operator = torch.ops.higher_order.cond
    assert aten.graph.find_nodes(op="call_function", target=operator)
    exported = torch.export.export(graph, (UP,)).module()
    for x in WAYS:
        torch.testing.assert_close(aten(x), nested(x))
        torch.testing.assert_close(exported(x), nested(x))


def dropout_on_one_way(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return torch.nn.functional.dropout(x, 0.5)
    return x * 3


# Raised by torch.compile after a graph break.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "calque"])
def test_gradients_of_random_branches_are_right_under_torch_compile(backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(calque.trace(dropout_on_one_way, UP), backend=backend)
    x = torch.ones(50, requires_grad=True)
    y = compiled(x)
    y.sum().backward()
    torch.testing.assert_close(y.detach(), x.grad)


def test_a_random_branch_that_would_have_a_wrong_gradient_is_refused() -> None:
    graph = calque.trace(dropout_on_one_way, UP)
    with pytest.raises(TraceError, match="random"):
        make_fx(graph)(UP)
    with torch.no_grad():
        make_fx(graph)(UP)


def doubles(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    turns = torch.zeros_like(x[0], dtype=torch.int64)

    def body(x: torch.Tensor, turns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * y, turns + 1

    return torch.while_loop(
        lambda x, turns: torch.logical_and(x.sum() < 50, turns < 10), body, (x, turns)
    )


def turned(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    turns = torch.zeros((), dtype=torch.int64)
    while x.sum() < 50 and turns < 10:
        x = x * y
        turns = turns + 1
    return x, turns


@pytest.mark.parametrize("known", [True, False], ids=["examples", "symbolic"])
def test_a_while_loop_is_in_the_graph(known: bool) -> None:
    graph = calque.trace(doubles, UP, UP) if known else calque.symbolic_trace(doubles)
    for x, y in [(UP, UP * 2), (FAR, UP), (UP, -UP), (FAR * 9, UP)]:
        torch.testing.assert_close(graph(x, y), turned(x, y))


def test_a_choice_may_follow_a_while_loop() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        (y,) = torch.while_loop(lambda t: t.sum() < 100, lambda t: (t * 2,), (x,))
        if y.sum() > 150:
            return y * 2 if x.mean() > 1 else y + 1
        return -y

    graph = calque.trace(program, torch.ones(3))
    with torch.no_grad():
        lowered = calque.lower(graph)
    for value in (1.0, 2.0, 7.0, 30.0, 60.0):
        x = torch.full((3,), value)
        torch.testing.assert_close(graph(x), program(x))
        torch.testing.assert_close(lowered(x), program(x))


def test_a_while_loop_runs_on_the_device_jitted_and_compiled() -> None:
    graph = calque.trace(doubles, UP, UP)
    torch._dynamo.reset()
    compiled = torch.compile(graph, backend="eager", fullgraph=True)
    aten = make_fx(graph)(UP, UP.clone())
    for x, y in [(UP, UP * 2), (FAR, UP), (FAR * 9, UP)]:
        expected = turned(x, y)
        torch.testing.assert_close(compiled(x, y), expected)
        torch.testing.assert_close(aten(x, y), expected)
        for run in (graph, calque.jit(graph)):
            torch.testing.assert_close(
                [t.cpu() for t in run(x.to("jax"), y.to("jax"))], list(expected)
            )


def test_a_loop_within_a_branch_and_layers_within_a_loop() -> None:
    class Halving(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shrink = torch.nn.Linear(3, 3, bias=False)
            torch.nn.init.eye_(self.shrink.weight).data.mul_(0.5)
            self.step = torch.nn.Parameter(torch.full((3,), 0.25))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 5:
                (x,) = torch.while_loop(
                    lambda x: x.sum() > 1, lambda x: (self.shrink(x) - self.step,), (x,)
                )
            return x + self.step

    model = Halving()
    graph = calque.trace(model, FAR)
    assert set(graph.state_dict()) == set(model.state_dict())

    def reference(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 5:
            while x.sum() > 1:
                x = model.shrink(x) - model.step
        return x + model.step

    for given in (FAR, UP, -UP, FAR * 5):
        torch.testing.assert_close(graph(given), reference(given))


def test_a_loop_has_no_gradient_under_jit() -> None:
    graph = calque.jit(calque.trace(doubles, UP, UP))
    x = torch.ones(3, device="jax", requires_grad=True)
    with pytest.raises(TraceError, match="no gradient"):
        graph(x, x)


def test_the_body_of_a_loop_must_keep_the_kind_of_what_it_carries() -> None:
    with pytest.raises(TraceError, match="takes float32.3. but returns float32.6."):
        calque.trace(
            lambda x: torch.while_loop(lambda x: x.sum() < 9, lambda x: (x.repeat(2),), (x,)), UP
        )
