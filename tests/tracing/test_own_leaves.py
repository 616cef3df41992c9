"""A gradient reaches the leaves that a program makes, in lowered graphs too."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import calque
from calque.convert import load, save
from calque.graph import JaxInterpreter


def detached(model: nn.Module, x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def assigned(model: nn.Module, x: Tensor) -> Tensor:
    made = x.clone().detach()
    made.requires_grad = True
    return made


def within_no_grad(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).requires_grad_()


def twice(model: nn.Module, x: Tensor) -> Tensor:
    made = x.detach().requires_grad_()
    made.requires_grad_()
    return made


def no_leaf(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).requires_grad_()  # has a gradient already


def created(model: nn.Module, x: Tensor) -> Tensor:
    return torch.zeros_like(x, requires_grad=True)


def parameter(model: nn.Module, x: Tensor) -> Tensor:
    return nn.Parameter(x * 2)


class Coordinates(nn.Module):
    """Returns its coordinates too, so that a caller can differentiate by them."""

    def __init__(self, make: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.make = make

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        coordinates = self.make(self.layer, x)
        return torch.sin(self.layer(coordinates)) * coordinates, coordinates


MAKES = (detached, assigned, within_no_grad, twice, no_leaf, created, parameter)


@pytest.mark.parametrize("tracer", ["trace", "record"])
@pytest.mark.parametrize("make", MAKES)
def test_a_gradient_reaches_a_leaf_that_the_program_makes(make: Any, tracer: str) -> None:
    torch.manual_seed(0)
    model, x = Coordinates(make), torch.randn(2, 3)
    if tracer == "trace":
        lowered = calque.lower(calque.trace(model, x))
    else:
        lowered = calque.record(model, x).graph("aten")
    other = torch.randn(2, 3)
    expected, coordinates = model(other)
    found, own = lowered(other)
    torch.testing.assert_close((found, own), (expected, coordinates))
    assert own.requires_grad and own.is_leaf == coordinates.is_leaf
    gradients = (
        torch.autograd.grad(value.sum(), (*model.parameters(), leaf))
        for value, leaf in ((found, own), (expected, coordinates))
    )
    torch.testing.assert_close(*gradients)


def test_a_leaf_is_its_tensor_as_arrays_and_in_files(tmp_path: Any) -> None:
    model, x = Coordinates(detached), torch.randn(2, 3)
    recording = calque.record(model, x)
    expected = model(x)[0].detach().numpy()
    function = JaxInterpreter(recording.graph("aten"))
    np.testing.assert_allclose(function(x.numpy())[0], expected, rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda x: function(x)[0].sum())(jax.numpy.asarray(x.numpy()))
    assert not gradient.any()  # it is detached
    save(recording, tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    np.testing.assert_allclose(loaded(x.numpy())[0], expected, rtol=1e-5, atol=1e-6)


def test_a_write_to_a_leaf_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        made = x.detach().requires_grad_()
        with torch.no_grad():
            made.add_(1)
        return made * 2

    with pytest.raises(calque.TraceError, match="add_ writes to a tensor on which") as caught:
        calque.lower(calque.trace(program, torch.ones(2)))
    assert "test_own_leaves.py:" in caught.value.__notes__[0]


def marks(x: Tensor) -> Tensor:
    before = x * 2  # without a gradient
    x.requires_grad_()
    return before + x**2


def marks_in_list(given: list[Tensor]) -> Tensor:
    given[0].requires_grad_()
    return given[0] ** 2 + given[1]


def marks_dead(x: Tensor) -> Tensor:
    y = x * 2
    x.requires_grad_()
    return y


@pytest.mark.parametrize("functional", [True, False])
@pytest.mark.parametrize("program", [marks, marks_in_list, marks_dead])
def test_an_argument_may_be_marked(program: Any, functional: bool) -> None:
    def example() -> tuple[Tensor, Any]:
        x = torch.arange(3.0)
        return x, [x, torch.ones(3)] if program is marks_in_list else x

    lowered = calque.lower(calque.trace(program, example()[1]), functional=functional)
    (one, given), (other, expected) = example(), example()
    found, result = lowered(given), program(expected)
    torch.testing.assert_close(found, result)
    assert one.requires_grad and found.requires_grad == result.requires_grad
    if found.requires_grad:
        found.sum().backward(), result.sum().backward()
        assert torch.equal(one.grad, other.grad)


def test_a_marked_argument_that_was_marked_before_must_be_so_again() -> None:
    lowered = calque.record(marks, torch.ones(2, requires_grad=True)).graph("aten")
    with pytest.raises(calque.TraceError, match="requires_grad"):
        lowered(torch.ones(2))


def test_a_marked_argument_that_the_program_has_written_to_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        x.add_(1)
        return x.requires_grad_() * 2

    with pytest.raises(calque.TraceError, match="has x, which it does not create"):
        calque.lower(calque.trace(program, torch.ones(2)))


class Unfreezes(nn.Module):
    """Has its parameter, or its buffer, require a gradient."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("bias", torch.ones(2))
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        getattr(self, self.name).requires_grad_()
        return self.weight * x


class Assigns(Unfreezes):
    """As above, but by assigning the attribute."""

    def forward(self, x: Tensor) -> Tensor:
        getattr(self, self.name).requires_grad = True
        return self.weight * x


@pytest.mark.parametrize("kind", [Unfreezes, Assigns])
def test_a_member_that_requires_a_gradient_already_may_be_marked(kind: type[Unfreezes]) -> None:
    model, x = kind("weight"), torch.ones(2)
    recording = calque.record(model, x)
    for graph in (recording.graph(), recording.graph("aten"), calque.lower(calque.trace(model, x))):
        assert graph(x).requires_grad
    assert torch.equal(calque.record(kind("bias"), x).graph()(x), torch.ones(2))
    with pytest.raises(calque.TraceError, match="has bias, which it does not create"):
        calque.lower(calque.trace(kind("bias"), x))
