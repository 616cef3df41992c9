"""Aggregations of every dtype, in chunks of every size, against numpy; and of no clients."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from calque import federated as fed

REAL = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32", "float64"),
)
VALUES = np.array([[1, 2], [4, 3], [2, 6], [1, 0], [0, 5]])


@pytest.mark.sampled(15)
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("operator", ["sum", "min", "max", "mean"])
def test_a_real_dtype_is_aggregated_as_by_numpy(operator: str, dtype: str) -> None:
    kind = fed.to_type(dtype)
    aggregation = getattr(fed, f"federated_{operator}")
    if operator == "mean" and kind.dtype.kind in "iu":
        with pytest.raises(fed.FederatedTypeError, match="floats"):
            fed.computation(f"{{{dtype}[2]}}@CLIENTS")(aggregation)
        return
    made = fed.computation(f"{{{dtype}[2]}}@CLIENTS")(aggregation)
    for clients, chunk in ((1, 1), (5, 3)):
        values = VALUES[:clients]
        found = made.configured(chunk=chunk)(values.astype(kind.dtype))
        wanted = getattr(values.astype(np.float64), operator)(0).astype(kind.dtype)
        assert found.dtype == kind.dtype
        np.testing.assert_array_equal(
            np.asarray(found).astype(np.float64), wanted.astype(np.float64)
        )


def test_a_dtype_without_zero_is_carried_but_not_aggregated() -> None:
    values = VALUES[:, 1:].clip(1).astype(ml_dtypes.float8_e8m0fnu)
    made = fed.computation("{float8_e8m0fnu[1]}@CLIENTS")(
        lambda x: fed.federated_collect(fed.federated_map(lambda v: v * v, x))
    )
    np.testing.assert_array_equal(made(values).elements, values * values)
    for aggregation in (fed.federated_sum, fed.federated_mean, fed.federated_max):
        with pytest.raises(fed.FederatedTypeError, match="expects"):
            fed.computation("{float8_e8m0fnu}@CLIENTS")(aggregation)
    with pytest.raises(fed.FederatedTypeError, match="cannot weight"):
        fed.computation("{float32}@CLIENTS", "{float8_e8m0fnu}@CLIENTS")(fed.federated_mean)


@pytest.mark.parametrize("operator", ["min", "max"])
def test_the_furthest_value_of_a_dtype_is_a_result(operator: str) -> None:
    aggregation = getattr(fed, f"federated_{operator}")
    for dtype in ("int8", "uint8", "int32", "int64"):
        info = np.iinfo(dtype)
        furthest = info.max if operator == "min" else info.min
        found = fed.computation(f"{{{dtype}}}@CLIENTS")(aggregation)(np.full(3, furthest, dtype))
        assert int(found) == furthest
    infinite = np.inf if operator == "min" else -np.inf
    made = fed.computation("{float32}@CLIENTS")(aggregation)
    assert float(made.configured(chunk=2)(np.full(3, infinite, np.float32))) == infinite


@pytest.mark.parametrize(
    ("dtype", "weight"),
    [
        (np.float16, 1000),  # the sum overflows float16
        (ml_dtypes.bfloat16, 1),  # the sum is rounded in bfloat16
        (np.int8, 100),
        (np.int32, 2**31 - 1),
        (np.uint32, 2**32 - 1),
        (np.float32, 1),
    ],
)
def test_weights_of_any_dtype_add_up_without_loss(dtype: Any, weight: int) -> None:
    kind = fed.at_clients(fed.to_type(np.dtype(dtype)))
    mean = fed.computation("{float32}@CLIENTS", kind)(fed.federated_mean)
    values = np.arange(301, dtype=np.float32)
    weights = np.full(301, weight).astype(dtype)
    np.testing.assert_allclose(mean(values, weights), 150.0, rtol=1e-6)


def test_a_mean_of_doubles_has_the_precision_of_doubles_with_integer_weights() -> None:
    mean = fed.computation("{float64}@CLIENTS", "{int64}@CLIENTS")(fed.federated_mean)
    found = mean(np.array([1.0, 1.0 + 2e-15]), np.array([2**52, 2**52]))
    np.testing.assert_allclose(found, 1.0 + 1e-15, rtol=3e-16)


@pytest.mark.parametrize("operator", ["mean", "min", "max"])
def test_what_has_no_result_without_clients_is_an_error(operator: str) -> None:
    made = fed.computation("{float32[2]}@CLIENTS")(getattr(fed, f"federated_{operator}"))
    with pytest.raises(fed.ClientError, match="there are no clients for federated_"):
        made(np.zeros((0, 2), np.float32))


def test_sums_and_sequences_of_no_clients_are_empty() -> None:
    @fed.computation("{int32[2]}@CLIENTS")
    def both(x: Any) -> Any:
        return fed.federated_sum(x), fed.federated_collect(x), fed.federated_secure_sum(x, 3), x

    total, collected, secure, same = both(np.zeros((0, 2), np.int32))
    assert total.tolist() == secure.tolist() == [0, 0]
    assert int(collected.length) == 0
    assert same.shape == (0, 2)


@pytest.mark.parametrize("width", [3.7, True, np.float32(3), "3"])
def test_a_bit_width_is_an_integer(width: Any) -> None:
    with pytest.raises(fed.FederatedTypeError, match="Pass a Python integer"):
        fed.computation("{int32}@CLIENTS")(lambda x: fed.federated_secure_sum(x, width))


def test_a_number_of_keys_is_known_beforehand() -> None:
    def chosen(keys: Any, limit: Any, values: Any) -> Any:
        return fed.federated_select(keys, limit, values, lambda whole, key: whole)

    with pytest.raises(fed.FederatedTypeError, match="max_key of federated_select"):
        fed.computation("{int32[2]}@CLIENTS", "int32@SERVER", "float32@SERVER")(chosen)


def test_all_bits_of_unsigned_integers_can_be_summed_securely() -> None:
    made = fed.computation("{uint32}@CLIENTS")(lambda x: fed.federated_secure_sum(x, 32))
    assert int(made(np.array([2**32 - 1], np.uint32))) == 2**32 - 1
    with pytest.raises(fed.FederatedTypeError, match="may not fit"):
        made(np.array([1, 2], np.uint32))


def test_complex_numbers_of_128_bits_are_not_narrowed() -> None:
    values = np.array([1 + 1e-12j, 2 - 3j])
    total = fed.computation("{complex128}@CLIENTS")(fed.federated_sum)
    assert np.asarray(total(values)) == values.sum()
    assert str(fed.local("complex128")(lambda x: x * 2).type_signature.result) == "complex128"
