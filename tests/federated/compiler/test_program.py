"""The compiled program: one for all chunks, differentiable, exact in 64 bits, lean in memory."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calque import federated as fed
from calque.errors import FederatedTypeError

RNG = np.random.default_rng(1)


@fed.local("float32[4]", "float32[4]", framework="jax")
def update(model: Any, data: Any) -> Any:
    return model - 0.1 * (model - data)


@fed.computation("float32[4]@SERVER", "{float32[4]}@CLIENTS")
def round_of(model: Any, data: Any) -> Any:
    together = fed.federated_zip((fed.federated_broadcast(model), data))
    return fed.federated_mean(fed.federated_map(update, together))


MODEL = RNG.normal(size=4).astype(np.float32)
DATA = RNG.normal(size=(6, 4)).astype(np.float32)


def test_a_round_is_one_program() -> None:
    text = round_of.lower(MODEL, DATA).as_text()
    assert text.startswith("module @jit")
    assert text.count("stablehlo.while") == 1
    got = round_of(MODEL, DATA)
    np.testing.assert_allclose(got, (MODEL - 0.1 * (MODEL - DATA)).mean(0), rtol=1e-5)


def test_a_chunk_of_all_clients_has_no_loop() -> None:
    assert "stablehlo.while" not in round_of.configured(chunk=6).lower(MODEL, DATA).as_text()


@pytest.mark.parametrize("chunk", [1, 2, 4, 6])
def test_a_round_can_be_differentiated(chunk: int) -> None:
    comp = round_of.configured(chunk=chunk)

    def loss(model: Any, data: Any) -> Any:
        return (comp(model, data) ** 2).sum()

    def by_hand(model: Any, data: Any) -> Any:
        return ((model - 0.1 * (model - data)).mean(0) ** 2).sum()

    got = jax.grad(loss, (0, 1))(MODEL, DATA)
    expected = jax.grad(by_hand, (0, 1))(jnp.asarray(MODEL), jnp.asarray(DATA))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_computation_is_a_function_for_jax() -> None:
    models = jnp.stack([MODEL, 2 * MODEL])
    got = jax.jit(jax.vmap(lambda m: round_of(m, DATA)))(models)
    np.testing.assert_allclose(got[1], round_of(2 * MODEL, DATA), rtol=1e-5)


def test_memory_does_not_grow_with_the_clients_but_for_their_data() -> None:
    """Models of 100,000 numbers made from one number each."""

    @fed.local("float32[100000]", "float32", framework="jax")
    def moved(model: Any, by: Any) -> Any:
        return jnp.sin(model * by)

    @fed.computation("float32[100000]@SERVER", "{float32}@CLIENTS")
    def mean(model: Any, by: Any) -> Any:
        together = fed.federated_zip((fed.federated_broadcast(model), by))
        return fed.federated_mean(fed.federated_map(moved, together))

    def temporaries(clients: int, chunk: int) -> int:
        model, by = np.zeros(100_000, np.float32), np.zeros(clients, np.float32)
        compiled = mean.configured(chunk=chunk).lower(model, by).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    one_model = 4 * 100_000
    assert temporaries(1000, 2) < temporaries(10, 2) + one_model / 2
    assert temporaries(1000, 2) < 8 * one_model
    assert temporaries(40, 20) > temporaries(40, 1)


def test_float64_is_float64_whatever_the_mode_of_jax() -> None:
    comp = fed.computation(fed.federated_mean, "{float64}@CLIENTS")
    got = comp([1.0, 1.0 + 1e-12])
    assert got.dtype == np.float64
    assert float(got) == 1.0 + 5e-13
    assert not jax.config.jax_enable_x64


def test_int64_sums_do_not_wrap_at_32_bits() -> None:
    comp = fed.computation(fed.federated_sum, "{int64}@CLIENTS")
    assert int(comp(np.array([2**40, 2**40]))) == 2**41


def test_a_result_of_64_bits_inside_is_known() -> None:
    """PyTorch adds up int32 in int64."""

    @fed.local("int32[3]")
    def total(x: Any) -> Any:
        return x.sum()

    comp = fed.computation(
        lambda x: fed.federated_sum(fed.federated_map(total, x)), "{int32[3]}@CLIENTS"
    )
    assert str(comp.type_signature.result) == "int64@SERVER"
    assert int(comp(np.full((4, 3), 2**30, np.int32))) == 12 * 2**30


def test_a_struct_argument_may_hold_both_placements() -> None:
    @fed.computation("<state=<a=float32>@SERVER,data={float32}@CLIENTS>")
    def mixed(both: Any) -> Any:
        shift = fed.federated_broadcast(both.state.a)
        return {"mean": fed.federated_mean(both.data - shift), "data": both.data}

    got = mixed({"state": {"a": 1.0}, "data": [1.0, 3.0]})
    assert float(got["mean"]) == 1
    assert got["data"].tolist() == [1, 3]


def test_unused_arguments_and_plain_results() -> None:
    comp = fed.computation(lambda x, y: (3, y), "{int32}@CLIENTS", "float32")
    three, y = comp([1, 2], 2.5)
    assert (int(three), float(y)) == (3, 2.5)


def test_values_that_differ_may_depend_on_aggregates_of_aggregates() -> None:
    @fed.computation("{float32}@CLIENTS")
    def chained(x: Any) -> Any:
        for _ in range(3):
            x = x - fed.federated_broadcast(fed.federated_mean(x)) + 1.0
        return fed.federated_sum(x), fed.federated_max(x)

    values = np.float32([1, 2, 6])
    expected = values - values.mean() + 1
    for chunk in (1, 2, 3):
        total, most = chained.configured(chunk=chunk)(values)
        np.testing.assert_allclose(total, 3.0, rtol=1e-5)
        np.testing.assert_allclose(most, expected.max(), rtol=1e-5)


def test_computations_that_take_functions_run_inside_others_only() -> None:
    @fed.computation("(int32 -> int32)", "int32")
    def twice(f: Any, x: Any) -> Any:
        return f(f(x))

    with pytest.raises(FederatedTypeError, match="takes or returns functions"):
        twice(lambda x: x, 1)
    comp = fed.computation(lambda x: twice(lambda v: v * 3, x), "int32")
    assert int(comp(2)) == 18


def test_unknown_sizes_are_known_when_it_runs() -> None:
    @fed.local("float32[?]", framework="jax")
    def mean(x: Any) -> Any:
        return x.mean(), x * 2

    assert str(mean.type_signature) == "(float32[?] -> <float32,float32[?]>)"
    average, doubled = mean(np.float32([1, 3]))
    assert (float(average), doubled.tolist()) == (2, [2, 6])
    comp = fed.computation(lambda v: fed.federated_map(mean, v), "{float32[?]}@CLIENTS")
    assert comp([np.float32([1, 3]), np.float32([2, 4])])[0].tolist() == [2, 3]


def test_a_module_of_pytorch_is_a_local_function() -> None:
    import torch

    model = torch.nn.Linear(3, 2)
    apply = fed.local(model, "float32[3]")
    x = np.float32([1, 2, 3])
    np.testing.assert_allclose(apply(x), model(torch.tensor(x)).detach(), rtol=1e-5)


def test_results_do_not_depend_on_the_chunk() -> None:
    data = RNG.normal(size=(13, 4)).astype(np.float32)
    first = round_of.configured(chunk=1)(MODEL, data)
    for chunk in (2, 5, 13, 100):
        got = round_of.configured(chunk=chunk)(MODEL, data)
        np.testing.assert_allclose(got, first, rtol=1e-5, atol=1e-6)


def test_a_local_function_of_pytorch_may_write_to_its_arguments() -> None:
    @fed.local("float32[2]")
    def shifted(x: Any) -> Any:
        x += 1
        return x * 2

    x = np.float32([1, 2])
    assert shifted(x).tolist() == [4, 6]
    assert x.tolist() == [1, 2]


def test_clients_as_a_tuple_are_refused_with_the_way_to_pass_them() -> None:
    comp = fed.computation(fed.federated_sum, "{float32}@CLIENTS")
    with pytest.raises(FederatedTypeError, match="Pass a list with one value for each client"):
        comp((1.0, 2.0))


def test_random_operators_of_pytorch_are_refused_with_a_way_out() -> None:
    import torch

    with pytest.raises(FederatedTypeError, match="Draw them in a JAX local function"):

        @fed.local("float32[2]")
        def noisy(x: Any) -> Any:
            return torch.nn.functional.dropout(x)


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="an integer of at least 1"):
        round_of.configured(chunk=0)
    with pytest.raises(ValueError, match="not 1.5"):
        round_of.configured(chunk=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="non-negative integer, not -1"):
        round_of.configured(clients=-1)
    with pytest.raises(ValueError, match="no mesh with an axis 'clients'"):
        round_of.configured(axis="clients")
    with pytest.raises(TypeError, match=r"mesh must be a jax.sharding.Mesh .*, not int"):
        round_of.configured(mesh=3)  # type: ignore[arg-type]


def test_numpy_scalars_are_the_numbers_of_clients() -> None:
    @fed.computation("{float32}@CLIENTS")
    def total(x: Any) -> Any:
        return fed.federated_sum(x)

    assert float(total([np.float64(1.5), np.float32(2.0), 3.0])) == 6.5
    assert float(fed.local("float64")(lambda x: x)(np.float64(0.1))) == 0.1


def test_a_result_has_the_dtype_of_its_type_wherever_a_python_number_has_been() -> None:
    @fed.local("float32", "bfloat16", framework="jax")
    def product(x: Any, y: Any) -> Any:
        return x * y

    @fed.computation("{int32}@CLIENTS", "{bfloat16}@CLIENTS")
    def halves(x: Any, y: Any) -> Any:
        return x * 0.5, (x * 0.5) * y, fed.federated_map(product, (x * 0.5, y))

    for got in halves([3], np.asarray([2], jnp.bfloat16)):
        assert got.dtype == jnp.float32 and not got.weak_type
    kind, other = (
        jnp.bfloat16(2),
        fed.computation("float32@SERVER", "bfloat16@SERVER")(lambda x, y: x * y),
    )
    assert jax.jit(lambda x: other(x, kind))(1.5).dtype == jnp.float32


def test_what_is_32_bits_stays_so_beside_what_is_64() -> None:
    @fed.computation("{int32}@CLIENTS", "float64@SERVER")
    def halves(x: Any, y: Any) -> Any:
        return x * 0.5, y

    half, whole = halves([1, 3], 0.1)
    assert (half.dtype, half.tolist()) == (jnp.float32, [0.5, 1.5])
    assert float(whole) == 0.1


def test_the_program_of_a_type_needs_no_arguments() -> None:
    comp = fed.computation(
        lambda x, y: fed.federated_sum(x * y), "{float32[3]}@CLIENTS", "{int32}@CLIENTS"
    )
    text = comp.configured(clients=4).lower().as_text()
    assert text == comp.lower(np.ones((4, 3), np.float32), np.ones(4, np.int32)).as_text()
    with pytest.raises(TypeError, match="the number of clients"):
        comp.lower()
    unknown = fed.computation(fed.sequence_sum, "int32*@SERVER")
    with pytest.raises(TypeError, match="known only from arguments"):
        unknown.lower()


def test_clients_that_fill_a_chunk_are_no_nan_in_a_gradient() -> None:
    @fed.local("float32", "float32", framework="jax")
    def step(carry: Any, x: Any) -> Any:
        return jnp.sqrt(carry - x)  # has no derivative after the last client

    @fed.computation("{float32}@CLIENTS")
    def chained(x: Any) -> Any:
        same = fed.federated_aggregate(x, np.float32(10), step, lambda a, b: a + b, lambda a: a)
        return fed.federated_reduce(x, np.float32(10), step) + same

    def expected(x: Any) -> Any:
        carry = 10.0
        for one in x:
            carry = jnp.sqrt(carry - one)
        return 2 * carry

    x = np.array([1.5, 0.5, 1.0], np.float32)
    for chunk in (1, 2):
        gradient = jax.grad(chained.configured(chunk=chunk))(x)
        np.testing.assert_allclose(gradient, jax.grad(expected)(x), rtol=1e-5)
