"""The reducers of all aggregations, by the names of their intrinsics."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calque.federated.building_blocks import Call, Intrinsic, Literal
from calque.federated.compiler import sums
from calque.federated.compiler.evaluating import Environment, evaluate
from calque.federated.compiler.extremes import Extreme, Maximum
from calque.federated.compiler.overflow import dtype_names, estimated, wrapped
from calque.federated.compiler.reducer import COUNT, Reducer, ValueRefusal, gathered, masked
from calque.federated.errors import type_error
from calque.federated.representation import Sequence


class Sum(Reducer):
    """The sum over the clients; half precision is summed in float32.

    Integers are also added up as floats, which differ much from a sum that has wrapped around.
    """

    def start(self, one: Any) -> Any:
        leaves, self._spec = jax.tree.flatten(one)
        self._dtypes = [leaf.dtype for leaf in leaves]
        estimates = [jax.ShapeDtypeStruct(n.shape, estimated(n.dtype)) for n in _whole(leaves)]
        return sums.nothing([*leaves, *estimates])

    def add(self, running: Any, values: object, mask: object, clients: object) -> Any:
        leaves = [masked(leaf, mask, 0) for leaf in jax.tree.leaves(values)]
        estimates = [leaf.astype(estimated(leaf.dtype)) for leaf in _whole(leaves)]
        return sums.with_chunk(running, [*leaves, *estimates])

    def across(self, running: Any, axis: str) -> Any:
        return sums.across(running, axis)

    def finish(self, running: Any, clients: int) -> Any:
        totals = sums.results(running)[: len(self._dtypes)]
        found = [
            self.scaled(total, clients).astype(dtype)
            for total, dtype in zip(totals, self._dtypes, strict=True)
        ]
        return jax.tree.unflatten(self._spec, found)

    def refused(self, running: Any) -> ValueRefusal | None:
        results = sums.results(running)
        totals = _whole(results[: len(self._dtypes)])
        if not totals:
            return None
        estimates = results[len(self._dtypes) :]
        return ValueRefusal(
            f"a sum does not fit {dtype_names(totals)}",
            wrapped(totals, estimates),
            "Convert the values to a wider dtype on the clients: federated_map",
        )

    def scaled(self, total: object, clients: int) -> Any:
        """Returns the result for a sum."""
        return total


class Mean(Sum):
    """The unweighted mean over the clients."""

    of_none = False

    def scaled(self, total: Any, clients: int) -> Any:
        return total / np.array(clients, total.dtype)


class WeightedMean(Sum):
    """The weighted mean over the clients: running sums of products and of weights."""

    of_none = False

    def of_client(self, environment: Environment) -> Any:
        value, weight = (evaluate(part, environment) for part in self.parts)
        if not jnp.issubdtype(weight.dtype, jnp.floating):  # a sum of integers could overflow
            wide = any(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(value))
            weight = weight.astype(jnp.float64 if wide else jnp.float32)
        weight = weight.astype(sums.wide(weight.dtype))
        self._value_dtypes = jax.tree.map(lambda v: v.dtype, value)

        def product(leaf: Any) -> Any:
            wide = leaf.astype(sums.wide(leaf.dtype))
            return (wide * weight).astype(wide.dtype)

        return jax.tree.map(product, value), weight

    def finish(self, running: object, clients: int) -> Any:
        products, total = super().finish(running, clients)
        return jax.tree.map(
            lambda s, dtype: (s / total.astype(s.dtype)).astype(dtype), products, self._value_dtypes
        )

    def refused(self, running: Any) -> ValueRefusal | None:
        return ValueRefusal(
            "the weights of all clients sum to zero", sums.results(running)[-1] == 0
        )


class Reduce(Reducer):
    """`op(op(zero, first), second), …`, in the order of the clients."""

    shows_nan = False

    def prepare(self) -> None:
        self.op: Any
        self.zero: Any
        self.zero, self.op = (evaluate(part, self.environment) for part in self.parts[1:3])

    def of_client(self, environment: Environment) -> Any:
        return evaluate(self.parts[0], environment)

    def start(self, one: Any) -> Any:
        return self.zero

    def add(self, running: object, values: object, mask: object, clients: object) -> Any:
        def step(carry: Any, x: Any) -> tuple[Any, None]:
            counts, value = x

            def either(value: object, instead: object) -> Any:
                return jax.tree.map(lambda v, i: jnp.where(counts, v, i), value, instead)

            # Padding repeats the first step, with a copy of the first client, so that derivatives
            # are finite.
            return either(self.op((either(carry, self.zero), value)), carry), None

        return jax.lax.scan(step, running, (mask, values))[0]

    def of_all(self, stacked: object) -> Any:
        """Returns the result for the values of all clients, kept on several devices."""
        clients = jnp.ones(jax.tree.leaves(stacked)[0].shape[0], jnp.bool_)
        return self.add(self.zero, stacked, clients, None)


class Aggregate(Reduce):
    """Accumulates client by client, merges the results of several devices, and reports."""

    def prepare(self) -> None:
        super().prepare()
        self.merge: Any
        self.report: Any
        self.merge, self.report = (evaluate(part, self.environment) for part in self.parts[3:5])

    def across(self, running: object, axis: str) -> Any:
        found = gathered(running, axis)
        parts = [_row(found, device) for device in range(jax.lax.axis_size(axis))]
        return functools.reduce(lambda first, second: self.merge((first, second)), parts)

    def finish(self, running: object, clients: int) -> Any:
        return self.report(running)


class SecureSum(Reducer):
    """The sum of integers of a bit width, with each client's value hidden by masks that cancel.

    Every client adds a mask that it shares with the next client, and subtracts the mask that it
    shares with the previous one, modulo two to the number of bits of the dtype. The value that
    arrives from one client looks random; the masks add up to zero.
    """

    def prepare(self) -> None:
        bits = self.parts[1]
        assert isinstance(bits, Literal)
        self.bits: int = int(bits.value)

    def of_client(self, environment: Environment) -> Any:
        return evaluate(self.parts[0], environment)

    def start(self, one: Any) -> Any:
        self._dtypes = jax.tree.map(lambda s: s.dtype, one)
        return jax.tree.map(lambda s: jnp.zeros(s.shape, _unsigned(s.dtype)), one)

    def add(self, running: Any, values: Any, mask: Any, clients: Any) -> Any:
        count = self.environment[COUNT]
        leaves, spec = jax.tree.flatten(values)
        hidden_sums = []
        for index, (total, leaf) in enumerate(zip(jax.tree.leaves(running), leaves, strict=True)):
            key = jax.random.fold_in(jax.random.key(self.bits), index)

            def shared(
                client: Any, key: Any = key, leaf: Any = leaf, dtype: Any = total.dtype
            ) -> Any:
                return jax.random.bits(jax.random.fold_in(key, client), leaf.shape[1:], dtype)

            hidden = leaf.astype(total.dtype) + jax.vmap(shared)(clients)
            hidden = hidden - jax.vmap(shared)((clients + 1) % count)
            hidden_sums.append(total + masked(hidden, mask, 0).sum(0, dtype=total.dtype))
        return jax.tree.unflatten(spec, hidden_sums)

    def across(self, running: object, axis: str) -> Any:
        return jax.tree.map(lambda total: jax.lax.psum(total, axis), running)

    def finish(self, running: object, clients: int) -> Any:
        def back(total: Any, dtype: Any) -> Any:
            room = jnp.iinfo(dtype).max
            if clients * ((1 << self.bits) - 1) > room:
                raise type_error(
                    f"the sum of {clients} clients' values of {self.bits} bits may not fit {dtype}",
                    f"Values of at most {room // clients if clients else room} per client fit: "
                    "use fewer bits, or a wider dtype.",
                )
            return total.astype(dtype)

        return jax.tree.map(back, running, self._dtypes)

    def violated(self, contribution: object) -> Any:
        outside = [
            jnp.any((leaf < 0) | ((leaf >> self.bits) != 0))
            for leaf in jax.tree.leaves(contribution)
        ]
        return jnp.stack(outside).any()


class Collect(Reducer):
    """All values as a sequence, which are kept instead of reduced."""


REDUCERS: dict[str, type[Reducer]] = {
    "federated_sum": Sum,
    "federated_mean": Mean,
    "federated_weighted_mean": WeightedMean,
    "federated_min": Extreme,
    "federated_max": Maximum,
    "federated_reduce": Reduce,
    "federated_aggregate": Aggregate,
    "federated_secure_sum": SecureSum,
    "federated_collect": Collect,
}


def is_aggregation(call: Call) -> bool:
    """Returns True if a call aggregates values of the clients on the server."""
    return isinstance(call.function, Intrinsic) and call.function.uri in REDUCERS


def collected(stacked: object, clients: int) -> Sequence:
    """Returns the values of all clients as a sequence."""
    return Sequence(stacked, jnp.asarray(clients, jnp.int32))


def _row(stacked: object, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], stacked)


def _whole(leaves: list[Any]) -> list[Any]:
    """Returns the leaves that are integers."""
    return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.integer)]


def _unsigned(dtype: Any) -> Any:
    return np.dtype(f"uint{8 * np.dtype(dtype).itemsize}")
