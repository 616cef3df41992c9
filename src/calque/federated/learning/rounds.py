"""A round of an algorithm as one computation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calque.federated.computation import Computation
from calque.federated.decorators import computation, local
from calque.federated.errors import type_error
from calque.federated.intrinsics import (
    federated_broadcast,
    federated_map,
    federated_mean,
    federated_sum,
    federated_value,
)
from calque.federated.intrinsics.checks import placed
from calque.federated.learning.aggregators import is_private, is_stateful
from calque.federated.learning.state import (
    Algorithm,
    RoundInfo,
    State,
    of_client,
    of_round,
    packed,
    unpacked,
)
from calque.federated.representation import shapes_of, to_python
from calque.federated.tracing import member_type, type_of
from calque.federated.types import (
    SERVER,
    SequenceType,
    StructType,
    Type,
    at_clients,
    at_server,
    to_type,
    type_of_value,
)

_OF_SERVER = np.uint32(2**32 - 1)
"""The number that distinguishes the server's random key from the clients'."""


def round_computation(algorithm: Algorithm, element: Type, most: int, state: State) -> Computation:
    """Returns a round as a computation on leaves, because states may contain any pytree.

    Args:
        algorithm: the work of clients and server.
        element: the type of an example.
        most: the maximum size of batches.
        state: a state that has the shapes of all states.
    """
    server = replace(state, memory=())
    memory = jax.tree.map(lambda leaf: leaf[0], state.memory)
    state_type, memory_type = type_of_value(packed(server)), type_of_value(packed(memory))
    data_type, whole = SequenceType(element), to_type("int32")
    shapes = jax.eval_shape(
        lambda data: algorithm.client(
            server, to_python(data, data_type), RoundInfo(server.key, most), memory
        ),
        shapes_of(data_type, most),
    )
    if is_private(algorithm.aggregator):
        _require_no_buffers(shapes.changing)

    types = (state_type, data_type, whole, memory_type, to_type("float32"))
    work = local(*types, framework="jax")(_work(algorithm, most, server, memory))
    key_of = local(state_type, framework="jax")(lambda leaves: _key(unpacked(leaves, server)))
    kept_of = local(state_type, framework="jax")(lambda kept: unpacked(kept, server).aggregator)
    finish = local(framework="jax")(_finish(algorithm, server, shapes))

    def joined(change: Any, weight: Any, state: Any) -> tuple[Any, Any]:
        key = federated_map(key_of, state)
        aggregator: Any = algorithm.aggregator
        if is_stateful(aggregator):
            mean, kept = aggregator(change, weight, key, federated_map(kept_of, state))
        else:
            mean, kept = aggregator(change, weight, key), federated_value((), SERVER)
        _require_like(mean, member_type(type_of(change)))
        return mean, kept

    @computation(
        state=at_server(state_type),
        data=at_clients(data_type),
        number=at_clients(whole),
        memory=at_clients(memory_type),
        scale=at_server("float32"),
    )
    def round_(state: object, data: object, number: object, memory: object, scale: object) -> Any:
        everywhere = federated_broadcast((state, scale))
        sent = federated_map(work, (everywhere[0], data, number, memory, everywhere[1]))
        weight = sent.weight
        change, kept = joined(sent.change, weight, state)
        parts = {
            "change": change,
            "aggregator": kept,
            "extra": federated_mean(sent.extra),
            "buffers": federated_mean(sent.buffers, weight),
            "participants": federated_sum(federated_map(_one, number)),
        }
        metrics = {
            "loss": federated_mean(sent.loss, sent.examples),
            "examples": federated_sum(sent.examples),
            "clients": parts["participants"],
        }
        return federated_map(finish, (state, parts)), sent.memory, metrics

    return round_


def _work(algorithm: Algorithm, most: int, server: State, memory: Any) -> Callable[..., Any]:
    """Returns a client's work as a function of leaves."""
    scheduled = algorithm.schedule is not None

    def work(leaves: object, data: Any, number: object, kept: Any, scale: object) -> Any:
        state = unpacked(leaves, server)
        given = RoundInfo(_key(state, number), most, scale if scheduled else None)
        sent = algorithm.client(state, data, given, unpacked(kept, memory))
        differences = jax.tree.map(_difference, sent.buffers, state.buffers)
        return {
            "change": _named(sent.change),
            "extra": packed(sent.extra),
            "buffers": packed(differences),
            "weight": sent.weight.astype(jnp.float32),
            "loss": sent.loss,
            "examples": sent.examples.astype(jnp.int32),
            "memory": packed(sent.memory),
        }

    return work


