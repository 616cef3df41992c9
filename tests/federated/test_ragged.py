"""Clients of different sizes in arrays without padding: the same results, and less memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from calque import federated as fed
from calque.federated import learning

LENGTHS = (2, 9, 0, 4, 1, 7, 0)


def clients(lengths: tuple[int, ...] = LENGTHS) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {"x": rng.normal(size=(n, 3)).astype(np.float32), "y": rng.integers(0, 2, n)}
        for n in lengths
    ]


def assert_same(found: Any, wanted: Any) -> None:
    for one, other in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5, 6], [5, 2, 0], [2, 6]])
def test_padded_and_ragged_hold_the_same(rows: list[int]) -> None:
    padded = learning.stage(clients())
    ragged = learning.stage(clients(), padded=False)
    assert isinstance(padded, fed.Sequence) and isinstance(ragged, fed.Ragged)
    assert_same(
        ragged.take(np.array(rows)).padded(), jax.tree.map(lambda a: a[np.array(rows)], padded)
    )
    assert_same(learning.stage(ragged), padded)


def test_ragged_arrays_have_no_room_for_the_longest_of_each() -> None:
    found = learning.stage(clients((1000, *[1] * 99)), padded=False)
    assert sum(leaf.size for leaf in jax.tree.leaves(found.elements)) < 1.2 * 4 * 1099


def test_clients_of_the_same_size_are_stacked() -> None:
    assert isinstance(learning.stage(clients((4, 4)), padded=False), fed.Sequence)


@pytest.mark.parametrize(
    ("lengths", "devices", "each"),
    [(LENGTHS, 2, 4), (LENGTHS, 4, 3), ((3,), 4, 1), ((0, 0, 1), 4, 2), ((900, *[1] * 9), 2, 5)],
)
def test_each_device_has_the_rows_of_its_clients(
    lengths: tuple[int, ...], devices: int, each: int
) -> None:
    ragged = fed.Ragged.of(clients(lengths))
    found = ragged.over_devices(devices, devices * each)
    rows = len(found.elements["y"]) // devices
    first = np.repeat(np.arange(devices) * rows, each)
    start, length = found.places
    assert (first <= start).all() and (start + length <= first + rows).all()
    assert (length[: len(lengths)] == lengths).all()
    assert rows <= 1.2 * max(sum(lengths[i : i + each]) for i in range(0, len(lengths), each)) + 1
    back = jax.tree.map(jnp.asarray, found).padded()
    for client, own in enumerate(clients(lengths)):
        kept = jax.tree.map(lambda leaf, c=client, n=len(own["y"]): leaf[c][:n], back.elements)
        assert_same(kept, own)


def test_some_clients_of_many_need_no_copy_and_no_new_program() -> None:
    ragged = learning.stage(clients(), padded=False)
    some = ragged.take(np.array([1, 3]))
    assert some.elements["x"] is ragged.elements["x"]
    assert jax.tree.structure(some) == jax.tree.structure(ragged)


@fed.local("float32[3]*", framework="jax")
def weighed(x: Any) -> Any:
    return x.reduce(jnp.zeros(3), lambda value, element: 0.5 * value + element)


@fed.computation("{<a=float32[3]*,b=float32>}@CLIENTS", "float32@SERVER")
def everything(data: Any, scale: Any) -> Any:
    each = fed.federated_map(weighed, data["a"])
    total = fed.federated_sum(each)
    return {
        "in order": fed.federated_reduce(each, np.zeros(3, np.float32), lambda v, e: v * 0.5 + e),
        "each": each * data["b"],
        "off": each - fed.federated_broadcast(total * scale),
        "all": fed.federated_collect(fed.sequence_sum(data["a"])),
        "same": data,
    }


def of(make: Callable[[Any], Any]) -> Any:
    data = learning.stage([{"a": c["x"], "b": np.ones(len(c["x"]))} for c in clients()], False)
    return {"a": make(data.with_elements(data.elements["a"])), "b": np.arange(7, dtype=np.float32)}


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_a_computation_gives_the_same_for_both(chunk: int) -> None:
    comp = everything.configured(chunk=chunk)
    assert_same(comp(of(lambda r: r), 2.0), comp(of(lambda r: r.padded()), 2.0))


def test_a_list_of_clients_needs_memory_for_their_elements_alone() -> None:
    data = [{"a": np.ones((n, 3), np.float32), "b": 1.0} for n in (2000, *[1] * 199)]
    total = fed.computation("{<a=float32[3]*,b=float32>}@CLIENTS")(
        lambda data: fed.federated_sum(fed.federated_map(weighed, data["a"]))
    )
    memory = total.lower(data).compile().memory_analysis()
    padded = 200 * 2000 * 3 * 4
    assert memory.argument_size_in_bytes + memory.temp_size_in_bytes < padded / 20


def test_a_gradient_goes_to_the_elements_that_count() -> None:
    ragged = of(lambda r: r)["a"]

    def loss(x: Any) -> Any:
        found = everything({"a": ragged.with_elements(x), "b": np.ones(7)}, 0.0)
        return (found["each"] ** 2).sum()

    gradient = np.asarray(jax.grad(loss)(ragged.elements))
    assert (gradient[: sum(LENGTHS)] != 0).all() and not gradient[sum(LENGTHS) :].any()


def test_a_round_and_its_evaluation_are_the_same_for_both() -> None:
    found = []
    for padded in (True, False):
        torch.manual_seed(0)
        process = learning.fed_avg(
            torch.nn.Linear(3, 2), batch_size=4, shuffle=True, chunk=3, failing=0.2
        )
        state, staged = process.initialize(), learning.stage(clients(), padded)
        state, metrics = process.next(state, staged)
        found.append((state, metrics, learning.Evaluation(torch.nn.Linear(3, 2))(state, staged)))
    assert_same(*found)


def test_many_rounds_of_some_clients_are_one_program() -> None:
    process = learning.fed_avg(torch.nn.Linear(3, 2), batch_size=4)
    learning.run(process, clients((3, 8, 5, 6, 2, 9)), 5, participants=2, progress=False)
    (made,) = process._rounds.values()
    assert made._program._jitted._cache_size() == 1
