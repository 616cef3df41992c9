"""One pass over the clients: a scan over chunks of them, each chunk vmapped.

The inputs are the server's values, and the clients' values, chunk by chunk; the outputs are running
results. So a pass needs memory for the models of one chunk, regardless of the number of clients,
unless the plan keeps their results.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from calque.errors import ClientError, Origin
from calque.federated.building_blocks import Call, Intrinsic
from calque.federated.compiler.client_parts import (
    joined,
    rows_of,
    same_of,
    split,
    with_rows,
    with_same,
)
from calque.federated.compiler.evaluating import evaluate
from calque.federated.compiler.layout import ClientLayout, padded
from calque.federated.compiler.overflow import OF_SEQUENCE, noticed
from calque.federated.compiler.planning import Stage
from calque.federated.compiler.reducers import COUNT, REDUCERS, Reduce, Reducer, Sum, collected
from calque.federated.ragged import ClientPosition
from calque.federated.representation import Sequence, over_chunk
from calque.federated.types import Type

NOBODY = np.iinfo(np.int32).max
"""A number that is not that of any client."""


@dataclass(frozen=True)
class Check:
    """A check of every client in a pass, or of all clients together.

    Attributes:
        what: the error message for a client that fails it.
        origin: the user's line.
        of_all: whether it is a check of all clients together.
        remedy: what to do about it.
        of_server: whether it checks the values sent to clients, which may explain failures of later
            checks.
    """

    what: str
    origin: Origin | None
    of_all: bool = False
    remedy: str = "Check this client's data"
    of_server: bool = False


def run_pass(
    stage: Stage,
    server: dict[str, Any],
    clients: dict[str, tuple[Any, Type]],
    layout: ClientLayout,
    locate: bool,
) -> tuple[dict[str, Any], dict[str, Any], list[tuple[Check, Any]]]:
    """Run the clients' calls of a stage, and aggregate the results.

    Args:
        stage: the calls.
        server: held values by name, the same for all clients.
        clients: the held values of all clients and their types, by name, for values that differ.
        layout: how the clients are laid out.
        locate: whether to check each client for NaN. If not, this is checked only where the results
            would not show NaN.

    Returns:
        The results of aggregations, by name; the kept values of all clients, by name; and for every
        check, the number of the first client that fails it, or a number that is too large if none
        does.
    """
    differing = {name: split(held, kind) for name, (held, kind) in clients.items()}
    inputs = jax.tree.map(lambda leaf: padded(leaf, layout), differing)
    numbers = jnp.arange(layout.padded, dtype=jnp.int32)
    one = _Pass(stage, clients, layout, locate)
    if layout.mesh is None:
        results, kept, failed = one.run(inputs, server, numbers)
    else:
        over, whole = PartitionSpec(layout.axis), PartitionSpec()
        spread = jax.shard_map(
            one.run,
            mesh=layout.mesh,
            in_specs=(over, whole, over, (over, whole)),
            out_specs=(whole, over, whole),
            # A traced PyTorch function contains its own program, which has no mesh axes.
            check_vma=False,
        )
        rows = {name: rows_of(held) for name, (held, _) in clients.items()}
        same = {name: same_of(held, kind) for name, (held, kind) in clients.items()}
        results, kept, failed = spread(inputs, server, numbers, (rows, same))
    kept = jax.tree.map(lambda leaf: leaf[: layout.clients], kept)
    for name, call in stage.aggregations:
        if _is(call, "federated_collect"):
            results[name] = collected(kept.pop(name), layout.clients)
        elif one.keeps(call):
            results[name] = Reduce(call, server).of_all(kept.pop(name))
    found = list(zip(one.checks, failed, strict=True))
    return results, kept, sorted(found, key=lambda pair: not pair[0].of_server)


class _Pass:
    """A pass while it is traced; `checks` collects its checks."""

    def __init__(
        self,
        stage: Stage,
        clients: dict[str, tuple[Any, Type]],
        layout: ClientLayout,
        locate: bool,
    ) -> None:
        self.stage = stage
        self.clients = clients
        self.layout = layout
        self.locate = locate
        self.checks: list[Check] = []

    def keeps(self, call: Call) -> bool:
        """Returns True if an aggregation needs the values of all clients, in their order."""
        in_order = self.layout.mesh is not None and _is(call, "federated_reduce")
        return in_order or _is(call, "federated_collect")

    def run(self, values: Any, server: dict[str, Any], numbers: Any, own: Any = None) -> Any:
        """Returns the results of aggregations, kept values, and failed checks, on one device.

        Args:
            values: the values of the device's clients.
            server: the values that are the same for all clients.
            numbers: the numbers of the device's clients.
            own: the device's rows of ragged values, by name, and the parts that are the same for
                all clients of values that differ in part. None if there is one device.
        """
        if own is not None:
            rows, same = own
            self.clients = {
                name: (with_same(with_rows(held, iter(rows[name])), kind, iter(same[name])), kind)
                for name, (held, kind) in self.clients.items()
            }
        shared = {**server, COUNT: max(self.layout.clients, 1)}
        reducers = {
            name: self._reducer(call, shared)
            for name, call in self.stage.aggregations
            if not self.keeps(call)
        }
        chunk = self.layout.chunk

        def of_one(value: object) -> Any:
            return self._of_client(value, shared, reducers)

        def of_chunk(running: Any, inputs: Any) -> Any:
            value, clients = inputs
            if chunk == 1:
                alone, clients = of_one(value), clients[None]
                given, kept, flags = jax.tree.map(lambda leaf: leaf[None], alone)
            else:
                given, kept, flags = over_chunk(of_one, chunk)(value)
            results, failed = running
            mask = clients < self.layout.clients
            results = {n: r.add(results[n], given[n], mask, clients) for n, r in reducers.items()}
            failed = [
                jnp.minimum(first, jnp.where(flag & mask, clients, NOBODY).min())
                for first, flag in zip(failed, flags, strict=True)
            ]
            return (results, failed), kept

        first = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), values)
        given, _, flags = jax.eval_shape(of_one, first)
        start = (
            {name: reducer.start(given[name]) for name, reducer in reducers.items()},
            [jnp.asarray(NOBODY, jnp.int32) for _ in flags],
        )
        (results, failed), kept = self._over_chunks(of_chunk, start, values, numbers)
        if self.layout.mesh is not None:
            axis = self.layout.axis
            results = {name: r.across(results[name], axis) for name, r in reducers.items()}
            failed = [jax.lax.pmin(first, axis) for first in failed]
        failed += self._refused(reducers, results)
        results = {n: r.finish(results[n], self.layout.clients) for n, r in reducers.items()}
        if self.locate:
            failed += [*self._infinite(reducers, results), *self._of_server(server)]
        return results, kept, failed

    def _of_server(self, server: dict[str, Any]) -> list[Any]:
        """Returns 0 if a value that all clients share contains NaN; registers the check."""
        same = [same_of(held, kind) for held, kind in self.clients.values()]
        flag = has_nan((server, same))
        if flag is None:
            return []
        what = "values on the server contained NaN before that"
        self.checks.append(Check(what, None, of_server=True))
        return [jnp.where(flag, 0, NOBODY).astype(jnp.int32)]

    def _refused(self, reducers: dict[str, Reducer], results: dict[str, Any]) -> list[Any]:
        """Returns 0 for each result that its aggregation refuses; registers the checks."""
        calls = dict(self.stage.aggregations)
        failed = []
        for name, reducer in reducers.items():
            refused = reducer.refused(results[name])
            if refused is not None:
                what = f"{refused.what} in {_described(calls[name])}"
                check = Check(what, calls[name].origin, of_all=True, remedy=refused.remedy)
                self.checks.append(check)
                failed.append(jnp.where(refused.flag, 0, NOBODY).astype(jnp.int32))
        return failed

    def _infinite(self, reducers: dict[str, Reducer], results: dict[str, Any]) -> list[Any]:
        """Returns 0 for each sum and mean that is NaN because of infinities; registers the
        checks.
        """
        calls = dict(self.stage.aggregations)
        failed = []
        for name, reducer in reducers.items():
            flag = has_nan(results[name]) if isinstance(reducer, Sum) else None
            if flag is not None:
                what = (
                    f"infinite values or weights of clients give NaN in {_described(calls[name])}"
                )
                remedy = "Check the clients' data"
                self.checks.append(Check(what, calls[name].origin, of_all=True, remedy=remedy))
                failed.append(jnp.where(flag, 0, NOBODY).astype(jnp.int32))
        return failed

    def _reducer(self, call: Call, shared: dict[str, Any]) -> Reducer:
        reducer = _kind(call)(call, shared)
        if not self.layout.clients and not reducer.of_none:
            place = f"{call.origin}: " if call.origin else ""
            raise ClientError(
                f"{place}there are no clients for {_described(call)}, so it has no result.\n"
                "Pass the values of at least one client."
            )
        return reducer

    def _over_chunks(self, of_chunk: Any, start: Any, values: Any, numbers: Any) -> Any:
        """Runs the chunks of a device in sequence; returns kept values for all its clients."""
        count, chunk = self.layout.padded // self.layout.devices, self.layout.chunk
        if count == chunk > 1:
            return of_chunk(start, (values, numbers))
        order = self._order(values) if chunk > 1 else None
        inputs = (values, numbers) if order is None else order
        if chunk > 1:
            inputs = jax.tree.map(lambda a: a.reshape(count // chunk, chunk, *a.shape[1:]), inputs)

        def of_rows(running: Any, rows: Any) -> Any:
            return of_chunk(running, jax.tree.map(lambda a: a[rows], (values, numbers)))

        running, kept = jax.lax.scan(of_chunk if order is None else of_rows, start, inputs)
        kept = jax.tree.map(lambda a: a.reshape(count, *a.shape[2:]), kept)
        if order is not None:
            back = jnp.argsort(order)
            kept = jax.tree.map(lambda a: a[back], kept)
        return running, kept

    def _order(self, values: object) -> Any:
        """Returns the order of a device's clients by size, so that chunks hold similar sizes.

        Returns None if there is no sequence to measure, or if an aggregation depends on the
        clients' order.
        """
        if any(issubclass(_kind(call), Reduce) for _, call in self.stage.aggregations):
            return None
        sized = Sequence | ClientPosition
        parts = jax.tree.leaves(values, is_leaf=lambda part: isinstance(part, sized))
        lengths = [part.length for part in parts if isinstance(part, sized)]
        return jnp.argsort(sum(lengths), descending=True) if lengths else None

    def _of_client(self, value: Any, shared: Any, reducers: dict[str, Reducer]) -> Any:
        """Returns a client's contribution, its kept values, and which checks it fails."""
        environment = dict(shared)
        for name, (held, kind) in self.clients.items():
            environment[name] = joined(held, kind, iter(value[name]), self.layout)
        failing: list[tuple[Check, Any]] = []
        with noticed() as overflows:
            for name, call in self.stage.clients:
                environment[name] = evaluate(call, environment)
                if _is(call, "federated_select"):
                    keys, limit, *_ = evaluate(call.argument, environment)  # type: ignore[arg-type]
                    check = Check("has a key that is negative or not below max_key", call.origin)
                    failing.append((check, ((keys < 0) | (keys >= limit)).any()))
            given = {name: r.of_client(environment) for name, r in reducers.items()}
            kept = {name: environment[name] for name in self.stage.kept}
            for name, call in self.stage.aggregations:
                if self.keeps(call):
                    argument = call.argument
                    if _is(call, "federated_reduce"):
                        argument = argument.children()[0]  # type: ignore[union-attr]
                    kept[name] = evaluate(argument, environment)  # type: ignore[arg-type]
        for one in overflows:
            what = f"has integers whose sum does not fit {one.dtypes} in sequence_sum"
            failing.append((Check(what, one.origin, remedy=OF_SEQUENCE), one.flag))
        failing += self._failing(given, kept, reducers)
        self.checks[:] = [check for check, _ in failing]
        return given, kept, [flag for _, flag in failing]

    def _failing(
        self, given: dict[str, Any], kept: dict[str, Any], reducers: dict[str, Reducer]
    ) -> list[tuple[Check, Any]]:
        """Returns which checks of a client's contributions and kept values fail."""
        failing: list[tuple[Check, Any]] = []
        calls = dict((*self.stage.clients, *self.stage.aggregations))
        for name, found in (*given.items(), *kept.items()):
            reduced = _is(calls[name], "federated_reduce")  # the user's function may hide NaN
            shown = not reduced and (name in kept or reducers[name].shows_nan)
            flag = has_nan(found) if self.locate or not shown else None
            if flag is not None:
                what = f"passes NaN to {_described(calls[name])}"
                failing.append((Check(what, calls[name].origin), flag))
        for name, reducer in reducers.items():
            flag = reducer.violated(given[name])
            if flag is not None:
                what = f"passes {_described(calls[name])} a value that does not fit its bits"
                failing.append((Check(what, calls[name].origin), flag))
        return failing


