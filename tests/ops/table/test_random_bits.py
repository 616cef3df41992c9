"""Draws of calque's rules are JAX's own numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calque.ops.table.random_bits import as_jaxs, wrapped

DATA = np.array([0xDEADBEEF, 42], np.uint32)


def pair() -> tuple[jax.Array, jax.Array]:
    return wrapped(jnp.asarray(DATA)), jax.random.wrap_key_data(
        jnp.asarray(DATA), impl="threefry2x32"
    )


@pytest.mark.sampled(10)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_bits_are_those_of_jax(dtype: str, shape: tuple[int, ...]) -> None:
    with jax.enable_x64(True):
        ours, theirs = (jax.random.bits(key, shape, dtype) for key in pair())
    assert ours.dtype == theirs.dtype == dtype
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("draw", ["uniform", "normal", "gumbel", "permutation"])
def test_draws_are_those_of_jax(draw: str) -> None:
    given = (50,) if draw == "permutation" else ((50,),)
    ours, theirs = (getattr(jax.random, draw)(key, *given) for key in pair())
    np.testing.assert_array_equal(ours, theirs)


def test_keys_folded_and_split_are_those_of_jax() -> None:
    for ours, theirs in [
        [jax.random.fold_in(key, 2**32 - 1) for key in pair()],
        [jax.random.split(key, (3, 2)) for key in pair()],
    ]:
        np.testing.assert_array_equal(jax.random.key_data(ours), jax.random.key_data(theirs))


def test_a_key_of_jaxs_own_kind_gives_the_same_numbers() -> None:
    ours, theirs = pair()
    assert as_jaxs(ours).dtype == theirs.dtype
    np.testing.assert_array_equal(jax.random.key_data(as_jaxs(ours)), DATA)


def test_draws_of_many_keys_are_those_of_each_key() -> None:
    keys = jax.random.split(pair()[0], 4)
    many = jax.vmap(lambda key: jax.random.bits(key, (6,)))(keys)
    np.testing.assert_array_equal(many, [jax.random.bits(key, (6,)) for key in keys])


def test_draws_without_jaxs_partitionable_setting_are_those_of_jax() -> None:
    with jax.threefry_partitionable(False):
        ours, theirs = (jax.random.bits(key, (3, 5)) for key in pair())
    np.testing.assert_array_equal(ours, theirs)


def test_the_size_of_a_draw_may_be_unknown_until_it_is_exported() -> None:
    def draw(x: jax.Array) -> jax.Array:
        return jax.random.bits(pair()[0], x.shape)

    (size,) = jax.export.symbolic_shape("n")
    exported = jax.export.export(jax.jit(draw))(jax.ShapeDtypeStruct((size, 3), np.float32))
    found = exported.call(np.zeros((5, 3), np.float32))
    np.testing.assert_array_equal(found, jax.random.bits(pair()[1], (5, 3)))
