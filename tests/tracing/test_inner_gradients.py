"""Gradients that a program computes inside are operators, which can be differentiated again."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad

import calque
from calque.convert import load, save
from calque.graph import JaxInterpreter


def network(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), *layers)


class Penalty(nn.Module):
    """The norm of a network's gradient, as WGAN-GP trains it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (gradient,) = grad(self.net(x).pow(2).sum(), x, create_graph=True)
        return ((gradient.norm(dim=1) - 1) ** 2).mean()


class Equation(Penalty):
    """The residual of a differential equation."""

    def forward(self, x: Tensor) -> Tensor:
        x.requires_grad_()
        u = self.net(x).sum(1)
        (first,) = grad(u.sum(), x, create_graph=True)
        (second,) = grad(first[:, 0].sum(), x, create_graph=True)
        return second[:, 0] + u * first[:, 1]


class Adapted(Penalty):
    """Two inner steps of gradient descent, as in MAML."""

    def forward(self, x: Tensor) -> Tensor:
        weights = dict(self.net.named_parameters())
        for _ in range(2):
            loss = torch.func.functional_call(self.net, weights, (x,)).pow(2).mean()
            steps = grad(loss, list(weights.values()), create_graph=True)
            weights = {name: w - 0.1 * d for (name, w), d in zip(weights.items(), steps)}
        return torch.func.functional_call(self.net, weights, (x,)).sum()


class Product(Penalty):
    """A product with the Hessian, which has no gradient itself."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        weights = list(self.net.parameters())
        first = grad(self.net(x).pow(2).mean(), weights, create_graph=True)
        return grad(sum((d * d.detach()).sum() for d in first), weights)


class Written(Penalty):
    """Differentiates through writes, and in a block without gradients."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        y = self.net(x)
        y[0] = x.sum(0, keepdim=True).sum() * y[1].clone()
        y[:, 1].copy_(x[:, 0] ** 2)
        loss = (y**2).sum()
        with torch.no_grad():
            (gradient,) = grad(loss, x, create_graph=True)
            frozen = gradient * 2
        return gradient**2 + frozen


