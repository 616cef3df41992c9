"""calque.from_jax: JAX functions as differentiable PyTorch functions."""

import gc

import jax
import jax.extend.backend
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch._dynamo

import calque


def test_pytrees_and_static_values():
    fn = calque.from_jax(lambda d, k=1: {"sum": d["a"] + k * d["b"], "arg": jnp.argmax(d["a"])})
    a, b = torch.arange(3.0, device="jax"), torch.ones(3, device="jax")
    result = fn({"a": a, "b": b}, k=2)
    assert result["sum"].tolist() == [2.0, 3.0, 4.0]
    assert result["arg"].item() == 2
    assert fn({"a": a, "b": b}, k=3)["sum"].tolist() == [3.0, 4.0, 5.0]


def test_a_number_that_its_code_needs_is_named_with_its_value():
    tile = calque.from_jax(jnp.tile)
    tiled = calque.jit(lambda x, count: tile(x, count))
    for count in (1, 2, 3):
        assert tiled(torch.ones(2, device="jax"), count).tolist() == [1] * (2 * count)
    needed = "argument 1 is 2, and the program depends on its value"
    assert tiled.history == ["first call", needed, "argument 1 was 2 and is 3"]


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


sine = calque.from_jax(lambda x: jnp.sin(x) * 2)
several = calque.from_jax(lambda x, w, k=1: {"a": (jnp.sin(x) * w * k, x.sum()), "i": x.argmax()})


def numbers(*shape, grad=False):
    made = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape) / 10
    return made.to("jax").requires_grad_(grad)


def close(found, expected):
    torch.testing.assert_close(found.detach().cpu(), expected.detach().cpu())


def test_gradients_are_differentiated_again():
    def penalty(function, x):
        (gradient,) = torch.autograd.grad(function(x * x).sum(), x, create_graph=True)
        (gradient**2).sum().backward()
        return x.grad

    found = penalty(sine, numbers(3, grad=True))
    close(found, penalty(lambda x: x.sin() * 2, numbers(3).cpu().requires_grad_()))
    x = numbers(3, grad=True)
    derivative = sine(x).sum()
    for _ in range(3):
        (derivative,) = torch.autograd.grad(derivative.sum(), x, create_graph=True)
    close(derivative, -2 * x.cos())

    @calque.jit
    def slopes(x):
        (gradient,) = torch.autograd.grad(sine(x).sum(), x, create_graph=True)
        return gradient.sum()

    slopes(x).backward()
    close(x.grad, -2 * x.sin())


def test_transforms_of_torch():
    x, vectors = numbers(3), numbers(3, 4)
    close(torch.vmap(sine)(vectors), 2 * vectors.sin())
    result = torch.vmap(several, in_dims=(1, None))(vectors, x)
    close(result["a"][0], vectors.t().sin() * x)
    assert result["i"].tolist() == [2, 2, 2, 2]
    close(torch.vmap(torch.func.grad(lambda x: sine(x).sum()))(vectors), 2 * vectors.cos())
    close(torch.func.jacrev(sine)(x), torch.diag(2 * x.cpu().cos()))
    close(torch.func.hessian(lambda x: sine(x).sum())(x), torch.diag(-2 * x.cpu().sin()))
    close(torch.func.jvp(sine, (x,), (torch.ones_like(x),))[1], 2 * x.cos())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        close(torch.autograd.forward_ad.unpack_dual(sine(dual)).tangent, 2 * x.cos())
    leaf = numbers(3, grad=True)
    result, rows = sine(leaf), torch.eye(3, device="jax")
    (batch,) = torch.autograd.grad(result, leaf, rows, is_grads_batched=True)
    close(batch, torch.diag(2 * x.cpu().cos()))


