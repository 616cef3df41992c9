"""Calls of jitted functions in a trace: the equation that JAX would have put there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from calque.device.memory.cell import x64
from calque.device.runtime import staged_calls
from calque.device.runtime.staged_calls import call

X = jnp.arange(6.0).reshape(2, 3)


@jax.jit
def affine(x, factor, offset):
    return {"made": x * factor + offset, "rest": [x.sum(), x]}


@jax.jit
def drawn(x):
    jax.debug.callback(lambda: None)
    return x + 1


def both(function, *arguments):
    """The jaxprs with calls as JAX makes them, and as they are made here."""
    return [
        jax.make_jaxpr(lambda *a: [how(a) for _ in range(3)])(*arguments)  # noqa: B023
        for how in (lambda a: function(jit_call, *a), lambda a: function(call, *a))
    ]


def jit_call(function, arrays):
    return function(*arrays)


CALLS = {
    "numbers": lambda how, x: how(affine, (x, 2.0, -0.0)),
    "other numbers": lambda how, x: (how(affine, (x, 2.0, 0.0)), how(affine, (x, 2, True))),
    "a number that is none": lambda how, x: how(affine, (x, float("nan"), float("inf"))),
    "arrays": lambda how, x: how(affine, (x, x, x[0])),
    "constants": lambda how, x: how(affine, (x, np.ones(3, np.float32), jnp.ones(3))),
    "of another dtype": lambda how, x: how(affine, (x.astype(jnp.int32), x, 1)),
    "effects": lambda how, x: how(drawn, (x,)),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_equations_are_those_of_jax(name):
    theirs, ours = both(CALLS[name], X)
    assert str(theirs) == str(ours)
    for one, other in zip(theirs.jaxpr.eqns, ours.jaxpr.eqns, strict=True):
        assert one.primitive is other.primitive
        assert [v.aval for v in one.outvars] == [v.aval for v in other.outvars]
    for one, other in zip(jaxpr_as_fun(theirs)(X), jaxpr_as_fun(ours)(X), strict=True):
        assert np.array_equal(one, other, equal_nan=True)


def test_the_second_call_is_remembered(monkeypatch):
    @jax.jit
    def doubled(x, by):
        return x * by

    learnt = []
    learn = staged_calls._learn
    monkeypatch.setattr(staged_calls, "_learn", lambda *a: learnt.append(a) or learn(*a))
    jax.make_jaxpr(lambda x: [call(doubled, (x, 2.0)) for _ in range(5)])(X)
    assert len(learnt) == 1
    jax.make_jaxpr(lambda x: [call(doubled, (x, 2.0)), call(doubled, (x, 3.0))])(X)
    assert len(learnt) == 2


def test_each_mode_has_its_own_equations():
    @jax.jit
    def wide(x):
        return x.astype(float)

    with x64():
        inside = jax.make_jaxpr(lambda x: call(wide, (x,)))(X)
    outside = jax.make_jaxpr(lambda x: call(wide, (x,)))(X)
    assert inside.out_avals[0].dtype == np.float64
    assert outside.out_avals[0].dtype == np.float32


def test_outside_of_a_trace_and_in_its_transformations_it_is_a_call():
    assert call(affine, (X, 2.0, 1))["made"].tolist() == (X * 2 + 1).tolist()
    slope = jax.grad(lambda x: call(affine, (x, x, 1.0))["made"].sum())(X)
    assert slope.tolist() == (2 * X).tolist()
    rows = jax.vmap(lambda x: call(affine, (x, 2.0, 0.0))["rest"][0])(X)
    assert rows.tolist() == X.sum(1).tolist()


def test_a_function_of_python_runs_each_time():
    ran = []

    def function(x):
        ran.append(x)
        return affine(x, 1.0, 1.0)["made"]

    jax.make_jaxpr(lambda x: [call(function, (x,)) for _ in range(3)])(X)
    assert len(ran) == 3
