"""Transposed operands of products, moved before they are multiplied."""

from functools import partial

import jax
import jax.numpy as jnp
import torch

import calque
from calque.device.memory import view_access
from calque.device.memory.geometry import Layout, View
from calque.dynamo.graphs import graph
from calque.program import transposed_operands
from calque.program.transposed_operands import materialized


def transposed(x):
    """As the device reads `x.t()`."""
    (rows, columns), layout = x.shape, Layout(x.shape, (x.shape[1], 1))
    return view_access.read(x, layout, View((columns, rows), (1, columns), 0))


def kept(closed):
    """Where the barriers stand: the primitives before them."""
    made = {v: e for e in closed.jaxpr.eqns for v in e.outvars}
    barriers = [e for e in closed.jaxpr.eqns if e.primitive.name == "optimization_barrier"]
    return [made[e.invars[0]].primitive.name for e in barriers]


def agree(closed, *arguments):
    found = jax.core.eval_jaxpr(materialized(closed).jaxpr, closed.consts, *arguments)
    expected = jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *arguments)
    for one, other in zip(found, expected, strict=True):
        assert jnp.array_equal(one, other)


def test_a_transposed_left_operand():
    transpose, product = jax.jit(jnp.transpose), jax.jit(jnp.matmul)
    x, y = jnp.arange(6.0).reshape(3, 2), jnp.arange(12.0).reshape(3, 4)
    closed = jax.make_jaxpr(lambda x, y: product(transpose(x), y))(x, y)
    assert kept(materialized(closed)) == ["jit"]
    agree(closed, x, y)
    other = jax.make_jaxpr(lambda x, y: product(transpose(y), x))(x, y)
    assert kept(materialized(other)) == ["jit"]
    right = jax.make_jaxpr(lambda x, y: product(x, transpose(y)))(x.T, y.T)
    assert materialized(right) is right


def test_an_operand_that_is_there_long_before_stays_folded():
    product, sine = jax.jit(jnp.matmul), jax.jit(jnp.sin)
    x, y = jnp.arange(6.0).reshape(3, 2), jnp.arange(12.0).reshape(3, 4)
    early = jax.make_jaxpr(lambda x, y: product(transposed(x), sine(y)))(x, y)
    assert materialized(early) is early
    late = jax.make_jaxpr(lambda x, y: product(transposed(sine(x)), y))(x, y)
    assert kept(materialized(late)) == ["jit"]
    both = jax.make_jaxpr(lambda x, y: product(transposed(x), y))(x, y)
    assert kept(materialized(both)) == ["jit"]


def test_small_operands_stay_folded_if_there_are_many(monkeypatch):
    monkeypatch.setattr(transposed_operands, "_MANY", 2)
    transpose, product = jax.jit(jnp.transpose), jax.jit(jnp.matmul)

    def products(*pairs):
        return [product(transpose(x), y) for x, y in pairs]

    small, large = (jnp.ones((n, 2)) for n in (3, 2**11 + 1))
    few, many = [(small, small)] * 2, [(small, small)] * 3
    assert len(kept(materialized(jax.make_jaxpr(products)(*few)))) == 2
    closed = jax.make_jaxpr(products)(*many)
    assert kept(materialized(closed)) == []
    agree(closed, *[x for pair in many for x in pair])
    mixed = jax.make_jaxpr(products)(*many, (large, large))
    assert len(kept(materialized(mixed))) == 1


def test_a_function_of_the_users_is_no_view_whatever_its_name():
    def read_view(x):
        return x.T

    product, sine, theirs = jax.jit(jnp.matmul), jax.jit(jnp.sin), jax.jit(read_view)
    x, y = jnp.arange(6.0).reshape(3, 2), jnp.arange(12.0).reshape(3, 4)

    def late(read, x, y):
        y = sine(y)
        return product(read(x), y)

    assert kept(materialized(jax.make_jaxpr(partial(late, theirs))(x, y))) == ["jit"]
    assert kept(materialized(jax.make_jaxpr(partial(late, transposed))(x, y))) == []
    assert not view_access.READ_VIEW.isidentifier(), "a name that no definition can give"


def test_other_devices_decide_for_themselves(monkeypatch):
    monkeypatch.setattr(transposed_operands.jax, "default_backend", lambda: "gpu")
    transpose, product = jax.jit(jnp.transpose), jax.jit(jnp.matmul)
    x = jnp.ones((3, 2))
    closed = jax.make_jaxpr(lambda x: product(transpose(x), x))(x)
    assert materialized(closed) is closed


def test_a_differentiable_program_and_its_backward():
    weight = torch.randn(5, 3)
    x = torch.randn(7, 5)
    one, other = weight.to("jax").requires_grad_(), weight.clone().requires_grad_()
    calque.jit(lambda x: (x @ one).square().sum())(x.to("jax")).backward()
    (x @ other).square().sum().backward()
    torch.testing.assert_close(one.grad.cpu(), other.grad)


def test_the_gradient_of_a_linear_layer(monkeypatch):
    places = []

    def watched(closed):
        found = materialized(closed)
        places.append(kept(found))
        return found

    monkeypatch.setattr(graph, "materialized", watched)
    torch._dynamo.reset()
    layer = torch.nn.Linear(5, 3, device="jax")
    torch.compile(layer, backend="calque")(torch.randn(7, 5, device="jax")).sum().backward()
    assert places == [[], ["jit"]]


def test_gradients_of_weights_in_eager_calls():
    gradient, x = torch.randn(6, 3), torch.randn(6, 5)
    found = gradient.to("jax").t() @ x.to("jax")
    torch.testing.assert_close(found.cpu(), gradient.t() @ x)
    added = torch.addmm(torch.ones(5).to("jax"), gradient.to("jax").t(), x.to("jax"))
    torch.testing.assert_close(added.cpu(), torch.addmm(torch.ones(5), gradient.t(), x))
