"""The derivative of the least and the greatest, where several clients hold it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calque import federated as fed

VALUES = np.array([[1, 1], [1, 5], [2, 5], [1, np.inf], [3, 5], [1, np.inf]], np.float32)


@fed.computation("{float32[2]}@CLIENTS")
def extremes(values: Any) -> Any:
    return fed.federated_min(values), fed.federated_max(values)


def weighed(least: Any, greatest: Any) -> Any:
    return least @ jnp.array([1.0, 10.0]) + jnp.sum(greatest * jnp.array([100.0, 1000.0]))


@pytest.mark.parametrize("chunk", range(1, 7))
def test_all_that_hold_it_have_equal_shares_of_the_derivative_in_any_chunks(chunk: int) -> None:
    found = jax.grad(lambda v: weighed(*extremes.configured(chunk=chunk)(v)))(VALUES)
    expected = jax.grad(lambda v: weighed(v.min(0), v.max(0)))(VALUES)
    np.testing.assert_array_equal(found, expected)


def test_the_shares_are_equal_forwards_too() -> None:
    moved = np.arange(12, dtype=np.float32).reshape(6, 2)
    _, (least, _) = jax.jvp(extremes.configured(chunk=4), (VALUES,), (moved,))
    np.testing.assert_array_equal(least, [np.mean([0, 2, 6, 10]), 1])


def test_without_a_derivative_only_the_values_are_computed() -> None:
    text = extremes.configured(chunk=2).lower(VALUES).compile().as_text()
    (loop,) = [line for line in text.splitlines() if " while(" in line]
    carried = loop[loop.index("(") : loop.index(" while(")]
    assert carried.count("f32[2]{0}") == 2, carried
