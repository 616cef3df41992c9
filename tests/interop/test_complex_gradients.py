"""The gradient of a complex number is the conjugate in PyTorch of what it is in JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import calque

NUMBERS = [1 + 2j, 0.5 - 1j]
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]] = {
    "square of the absolute value": (lambda x: x.abs() ** 2, lambda x: jnp.abs(x) ** 2),
    "imaginary part": (lambda x: (x * (1 + 2j)).imag, lambda x: (x * (1 + 2j)).imag),
    "real part of exp": (lambda x: x.exp().real, lambda x: jnp.exp(x).real),
    "complex result": (lambda x: x * x, lambda x: x * x),
}


def _real_sum(values: Any) -> Any:
    return (values * (2 - 1j)).sum().real


def _expected(function: Callable[[Tensor], Tensor]) -> np.ndarray:
    x = torch.tensor(NUMBERS, requires_grad=True)
    _real_sum(function(x)).backward()
    assert x.grad is not None
    return x.grad.resolve_conj().numpy()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_jax_give_pytorchs(name: str) -> None:
    function, in_jax = FUNCTIONS[name]
    wrapped = calque.from_jax(in_jax)
    for step in (lambda x: _real_sum(wrapped(x)), calque.jit(lambda x: _real_sum(wrapped(x)))):
        x = torch.tensor(NUMBERS, device="jax", requires_grad=True)
        step(x).backward()
        np.testing.assert_allclose(x.grad.cpu().numpy(), _expected(function), rtol=1e-5)


@pytest.mark.parametrize("gradient", ["torch", "jax"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functional_modules_give_jaxs(name: str, gradient: Any) -> None:
    function, _ = FUNCTIONS[name]

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(NUMBERS))

        def forward(self) -> Tensor:
            return function(self.weight)

    apply, params = calque.functional(Module().to("jax"), gradient=gradient)
    found = jax.grad(lambda params: _real_sum(apply(params)))(params)["weight"]
    np.testing.assert_allclose(found, _expected(function).conj(), rtol=1e-5)
