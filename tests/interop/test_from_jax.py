"""calque.from_jax: JAX functions as differentiable PyTorch functions."""

import jax
import jax.numpy as jnp
import pytest
import torch

import calque


def test_pytrees_and_static_values():
    fn = calque.from_jax(lambda d, k=1: {"sum": d["a"] + k * d["b"], "arg": jnp.argmax(d["a"])})
    a, b = torch.arange(3.0, device="jax"), torch.ones(3, device="jax")
    result = fn({"a": a, "b": b}, k=2)
    assert result["sum"].tolist() == [2.0, 3.0, 4.0]
    assert result["arg"].item() == 2
    assert fn({"a": a, "b": b}, k=3)["sum"].tolist() == [3.0, 4.0, 5.0]


def test_gradients_flow_to_both_sides():
    fn = calque.from_jax(lambda x, w: jnp.sin(x) * w)
    x = torch.tensor([0.1, 0.2], device="jax", requires_grad=True)
    w = torch.tensor([2.0, 3.0], device="jax", requires_grad=True)
    (fn(x * 2, w) ** 2).sum().backward()
    rx = torch.tensor([0.1, 0.2], requires_grad=True)
    rw = torch.tensor([2.0, 3.0], requires_grad=True)
    ((torch.sin(rx * 2) * rw) ** 2).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), rx.grad)
    torch.testing.assert_close(w.grad.cpu(), rw.grad)


def test_only_what_needs_a_gradient_gets_one():
    fn = calque.from_jax(lambda x, i: x[i])
    x = torch.ones(3, device="jax", requires_grad=True)
    fn(x, torch.tensor([0, 0], device="jax")).sum().backward()
    assert x.grad.tolist() == [2.0, 0.0, 0.0]
    assert not fn(x.detach(), torch.tensor([0], device="jax")).requires_grad


def test_inside_a_jitted_step():
    fn = calque.from_jax(jax.nn.softplus)
    w = torch.zeros(2, device="jax", requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.0)

    @calque.jit
    def step():
        loss = fn(w).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step()
    assert w.tolist() == [-0.5, -0.5]
    assert len(step.history) == 1


def test_64_bit_arguments_stay_64_bit():
    fn = calque.from_jax(lambda x: x + 1)
    assert fn(torch.ones(2, dtype=torch.float64, device="jax")).dtype == torch.float64
    assert fn(torch.ones(2, dtype=torch.int64, device="jax")).dtype == torch.int64


def test_a_cpu_tensor_is_refused():
    with pytest.raises(RuntimeError, match="on device 'jax'"):
        calque.from_jax(jnp.sin)(torch.ones(2))


def test_errors_of_the_function_are_its_own():
    fn = calque.from_jax(lambda x: x.reshape(7))
    with pytest.raises(TypeError, match="reshape"):
        fn(torch.ones(3, device="jax"))
