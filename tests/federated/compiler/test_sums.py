"""Sums of many clients are off by a few units in the last place, in whatever chunks they come."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calque import federated as fed

TOTAL = fed.computation("{float32}@CLIENTS")(fed.federated_sum)
MEAN = fed.computation("{float32}@CLIENTS", "{float32}@CLIENTS")(fed.federated_mean)


def off_by(found: Any, values: np.ndarray) -> float:
    """How far a sum is off, in units in the last place of the largest sum that was possible."""
    exact = values.astype(np.float64).sum()
    return abs(float(found) - exact) / np.spacing(np.abs(values).sum(dtype=np.float64), dtype="f4")


@pytest.mark.parametrize("chunk", [1, 7, 1000, 200_001])
def test_many_equal_numbers_add_up(chunk: int) -> None:
    values = np.full(200_001, 0.1, np.float32)
    assert off_by(TOTAL.configured(chunk=chunk)(values), values) <= 2
    weights = np.full(200_001, 0.3, np.float32)
    mean = MEAN.configured(chunk=chunk)(values, weights)
    np.testing.assert_allclose(mean, np.float32(0.1), rtol=3e-7)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16), spread=st.floats(0, 4), chunk=st.sampled_from([1, 3, 8, 500]))
def test_no_order_of_magnitude_loses_digits(seed: int, spread: float, chunk: int) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=500) * np.exp(spread * rng.normal(size=500))).astype(np.float32)
    assert off_by(TOTAL.configured(chunk=chunk)(values), values) <= 4


def test_results_do_not_depend_on_the_chunk_to_seven_digits() -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(size=10_000).astype(np.float32)
    found = [float(TOTAL.configured(chunk=chunk)(values)) for chunk in (1, 2, 16, 333, 10_000)]
    np.testing.assert_allclose(found, found[0], rtol=2e-7)


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_infinities_are_sums_too(chunk: int) -> None:
    total = TOTAL.configured(chunk=chunk)
    assert float(total([1.0, np.inf, 2.0, 3.0, 4.0])) == np.inf


def test_integers_are_exact_and_keep_their_dtype() -> None:
    values = np.full(1001, 2**21 - 1, np.int32)
    total = fed.computation("{int32}@CLIENTS")(fed.federated_sum)(values)
    assert total.dtype == jnp.int32
    assert int(total) == 1001 * (2**21 - 1)


@pytest.mark.parametrize("chunk", [1, 4])
def test_sums_can_be_differentiated(chunk: int) -> None:
    total = TOTAL.configured(chunk=chunk)
    x = jnp.arange(10, dtype=jnp.float32)
    gradient = jax.grad(lambda x: total(x * x))(x)
    np.testing.assert_allclose(gradient, 2 * np.arange(10))
    tangent = jax.jvp(lambda x: total(x * x), (x,), (jnp.ones(10),))[1]
    np.testing.assert_allclose(tangent, 90.0)


def test_weights_that_add_up_to_zero_are_an_error_or_nan_on_request() -> None:
    with pytest.raises(fed.ClientError, match="sum to zero in federated_mean"):
        MEAN([1.0, 2.0], [1.0, -1.0])
    assert np.isnan(MEAN.configured(check=False)([1.0, 2.0], [0.0, 0.0]))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("chunk", [1, 3])
def test_integers_whose_sum_does_not_fit_are_an_error(dtype: str, chunk: int) -> None:
    limits = np.iinfo(dtype)

    def below(x: Any) -> Any:
        return fed.federated_sum({"a": x, "b": x})["b"]

    total = fed.computation(below, f"{{{dtype}[2]}}@CLIENTS").configured(chunk=chunk)
    # Partial sums may wrap around, if the whole sum does not.
    fitting = [[limits.max, 0], [0, limits.max], [0, 0], [limits.min, 0], [0, 0]]
    values = np.array(fitting, dtype)
    np.testing.assert_array_equal(total(values), values.sum(0, dtype=dtype))
    values[-1, 1] = 1
    line = below.__code__.co_firstlineno + 1
    message = rf"{line} in below: a sum does not fit {dtype} in federated_sum.\nConvert .* wider"
    with pytest.raises(fed.ClientError, match=message):
        total(values)
    unchecked = total.configured(check=False)(values)
    np.testing.assert_array_equal(unchecked, values.sum(0, dtype=dtype))
