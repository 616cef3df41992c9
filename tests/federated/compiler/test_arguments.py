"""What users pass is either held as it is, or refused: nothing is wrapped, stretched or cut off."""

import enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from calque import federated as fed
from calque.errors import FederatedTypeError

identity = fed.computation("int32@SERVER")(lambda x: x)
total = fed.computation("{float32*}@CLIENTS")(
    lambda x: fed.federated_sum(fed.sequence_sum(x)),
)
total_here = fed.computation("float32*@SERVER")(fed.sequence_sum)


def large_of_jax() -> Any:
    with jax.enable_x64(True):
        return jnp.asarray(2**40)


@pytest.mark.parametrize(
    "make",
    [
        lambda: 2**40,
        lambda: np.int64(2**40),
        lambda: np.array(-(2**40)),
        lambda: torch.tensor(2**40),
        large_of_jax,
    ],
)
def test_an_integer_that_does_not_fit_is_refused(make: Any) -> None:
    with pytest.raises(fed.FederatedTypeError, match="cannot hold"):
        identity(make())


def test_a_number_that_is_infinite_in_the_dtype_is_refused() -> None:
    made = fed.computation("float32@SERVER")(lambda x: x)
    with pytest.raises(fed.FederatedTypeError, match="which float32 cannot hold"):
        made(1e40)
    assert float(made(float("inf"))) == float("inf")
    with jax.enable_x64(True):
        large, infinite = jnp.asarray(1e40), jnp.asarray(np.inf)
    with pytest.raises(fed.FederatedTypeError, match="that float32 cannot hold"):
        made(large)
    assert float(made(infinite)) == float("inf")


def test_elements_of_other_shapes_are_refused_and_not_stretched() -> None:
    @fed.local("float32[?]*", framework="jax")
    def work(x: Any) -> Any:
        return x.elements.sum()

    made = fed.computation("{float32[?]*}@CLIENTS")(lambda x: fed.federated_map(work, x))
    with pytest.raises(
        fed.ClientError, match=r"client 1 has shape \[1\], but one of client 0 has \[3\]"
    ):
        made([np.ones((2, 3), np.float32), np.ones((2, 1), np.float32)])


@pytest.mark.parametrize("length", [4, -1])
def test_a_length_is_within_the_arrays(length: int) -> None:
    with pytest.raises(fed.FederatedTypeError, match="arrays of 3 elements"):
        total_here(fed.Sequence(np.ones(3, np.float32), length))
    with pytest.raises(fed.FederatedTypeError, match="arrays of 3 elements"):
        total(fed.Sequence(np.ones((2, 3), np.float32), np.array([1, length])))


def test_sequences_of_clients_have_a_length_each() -> None:
    with pytest.raises(fed.FederatedTypeError, match=r"lengths of shape \[\]"):
        total(fed.Sequence(np.ones((2, 3), np.float32), 2))


def test_a_length_is_a_whole_number() -> None:
    with pytest.raises(fed.FederatedTypeError, match="lengths of dtype float"):
        total_here(fed.Sequence(np.ones(3, np.float32), 1.5))
    with pytest.raises(fed.FederatedTypeError, match="lengths of dtype float"):
        total(fed.Sequence(np.ones((2, 3), np.float32), np.array([1.5, 3.0])))


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_clients_without_elements_count_as_nothing(chunk: int) -> None:
    made = total.configured(chunk=chunk)
    some = np.array([1.0, 2.0], np.float32)
    none = np.zeros(0, np.float32)
    assert float(made([some, none, some])) == 6.0
    assert float(made([none, none])) == 0.0


def test_padding_is_no_nan_in_a_gradient() -> None:
    @fed.computation("float32@SERVER", "{float32*}@CLIENTS")
    def harmonic(scale: Any, x: Any) -> Any:
        inverse = fed.sequence_sum(fed.sequence_map(lambda v: 1.0 / v, x))
        return fed.federated_sum(inverse * fed.federated_broadcast(scale))

    data = [np.array(some, np.float32) for some in ([1, 2], [4], [])]
    for chunk in (1, 3):
        made = harmonic.configured(chunk=chunk)
        gradient = jax.grad(lambda scale, made=made: made(scale, data))(2.0)
        np.testing.assert_allclose(gradient, 1.75)
    whole = fed.Sequence(jnp.array([[1.0, 2.0], [4.0, 0.0]]), np.array([2, 1]))
    by_element = jax.grad(
        lambda x: harmonic.configured(chunk=2)(1.0, fed.Sequence(x, whole.length))
    )
    np.testing.assert_allclose(by_element(whole.elements), [[-1.0, -0.25], [-0.0625, 0.0]])


def test_float64_becomes_float32_only_if_that_can_hold_it() -> None:
    same = fed.computation("float32[2]")(lambda x: x)
    with pytest.raises(FederatedTypeError, match="numbers that float32"):
        same(np.array([1e300, 1.0]))
    np.testing.assert_array_equal(same(np.array([np.inf, 1e-300])), [np.inf, 0.0])


def test_arrays_in_another_order_of_bytes_are_read_as_what_they_hold() -> None:
    values = np.arange(6, dtype=">f4").reshape(3, 2)
    total = fed.computation("{float32[2]}@CLIENTS")(fed.federated_sum)
    for given in (values, list(values)):
        np.testing.assert_array_equal(total(given), [6, 9])


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


def test_members_of_an_enumeration_of_integers_compute_as_numbers() -> None:
    @fed.computation("{int8}@CLIENTS", "int32@SERVER")
    def levels(own: Any, other: Any) -> Any:
        return fed.federated_max(own * Level.HIGH), other + Level.LOW

    assert str(levels.type_signature.result) == "<int8@SERVER,int32@SERVER>"
    assert list(map(int, levels([Level.LOW, Level.HIGH], Level.HIGH))) == [25, 6]
    assert int(fed.computation(lambda x: x + 1)(Level.HIGH)) == 6


@pytest.mark.parametrize("odd", [np.array(["a"]), np.array([b"a"]), np.array([None])])
def test_an_array_without_numbers_is_refused_by_the_name_of_its_client(odd: np.ndarray) -> None:
    with pytest.raises(fed.ClientError, match="client 1 has dtype .*, but float32.* is expected"):
        total([np.ones(1, np.float32), odd])


def test_a_key_of_jax_is_asked_for_its_bits() -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    same = fed.computation("{uint32[2]}@CLIENTS")(lambda x: x)
    with pytest.raises(FederatedTypeError, match="its bits: jax.random.key_data"):
        same(keys)
    assert same(jax.random.key_data(keys)).shape == (2, 2)