class Batched(Penalty):
    """All rows of a Jacobian at once."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        y = self.net(x).sum(0)
        (rows,) = grad(y, x, torch.eye(4), is_grads_batched=True, create_graph=True)
        return rows.pow(2).sum()


def differentiated(program: Any, model: nn.Module, x: Tensor) -> Any:
    model.zero_grad()
    result = program(x.clone())
    parts = result if isinstance(result, tuple) else (result,)
    if parts[0].requires_grad:
        sum(part.sum() for part in parts).backward()
    gradients = [p.grad for p in model.parameters()]
    return parts, [p.requires_grad for p in parts], gradients


@pytest.mark.parametrize("tracer", ["trace", "record", "in place"])
@pytest.mark.parametrize(
    "model",
    [
        Penalty(network(nn.Tanh(), nn.LayerNorm(4), nn.Softmax(1))),
        Equation(network(nn.Sigmoid(), nn.Linear(4, 2))),
        Adapted(network(nn.Softplus())),
        Product(network(nn.Tanh())),
        Written(network(nn.Softplus())),
        Batched(network(nn.GELU())),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_gradient_of_a_gradient_is_right(model: Any, tracer: str) -> None:
    torch.manual_seed(0)
    if tracer == "record":
        lowered = calque.record(model, torch.randn(2, 3)).graph("aten")
    else:
        graph = calque.trace(model, torch.randn(2, 3))
        lowered = calque.lower(graph, functional=tracer == "trace")
    x = torch.randn(2, 3)
    expected, found = differentiated(model, model, x), differentiated(lowered, model, x)
    torch.testing.assert_close(found, expected)
    if tracer == "trace":
        ours = JaxInterpreter(lowered)(x.numpy())
        ours = ours if isinstance(ours, tuple) else (ours,)
        for one, other in zip(ours, expected[0]):
            np.testing.assert_allclose(one, other.detach(), rtol=1e-4, atol=1e-5)


def test_a_gradient_is_a_program_in_files_and_for_jax(tmp_path: Any) -> None:
    weight = nn.Parameter(torch.arange(3.0))

    def program(x: Tensor) -> Tensor:
        (gradient,) = grad((torch.tanh(weight) * x).pow(3).sum(), weight, create_graph=True)
        return gradient.sum()

    x = torch.arange(3.0) + 1
    recording = calque.record(program, x)
    save(recording, tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    np.testing.assert_allclose(loaded(x.numpy()), program(x).detach(), rtol=1e-5)
    leaf = x.clone().requires_grad_()
    gradient = jax.grad(JaxInterpreter(recording.graph("aten")))(jax.numpy.asarray(x.numpy()))
    np.testing.assert_allclose(gradient, grad(program(leaf), leaf)[0], rtol=1e-4)


def test_a_gradient_in_a_branch_is_refused_at_its_line() -> None:
    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x.detach().requires_grad_()
            return grad((x**3).sum(), x)[0]
        return x * 2

    with pytest.raises(calque.TraceError, match=r"test_inner_gradients.py:\d+ .* in a branch"):
        calque.lower(calque.trace(program, torch.ones(2)))


def unused(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    found = grad((x**3).sum(), (x, y), allow_unused=True)
    return sum(torch.zeros(2) if each is None else each for each in found)


def test_a_trace_does_not_take_an_unused_gradient_for_a_tensor() -> None:
    x, y = torch.ones(2), torch.ones(2)
    graph = calque.trace(unused, x, y)
    for call in (graph, lambda *args: calque.lower(graph)):
        with pytest.raises(calque.TraceError, match="is None, and the program may ask"):
            call(x, y)
    torch.testing.assert_close(calque.record(unused, x, y).graph("aten")(2 * x, y), 12 * x)


def test_a_part_of_a_tuple_keeps_its_gradient_within_no_grad() -> None:
    def program(x: Tensor) -> Tensor:
        halves = x.chunk(2)
        with torch.no_grad():
            first = halves[0]
        return first * 3

    x = torch.ones(4, requires_grad=True)
    lowered = calque.lower(calque.trace(program, x))
    torch.testing.assert_close(grad(lowered(x).sum(), x), grad(program(x).sum(), x))


def choosing(x: Tensor) -> Tensor:
    return x.exp() if x.sum() > 0 else x.sigmoid()


def through_a_branch(x: Tensor) -> Tensor:
    return grad(choosing(x).sum(), x)[0]


def beside_a_branch(x: Tensor) -> Tensor:
    return choosing(grad(x.exp().sum(), x, create_graph=True)[0])


@pytest.mark.parametrize("program", [through_a_branch, beside_a_branch])
def test_programs_with_branches_compute_gradients(program: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    lowered = calque.lower(calque.trace(program, x))
    for each in (x, (-x).detach().requires_grad_()):
        torch.testing.assert_close(lowered(each), program(each))


def test_a_gradient_through_a_branch_that_could_not_be_differentiated_again_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        return grad(choosing(x).sum(), x, create_graph=True)[0]

    graph = calque.trace(program, torch.ones(3, requires_grad=True))
    with pytest.raises(calque.TraceError, match="could not be differentiated again"):
        calque.lower(graph)


def test_a_form_without_writes_that_has_no_gradient_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        return grad(torch.fft.rfft(x).abs().pow(2).sum(), x, create_graph=True)[0]

    graph = calque.trace(program, torch.ones(4, 3, requires_grad=True))
    with pytest.raises(calque.TraceError, match=r"no gradient of slice_scatter"):
        calque.lower(graph)


def test_gradients_of_unknown_gradients_are_a_tuple() -> None:
    def program(x: Tensor) -> Tensor:
        first = grad((x**3).sum(), x, allow_unused=True, create_graph=True)
        second = grad(first, x, torch.ones_like(x), allow_unused=True)
        assert isinstance(second, tuple)
        return second[0]

    x = torch.ones(3, requires_grad=True)
    graph = calque.trace(program, x)
    torch.testing.assert_close(graph(2 * x.detach().requires_grad_()), 12 * x.detach())


@calque.tracing.wrap
def doubled(x: Tensor) -> Tensor:
    return x * 2


def test_a_lowered_graph_knows_whether_the_result_of_a_leaf_requires_a_gradient() -> None:
    def program(x: Tensor) -> Tensor:
        y = doubled(x)
        return y * 3 if y.requires_grad else y * 5

    x = torch.ones(3, requires_grad=True)
    lowered = calque.lower(calque.trace(program, x))
    torch.testing.assert_close(lowered(x), 6 * x)
    with pytest.raises(calque.TraceError, match="requires_grad"):
        lowered(x.detach())


def test_the_remedy_for_a_function_with_its_own_gradient_is_not_no_grad() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * x

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Tensor:
            return gradients[0]

    def program(x: Tensor) -> Tensor:
        return grad(Square.apply(x).sum(), x)[0]

    graph = calque.trace(program, torch.ones(3, requires_grad=True))
    with torch.no_grad(), pytest.raises(calque.TraceError, match="the program computes gradients"):
        calque.lower(graph)
