"""Every intrinsic against numpy, in chunks that divide the clients and in chunks that do not."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from calque import federated as fed
from calque.errors import ClientError, FederatedTypeError
from calque.federated import CLIENTS, SERVER

RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(7, 3)).astype(np.float32)
WEIGHTS = RNG.uniform(1, 5, size=7).astype(np.float32)
INTEGERS = RNG.integers(0, 100, size=7).astype(np.int32)
CHUNKS = pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16])


def run(function: Callable[..., Any], types: tuple[str, ...], *args: Any, **options: Any) -> Any:
    return fed.computation(function, *types).configured(**options)(*args)


@pytest.mark.sampled(15)
@CHUNKS
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int8", "complex64"])
def test_sum(dtype: str, chunk: int) -> None:
    values = (10 * RNG.normal(size=(7, 3))).astype(dtype)
    got = run(fed.federated_sum, (f"{{{dtype}[3]}}@CLIENTS",), values, chunk=chunk)
    assert got.dtype == dtype
    wide = np.float32 if dtype == "float16" else dtype
    np.testing.assert_allclose(got, values.sum(0, dtype=wide).astype(dtype), rtol=1e-5)


@CHUNKS
def test_mean(chunk: int) -> None:
    got = run(fed.federated_mean, ("{float32[3]}@CLIENTS",), VECTORS, chunk=chunk)
    np.testing.assert_allclose(got, VECTORS.mean(0), rtol=1e-5)


@CHUNKS
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_weighted_mean(dtype: str, chunk: int) -> None:
    weights = WEIGHTS.astype(dtype)
    types = ("{float32[3]}@CLIENTS", f"{{{dtype}}}@CLIENTS")
    got = run(fed.federated_mean, types, VECTORS, weights, chunk=chunk)
    expected = np.average(VECTORS, axis=0, weights=weights)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_weights_whose_sum_overflows_their_dtype(dtype: str) -> None:
    weights = np.array([100, 100, 50], dtype) * np.array(2**23 if dtype == "int32" else 1, dtype)
    values = np.float32([1.0, 2.0, 6.0])
    types = ("{float32}@CLIENTS", f"{{{dtype}}}@CLIENTS")
    expected = np.average(values, weights=weights.astype(float))
    np.testing.assert_allclose(run(fed.federated_mean, types, values, weights), expected, rtol=1e-6)


def test_means_of_halves_are_added_up_in_single_precision() -> None:
    values = np.full(4000, 1.0, np.float16)
    got = run(fed.federated_mean, ("{float16}@CLIENTS",), values)
    assert (got.dtype, float(got)) == (np.float16, 1.0)
    ones = np.ones(4000, np.float16)
    types = ("{float16}@CLIENTS", "{float16}@CLIENTS")
    assert float(run(fed.federated_mean, types, values, ones)) == 1.0


@pytest.mark.sampled(9)
@CHUNKS
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_min_and_max(dtype: str, chunk: int) -> None:
    values = (3 * VECTORS - 5).astype(dtype)
    types = (f"{{{dtype}[3]}}@CLIENTS",)
    np.testing.assert_array_equal(run(fed.federated_min, types, values, chunk=chunk), values.min(0))
    np.testing.assert_array_equal(run(fed.federated_max, types, values, chunk=chunk), values.max(0))


@CHUNKS
def test_aggregate(chunk: int) -> None:
    def spread(values: Any) -> Any:
        return fed.federated_aggregate(
            values,
            {"sum": 0.0, "squares": 0.0, "count": 0},
            lambda acc, x: {
                "sum": acc.sum + x,
                "squares": acc.squares + x * x,
                "count": acc["count"] + 1,
            },
            lambda a, b: {
                "sum": a.sum + b.sum,
                "squares": a.squares + b.squares,
                "count": a["count"] + b["count"],
            },
            lambda acc: acc.squares / acc["count"] - (acc.sum / acc["count"]) ** 2,
        )

    got = run(spread, ("{float32}@CLIENTS",), VECTORS[:, 0], chunk=chunk)
    np.testing.assert_allclose(got, VECTORS[:, 0].var(), rtol=1e-4)


@CHUNKS
def test_reduce_goes_in_the_order_of_the_clients(chunk: int) -> None:
    def horner(values: Any) -> Any:
        return fed.federated_reduce(values, 0, lambda acc, digit: acc * 10 + digit)

    assert int(run(horner, ("{int32}@CLIENTS",), [3, 1, 4, 1, 5], chunk=chunk)) == 31415


@CHUNKS
def test_collect(chunk: int) -> None:
    got = run(fed.federated_collect, ("{float32[3]}@CLIENTS",), VECTORS, chunk=chunk)
    np.testing.assert_array_equal(got.elements, VECTORS)
    assert int(got.length) == 7


@CHUNKS
def test_select(chunk: int) -> None:
    def select(keys: Any, table: Any) -> Any:
        return fed.federated_select(keys, 3, table, lambda t, key: (take(t, key), key))

    @fed.local("float32[3,2]", "int32", framework="jax")
    def take(table: Any, key: Any) -> Any:
        return table[key]

    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    keys = np.array([[0, 1], [2, 2], [1, 0]], np.int32)
    types = ("{int32[2]}@CLIENTS", "float32[3,2]@SERVER")
    rows, again = run(select, types, keys, table, chunk=chunk).elements
    np.testing.assert_array_equal(rows, table[keys])
    np.testing.assert_array_equal(again, keys)
    for odd in (3, -1):
        with pytest.raises(ClientError, match="client 1 has a key that is negative or not below"):
            run(select, types, np.array([[0, 1], [2, odd], [1, 0]], np.int32), table, chunk=chunk)


@pytest.mark.sampled(5)
@CHUNKS
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_secure_sum(dtype: str, chunk: int) -> None:
    values = {"a": (INTEGERS % 16).astype(dtype), "b": np.ones((7, 2), dtype)}
    kind = f"{{<a={dtype},b={dtype}[2]>}}@CLIENTS"

    def total(v: Any) -> Any:
        return fed.federated_secure_sum(v, 4)

    got = run(total, (kind,), values, chunk=chunk)
    assert int(got["a"]) == int(values["a"].sum())
    assert got["a"].dtype == dtype
    assert got["b"].tolist() == [7, 7]


@pytest.mark.parametrize("bad", [-1, 16, 2**30])
def test_secure_sum_names_the_client_with_too_many_bits(bad: int) -> None:
    with pytest.raises(
        ClientError, match="client 2 passes federated_secure_sum a value that does not fit its bits"
    ):
        run(lambda v: fed.federated_secure_sum(v, 4), ("{int32}@CLIENTS",), [1, 15, bad, bad])


def test_secure_sum_refuses_sums_that_may_not_fit() -> None:
    values = np.ones(9, np.uint8)
    with pytest.raises(FederatedTypeError, match="9 clients' values of 5 bits may not fit uint8"):
        run(lambda v: fed.federated_secure_sum(v, 5), ("{uint8}@CLIENTS",), values)
    with pytest.raises(FederatedTypeError, match="Use 1 to 31 bits"):
        fed.computation(lambda v: fed.federated_secure_sum(v, 32), "{int32}@CLIENTS")


def test_what_a_client_sends_to_a_secure_sum_is_hidden() -> None:
    """The sum of one client out of two looks like anything: half of the bits are set, about."""
    from calque.federated.compiler.reducers import COUNT, SecureSum

    comp = fed.computation(lambda v: fed.federated_secure_sum(v, 4), "{int32[1000]}@CLIENTS")
    reducer = SecureSum(comp._program.plan.stages[0].aggregations[0][1], {COUNT: 2})
    one = np.zeros((1, 1000), np.int32)
    start = reducer.start(jax.ShapeDtypeStruct((1000,), np.int32))
    sent = reducer.add(start, one, np.array([True]), np.array([0], np.int32))
    bits = np.unpackbits(np.asarray(sent).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.02


def test_broadcast_and_map() -> None:
    def shifted(values: Any, offset: Any) -> Any:
        together = fed.federated_zip((values, fed.federated_broadcast(offset)))
        return fed.federated_map(lambda v, o: v - o, together)

    types = ("{float32[3]}@CLIENTS", "float32[3]@SERVER")
    got = run(shifted, types, VECTORS, VECTORS[0])
    np.testing.assert_array_equal(got, VECTORS - VECTORS[0])


def test_map_at_the_server() -> None:
    assert (
        float(run(lambda x: fed.federated_map(lambda v: v * 2, x), ("float32@SERVER",), 3.0)) == 6
    )


def test_zip_of_structs_keeps_names() -> None:
    def zipped(a: Any, b: Any) -> Any:
        return fed.federated_zip({"a": a, "both": (a, b)})

    got = run(zipped, ("{int32}@CLIENTS", "{float32[3]}@CLIENTS"), INTEGERS, VECTORS)
    np.testing.assert_array_equal(got["a"], INTEGERS)
    np.testing.assert_array_equal(got["both"][1], VECTORS)


@pytest.mark.parametrize("placement", [CLIENTS, SERVER])
def test_value(placement: Any) -> None:
    comp = fed.computation(lambda: fed.federated_value((1, np.float32([2, 3])), placement))
    one, two = comp()
    assert (int(one), two.tolist()) == (1, [2, 3])
    assert str(comp.type_signature) == f"( -> <int32,float32[2]>@{placement})"


def test_eval() -> None:
    @fed.local(framework="jax")
    def ones() -> Any:
        return jnp.ones(2)

    at_server = fed.computation(lambda: fed.federated_eval(ones, SERVER))
    assert at_server().tolist() == [1, 1]
    at_clients = fed.computation(lambda: fed.federated_eval(ones, CLIENTS))
    assert at_clients.configured(clients=3)().tolist() == [[1, 1]] * 3
    with pytest.raises(FederatedTypeError, match=r"configured\(clients=10\)"):
        at_clients()


def test_the_sum_of_what_is_the_same_on_all_counts_every_client() -> None:
    def total(values: Any, one: Any) -> Any:
        return fed.federated_sum(fed.federated_broadcast(one)), fed.federated_sum(values)

    got = run(total, ("{int32}@CLIENTS", "int32@SERVER"), INTEGERS, 3, chunk=2)
    assert [int(v) for v in got] == [21, INTEGERS.sum()]


SEQUENCES = [np.arange(n, dtype=np.int32) + n for n in (3, 0, 5, 1)]


@CHUNKS
def test_sequences_of_different_lengths_are_exact(chunk: int) -> None:
    def sums(data: Any) -> Any:
        return fed.sequence_sum(data), fed.federated_sum(fed.sequence_sum(data))

    each, total = run(sums, ("{int32*}@CLIENTS",), SEQUENCES, chunk=chunk)
    assert each.tolist() == [s.sum() for s in SEQUENCES]
    assert int(total) == sum(s.sum() for s in SEQUENCES)


@CHUNKS
def test_sequence_reduce(chunk: int) -> None:
    def counts(data: Any) -> Any:
        return fed.sequence_reduce(data, 0, lambda count, _: count + 1)

    got = run(counts, ("{int32*}@CLIENTS",), SEQUENCES, chunk=chunk)
    assert got.tolist() == [3, 0, 5, 1]


@CHUNKS
def test_sequence_map(chunk: int) -> None:
    def squares(data: Any) -> Any:
        return fed.sequence_sum(fed.sequence_map(lambda x: x * x + 1, data))

    got = run(squares, ("{int32*}@CLIENTS",), SEQUENCES, chunk=chunk)
    assert got.tolist() == [(s * s + 1).sum() for s in SEQUENCES]


def test_sequences_at_the_server_and_nowhere() -> None:
    def at_server(data: Any) -> Any:
        return fed.sequence_sum(data)

    assert int(run(at_server, ("int32*@SERVER",), [1, 2, 3])) == 6
    assert int(run(at_server, ("int32*",), [1, 2, 3])) == 6
    assert int(run(at_server, ("int32*",), [])) == 0


def test_sequences_of_structs() -> None:
    def dot(data: Any) -> Any:
        return fed.sequence_reduce(data, 0.0, lambda acc, e: acc + e.x * e.w)

    data = [{"x": VECTORS[:n, 0], "w": VECTORS[:n, 1]} for n in (2, 5)]
    got = run(dot, ("{<x=float32,w=float32>*}@CLIENTS",), data)
    np.testing.assert_allclose(got, [(d["x"] * d["w"]).sum() for d in data], rtol=1e-5)
    rows = [[{"x": 2.0, "w": 3.0}, {"x": 1.0, "w": 1.0}], []]
    assert run(dot, ("{<x=float32,w=float32>*}@CLIENTS",), rows).tolist() == [7, 0]


def test_a_sequence_is_a_sequence_in_local_functions_of_both_frameworks() -> None:
    @fed.local("float32[2]*", framework="jax")
    def by_jax(data: Any) -> Any:
        return jnp.where(data.mask[:, None], data.elements, 0).sum()

    @fed.local("float32[2]*")
    def by_torch(data: Any) -> Any:
        keep = torch.arange(data.elements.shape[0], device=data.elements.device) < data.length
        return torch.where(keep[:, None], data.elements, 0.0).sum()

    @fed.local("float32[2]*")
    def by_mask(data: Any) -> Any:
        return torch.where(data.mask[:, None], data.elements, 0.0).sum()

    @fed.local("float32[2]*")
    def by_sum(data: Any) -> Any:
        return data.sum().sum()

    data = [RNG.normal(size=(n, 2)).astype(np.float32) for n in (3, 1, 4)]
    for function in (by_jax, by_torch, by_mask, by_sum):
        got = run(lambda d, f=function: fed.federated_map(f, d), ("{float32[2]*}@CLIENTS",), data)
        np.testing.assert_allclose(got, [d.sum() for d in data], rtol=1e-5)


def test_data_is_given_when_the_computation_runs() -> None:
    comp = fed.computation(lambda: fed.federated_sum(fed.data("shards", "{int32}@CLIENTS")))
    assert int(comp.configured(data={"shards": [1, 2, 3]})()) == 6
    with pytest.raises(FederatedTypeError, match="the data 'shards' of type"):
        comp()


def test_results_come_in_the_containers_that_the_function_made() -> None:
    @dataclasses.dataclass
    class Stats:
        total: Any
        least: Any

    def stats(values: Any) -> Any:
        return Stats(fed.federated_sum(values), [fed.federated_min(values)])

    got = run(stats, ("{int32}@CLIENTS",), [3, 1, 2])
    assert isinstance(got, Stats)
    assert int(got.total) == 6
    assert isinstance(got.least, list)


def test_several_passes_over_the_clients() -> None:
    """Deviations from the mean, whose mean needs a second pass; what the first kept is reused."""

    def deviations(values: Any) -> Any:
        doubled = fed.federated_map(lambda v: v * 2, values)
        mean = fed.federated_mean(doubled)
        off = doubled - fed.federated_broadcast(mean)
        return off, fed.federated_mean(off * off)

    for chunk in (1, 2, 7):
        off, variance = run(deviations, ("{float32[3]}@CLIENTS",), VECTORS, chunk=chunk)
        expected = 2 * VECTORS - (2 * VECTORS).mean(0)
        np.testing.assert_allclose(off, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(variance, (expected**2).mean(0), rtol=1e-5)


@CHUNKS
def test_a_client_that_gives_nan_is_named(chunk: int) -> None:
    def logs(values: Any) -> Any:
        return fed.federated_mean(fed.federated_map(log, values))

    @fed.local("float32", framework="jax")
    def log(x: Any) -> Any:
        return jnp.log(x)

    comp = fed.computation(logs, "{float32}@CLIENTS").configured(chunk=chunk)
    np.testing.assert_allclose(comp([1.0, 1.0, 1.0]), 0)
    with pytest.raises(ClientError, match="client 2 passes NaN to federated_mean") as caught:
        comp([1.0, 2.0, -1.0, 3.0])
    assert "test_intrinsics.py" in str(caught.value)
    assert np.isnan(comp.configured(check=False)([1.0, -1.0]))


def test_clients_are_named_at_every_call_of_every_size() -> None:
    def both(values: Any) -> Any:
        return fed.federated_mean(values), fed.federated_reduce(values, 0.0, lambda a, x: a + x)

    comp = fed.computation(both, "{float32}@CLIENTS")
    nan = np.float32("nan")
    for bad in ([1.0, nan], [nan, 1.0, 2.0], [1.0, nan], [1.0, 2.0, nan]):
        comp([1.0] * len(bad))
        with pytest.raises(
            ClientError, match=f"client {bad.index(nan)} passes NaN to federated_mean"
        ):
            comp(bad)


def test_nan_of_clients_that_only_fill_a_chunk_does_not_count() -> None:
    comp = fed.computation(lambda v: fed.federated_sum(v), "{float32}@CLIENTS").configured(chunk=4)
    with pytest.raises(ClientError, match="client 0"):
        comp([np.float32("nan"), 1.0, 2.0, 3.0, 4.0])
    assert float(comp([np.float32("inf"), 1.0, 2.0, 3.0, 4.0])) == np.inf


WRONG = {
    "sum at the server": (
        "int32@SERVER",
        lambda v: fed.federated_sum(v),
        "expects a value at CLIENTS",
    ),
    "sum of nothing placed": ("int32", lambda v: fed.federated_sum(v), "not int32"),
    "sum of booleans": ("{bool}@CLIENTS", lambda v: fed.federated_sum(v), "expects numbers"),
    "mean of integers": ("{int32}@CLIENTS", lambda v: fed.federated_mean(v), "expects floats"),
    "max of complex": ("{complex64}@CLIENTS", lambda v: fed.federated_max(v), "real numbers"),
    "sum of sequences": ("{int32*}@CLIENTS", lambda v: fed.federated_sum(v), "expects numbers"),
    "vector weights": (
        "{float32[2]}@CLIENTS",
        lambda v: fed.federated_mean(v, v),
        "Pass one real number",
    ),
    "broadcast of clients": (
        "{int32}@CLIENTS",
        lambda v: fed.federated_broadcast(v),
        "expects a value at SERVER",
    ),
    "value of what is placed": (
        "int32@SERVER",
        lambda v: fed.federated_value(v, CLIENTS),
        "expects a value that is not placed",
    ),
    "no placement": ("int32", lambda v: fed.federated_value(v, "CLIENTS"), "is not a placement"),
    "zip of two places": (
        "<{int32}@CLIENTS,int32@SERVER>",
        lambda v: fed.federated_zip(v),
        "cannot be zipped: <{int32}@CLIENTS,int32@SERVER>",
    ),
    "a step that changes the type": (
        "{float32}@CLIENTS",
        lambda v: fed.federated_reduce(v, 0, lambda acc, x: acc + x),
        "starts with int32, but a step returns float32",
    ),
    "no function": ("{int32}@CLIENTS", lambda v: fed.federated_map(3, v), "expects a function"),
    "sum of a tensor": ("int32", lambda v: fed.sequence_sum(v), "expects a sequence"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_at_the_line(name: str) -> None:
    kind, function, message = WRONG[name]
    with pytest.raises(FederatedTypeError) as caught:
        fed.computation(function, kind)
    assert message in str(caught.value)
    assert "test_intrinsics.py" in str(caught.value)


def test_a_function_of_another_type_is_shown_with_what_it_is_given() -> None:
    @fed.local("float32", framework="jax")
    def double(x: Any) -> Any:
        return 2 * x

    with pytest.raises(FederatedTypeError, match="takes float32 with int32"):
        fed.computation(lambda v: fed.federated_map(double, v), "{int32}@CLIENTS")


def test_intrinsics_are_only_for_computations() -> None:
    with pytest.raises(FederatedTypeError, match="federated_sum is called outside"):
        fed.federated_sum([1, 2])


def test_arguments_without_names_go_to_parameters_by_position() -> None:
    @fed.local("float32", "float32", framework="jax")
    def difference(a: Any, b: Any) -> Any:
        return a - b

    types = ("{float32}@CLIENTS", "{float32}@CLIENTS")
    got = run(lambda x, y: fed.federated_map(difference, (x, y)), types, [5.0], [3.0])
    assert got.tolist() == [2]
    named = run(lambda x, y: fed.federated_map(difference, {"a": x, "b": y}), types, [5.0], [3.0])
    assert named.tolist() == [2]
    with pytest.raises(FederatedTypeError, match="takes <a=float32,b=float32> with <b="):
        run(lambda x, y: fed.federated_map(difference, {"b": x, "a": y}), types, [5.0], [3.0])


def test_a_sequence_cannot_be_reduced_in_pytorch() -> None:
    with pytest.raises(FederatedTypeError, match="sequence_reduce"):
        fed.local("float32*")(lambda data: data.reduce(0.0, lambda total, one: total + one))


@pytest.mark.sampled(2)
@CHUNKS
def test_nan_that_no_client_holds_is_found(chunk: int) -> None:
    one, two = ("{float32}@CLIENTS",), ("{float32}@CLIENTS",) * 2
    for function, types, args in [
        (fed.federated_sum, one, ([1.0, np.inf, -np.inf],)),
        (fed.federated_mean, two, ([1.0, 2.0, 3.0], [1.0, np.inf, 1.0])),
    ]:
        with pytest.raises(ClientError, match="infinite values or weights of clients give NaN in"):
            run(function, types, *args, chunk=chunk)
        assert np.isnan(run(function, types, *args, chunk=chunk, check=False))
    assert run(fed.federated_sum, one, [1.0, np.inf], chunk=chunk) == np.inf
    with pytest.raises(ClientError, match="client 2 passes NaN"):
        run(fed.federated_sum, one, [np.inf, -np.inf, np.nan], chunk=chunk)