def _difference(new: Any, old: Any) -> Any:
    """Returns a client's change of a buffer, exactly zero for unchanged elements.

    So elements that no client changes keep their values, such as infinities in a mask, and indices
    that a float32 cannot represent.
    """
    kind = jnp.promote_types(old.dtype, jnp.float32)
    wide = old.dtype if jnp.issubdtype(old.dtype, jnp.inexact) else jnp.int32
    same = (new == old) | ((new != new) & (old != old))
    return jnp.where(same, 0, new.astype(wide) - old.astype(wide)).astype(kind)


def _with_mean(difference: Any, old: Any) -> Any:
    """Returns the server's new buffer, from the mean of the clients' differences."""
    if jnp.issubdtype(old.dtype, jnp.inexact):
        new = (old + difference).astype(old.dtype)
    else:
        new = (old.astype(jnp.int32) + jnp.round(difference).astype(jnp.int32)).astype(old.dtype)
    return jnp.where(difference == 0, old, new)


def _finish(algorithm: Algorithm, server: State, shapes: Any) -> Callable[..., Any]:
    """Returns the server's work on the clients' messages, as a function of leaves."""

    def finish(leaves, parts):  # type: ignore[no-untyped-def]
        state = unpacked(leaves, server)
        sent = unpacked(parts["buffers"], shapes.buffers)
        buffers = jax.tree.map(_with_mean, sent, state.buffers)
        change = unpacked(jax.tree.leaves(parts["change"]), shapes.change)
        extra = unpacked(parts["extra"], shapes.extra)
        after = algorithm.server(state, change, extra, parts["participants"], shapes.reached)
        kept = unpacked(jax.tree.leaves(parts["aggregator"]), state.aggregator)
        return packed(replace(after, buffers=buffers, aggregator=kept, round=state.round + 1))

    return finish


def _require_no_buffers(changing: frozenset[str]) -> None:
    """Raise a `TypeError` if clients change buffers, because their mean has no noise."""
    if changing:
        names = ", ".join(map(repr, sorted(changing)))
        raise TypeError(
            f"clients change the buffers {names}, but the server averages buffers without noise, "
            "so the aggregator could not guarantee privacy.\nUse a module without such buffers: "
            "GroupNorm, or BatchNorm with track_running_stats=False."
        )


def _require_like(joined: object, change: Type) -> None:
    """Raise unless an aggregator returns a value on the server of the type that each client sends.

    Raises:
        FederatedTypeError: it has a different type or placement; shows both.
    """
    found = member_type(placed(joined, "the server", SERVER).type)

    def fields(kind: Type) -> Any:
        return dict(kind.elements) if isinstance(kind, StructType) else kind

    if found != change and (None in fields(change) or fields(found) != fields(change)):
        raise type_error(
            f"the aggregator returned {found} for values of type {change}",
            "Return a value of the type that each client sends.",
        )


def _named(change: object) -> Any:
    """Returns a client's change in the form for aggregators: a struct of its leaves, in JAX's
    order.

    The fields have the parameters' names if the change is a dict of arrays.
    """
    if isinstance(change, dict) and all(hasattr(leaf, "shape") for leaf in change.values()):
        return {name: change[name] for name in sorted(change)}
    return packed(change)


def _key(state: State, number: object = _OF_SERVER) -> Any:
    """Returns the raw bits of the key of a client, or of the server, in a round."""
    return of_client(of_round(state), number)


@local("int32", framework="jax")
def _one(number: Any) -> Any:
    return jnp.ones_like(number)
