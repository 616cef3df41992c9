"""Products that take inputs as they lie, not transposed."""

import jax
import jax.numpy as jnp
import pytest

from calque.device.memory import view_access
from calque.device.memory.geometry import Layout, View
from calque.program.sharded_products import untransposed


def transposed(x):
    """As the device reads `x.t()`."""
    (rows, columns), layout = x.shape, Layout(x.shape, (x.shape[1], 1))
    return view_access.read(x, layout, View((columns, rows), (1, columns), 0))


def names(closed):
    """The functions that a jaxpr calls."""
    return [e.params.get("name") for e in closed.jaxpr.eqns]


@jax.jit
def product(x, y):
    return x @ y


@jax.jit
def linear(bias, x, y):
    return bias + x @ y


@jax.jit
def outer(x, y):
    return jax.lax.dot_general(x, y, (((), ()), ((), ())))


@jax.jit
def both(x, y):
    return x @ y, y + 1


X, W = jnp.arange(8.0).reshape(2, 4), jnp.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (lambda x, w: product(x, transposed(w)), (X, W)),
        (lambda x, w: product(transposed(w), x), (jnp.ones((3, 2)), W)),
        (lambda x, w: product(transposed(x), transposed(w)), (X, jnp.ones((5, 2)))),
        (lambda x, w: linear(jnp.ones(3), x, transposed(w)), (X, W)),
        (lambda x, w: [product(x, transposed(w)), product(x * 2, transposed(w))], (X, W)),
    ],
    ids=["right", "left", "both", "with a bias", "twice"],
)
def test_a_product_takes_the_matrix_as_it_lies(program, arguments):
    closed = jax.make_jaxpr(program)(*arguments)
    found = untransposed(closed)
    assert view_access.READ_VIEW in names(closed)
    assert view_access.READ_VIEW not in names(found)
    agree = zip(
        jax.core.eval_jaxpr(found.jaxpr, found.consts, *arguments),
        jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *arguments),
        strict=True,
    )
    assert all(jnp.array_equal(one, other) for one, other in agree)


def test_equal_layers_stay_equal():
    closed = jax.make_jaxpr(lambda x, v, w: product(product(x, transposed(v)), transposed(w)))(
        jnp.ones((2, 3)), jnp.ones((3, 3)), jnp.ones((3, 3))
    )
    first, second = untransposed(closed).jaxpr.eqns
    assert first.params["jaxpr"] is second.params["jaxpr"]


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: both(x, transposed(w)),
        lambda x, w: outer(x, transposed(w)),
        lambda x, w: (product(x, transposed(w)), transposed(w)),
        lambda x, w: product(x, transposed(product(w, jnp.eye(4)))),
    ],
    ids=["another use inside", "no contraction", "a result", "no input"],
)
def test_what_needs_the_transposed_matrix_keeps_it(program):
    closed = jax.make_jaxpr(program)(X, W)
    assert view_access.READ_VIEW in names(untransposed(closed))
    found = jax.core.eval_jaxpr(untransposed(closed).jaxpr, closed.consts, X, W)
    expected = jax.core.eval_jaxpr(closed.jaxpr, closed.consts, X, W)
    for one, other in zip(found, expected, strict=True):
        assert jnp.array_equal(one, other)
