import jax
import jax.numpy as jnp
import numpy as np

from calque.program.called_repeats import LAYER, called


def _layers(factors: list[float]) -> jax.extend.core.ClosedJaxpr:
    """Layers of more equations than the least, each with an inner function that is traced anew."""

    def run(x):
        for factor in factors:
            jax.clear_caches()
            x = jax.jit(lambda y, by=factor: jnp.tanh(y) * by)(x)
            x = jnp.sin(x) + jnp.cos(x) * jnp.exp(x) - jnp.square(x)
        return x

    return jax.make_jaxpr(run)(jnp.ones(3))


def _calls(closed: jax.extend.core.ClosedJaxpr) -> int:
    return sum(e.params.get("name") == LAYER for e in called(closed).jaxpr.eqns)


def test_layers_are_equal_though_jax_has_traced_their_functions_again() -> None:
    program = _layers([2.0, 2.0, 2.0])
    assert _calls(program) == 3
    (want,) = jax.core.eval_jaxpr(program.jaxpr, program.consts, jnp.arange(3.0))
    shortened = called(program)
    (got,) = jax.core.eval_jaxpr(shortened.jaxpr, shortened.consts, jnp.arange(3.0))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_layers_whose_functions_differ_in_a_number_are_not_equal() -> None:
    assert _calls(_layers([2.0, 3.0, 4.0])) == 0