def _kind(call: Call) -> type[Reducer]:
    assert isinstance(call.function, Intrinsic)
    return REDUCERS[call.function.uri]


def _is(call: Call, uri: str) -> bool:
    return isinstance(call.function, Intrinsic) and call.function.uri == uri


def _described(call: Call) -> str:
    if isinstance(call.function, Intrinsic):
        return call.function.uri.replace("_weighted_", "_")
    return str(call.function)


def has_nan(found: object) -> Any:
    """Returns True if a float among a client's results is NaN; None if there are no floats.

    The padding of sequences is ignored.
    """
    flags: list[Any] = []
    for part in jax.tree.leaves(found, is_leaf=lambda part: isinstance(part, Sequence)):
        for leaf in jax.tree.leaves(part.elements if isinstance(part, Sequence) else part):
            if jnp.issubdtype(leaf.dtype, jnp.inexact):
                nan = jnp.isnan(leaf)
                flags.append(jnp.any(nan & _counted(part, nan)))
    return jnp.stack(flags).any() if flags else None


def _counted(part: Any, leaf: Any) -> Any:
    """Returns which elements of a sequence's arrays are not padding."""
    if not isinstance(part, Sequence):
        return True
    axes = part.length.ndim
    mask = jnp.arange(leaf.shape[axes]) < part.length[..., None]
    return mask.reshape(*mask.shape, *[1] * (leaf.ndim - mask.ndim))