def test_compiled_programs_take_it_as_an_operator():
    torch._dynamo.reset()
    x, w = numbers(3, grad=True), numbers(3)

    def loss(x):
        found = several(x * 2, w, k=3)
        return found["a"][0].sum() + found["i"]

    compiled = torch.compile(loss, backend="calque", fullgraph=True)
    compiled(x).backward()
    close(x.grad, 6 * w * (2 * x).cos())
    for size in (4, 5):
        scale = torch.compile(lambda x: sine(x) * x.shape[0], backend="calque", dynamic=True)
        close(scale(numbers(size)), 2 * size * numbers(size).sin())
    per_row = torch.compile(torch.vmap(sine), backend="calque")
    close(per_row(numbers(2, 3)), 2 * numbers(2, 3).sin())
    with_key = calque.from_jax(lambda x, key: x + jax.random.normal(key, x.shape))
    key = jax.random.key(1)
    broken = torch.compile(lambda x: with_key(x * 1, key), backend="calque")
    close(broken(w), with_key(w, key))
    graph = calque.trace(lambda x: several(x, w)["a"][0] + 1, w)
    close(graph(w), w.sin() * w + 1)


def test_the_results_structure_follows_the_shapes():
    function = calque.from_jax(
        lambda x: (x.argmax(), x * 2, "three") if x.shape[0] == 3 else [x * 2, x.argmax()]
    )
    for _ in range(2):
        index, double, text = function(numbers(3, grad=True))
        assert double.requires_grad and not index.requires_grad and text == "three"
        double, index = function(numbers(4, grad=True))
        assert double.requires_grad and not index.requires_grad


def test_values_that_compare_equal_are_told_apart():
    scale = calque.from_jax(lambda x, s: x * s)
    one = torch.ones(1, device="jax")
    assert [torch.signbit(scale(one, zero)).item() for zero in (0.0, -0.0)] == [False, True]
    add = calque.from_jax(lambda x, s: x + s)
    whole = torch.ones(1, dtype=torch.int32, device="jax")
    assert [add(whole, s).dtype for s in (1, 1.0)] == [torch.int32, torch.float32]


def test_arrays_among_the_arguments():
    scale = calque.from_jax(lambda x, s: x * s)
    x = numbers(3)
    for factor in (2, 3):
        close(scale(x, jnp.full(3, factor, jnp.float32)), factor * x)
        close(scale(x, np.full(3, factor, np.float32)), factor * x)
    with pytest.raises(TypeError, match="of type set cannot be hashed"):
        scale(x, {1})
    with pytest.raises(TypeError, match="expects a JAX function"):
        calque.from_jax(3)


def test_what_is_kept_for_the_backward_is_pytorchs_to_drop():
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        sine(numbers(3, grad=True))
    assert packed
    total = sine(numbers(3, grad=True)).sum()
    total.backward()
    with pytest.raises(RuntimeError, match="second time"):
        total.backward()


def test_a_graph_of_another_process_is_refused():
    with pytest.raises(calque.TraceError, match="this process does not have"):
        torch.ops.calque.from_jax([numbers(3)], 5)


def test_what_is_compiled_for_a_function_goes_with_it():
    def use() -> None:
        x = torch.ones(3, device="jax", requires_grad=True)
        calque.from_jax(lambda a: jnp.sin(a) * 2)(x).sum().backward()

    def programs() -> int:
        gc.collect()
        return len(jax.extend.backend.get_backend().live_executables())

    for _ in range(4):  # then all of its operators are on the fast path
        use()
    before = programs()
    for _ in range(3):
        use()
    assert programs() == before


def test_code_of_jax_is_called_by_compiled_code_and_not_compiled():
    double = calque.from_jax(lambda x: x * 2)  # this also registers something with Dynamo

    @torch.compile(backend="calque")
    def f(x):
        return calque.to_torch(jnp.sin(calque.to_jax(double(x)))) + 1

    x = torch.ones(2, device="jax")
    torch.testing.assert_close(f(x), torch.sin(x * 2) + 1)


def test_a_proxy_is_passed_to_jax_by_from_jax_only():
    x = torch.ones(2, device="jax")
    with pytest.raises((TypeError, ValueError)) as caught:
        calque.trace(lambda x: jnp.sin(calque.to_jax(x)), x)
    assert len(str(caught.value)) < 500
