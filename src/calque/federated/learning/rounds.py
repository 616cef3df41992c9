"""A round of an algorithm as one computation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calque.federated.computation import Computation, computation, local
from calque.federated.intrinsics import (
    federated_broadcast,
    federated_map,
    federated_mean,
    federated_sum,
    federated_value,
)
from calque.federated.learning.aggregators import is_stateful
from calque.federated.learning.state import Algorithm, State, packed, unpacked
from calque.federated.representation import Sequence, shapes_of, to_python
from calque.federated.types import (
    SERVER,
    SequenceType,
    Type,
    at_clients,
    at_server,
    to_type,
    type_of_value,
)

_OF_SERVER = np.uint32(2**32 - 1)
"""The number by which the server's randomness is told from the clients'."""


def round_computation(algorithm: Algorithm, element: Type, state: State) -> Computation:
    """A round, as a computation of leaves: what is in a state may be any pytree.

    Args:
        algorithm: what clients and server do.
        element: the type of an example.
        state: of the shapes of all states.
    """
    server = replace(state, memory=())
    memory = jax.tree.map(lambda leaf: leaf[0], state.memory)
    state_type, memory_type = type_of_value(packed(server)), type_of_value(packed(memory))
    data_type, whole = SequenceType(element), to_type("int32")
    example = _one_example(element)
    shapes = jax.eval_shape(lambda: algorithm.client(server, example, server.key, memory))

    types = (state_type, data_type, whole, memory_type)
    work = local(*types, framework="jax")(_work(algorithm, server, memory))
    key_of = local(state_type, framework="jax")(lambda leaves: _key(unpacked(leaves, server)))
    kept_of = local(state_type, framework="jax")(lambda kept: unpacked(kept, server).aggregator)
    finish = local(framework="jax")(_finish(algorithm, server, shapes))

    def joined(change: Any, weight: Any, state: Any) -> tuple[Any, Any]:
        key = federated_map(key_of, state)
        aggregator: Any = algorithm.aggregator
        if is_stateful(aggregator):
            return aggregator(change, weight, key, federated_map(kept_of, state))
        return aggregator(change, weight, key), federated_value((), SERVER)

    @computation(
        state=at_server(state_type),
        data=at_clients(data_type),
        number=at_clients(whole),
        memory=at_clients(memory_type),
    )
    def round_(state: Any, data: Any, number: Any, memory: Any) -> Any:
        sent = federated_map(work, (federated_broadcast(state), data, number, memory))
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


def _work(algorithm: Algorithm, server: State, memory: Any) -> Callable[..., Any]:
    """What a client does, as a function of leaves."""

    def work(leaves: Any, data: Any, number: Any, kept: Any) -> Any:
        state = unpacked(leaves, server)
        sent = algorithm.client(state, data, _key(state, number), unpacked(kept, memory))
        floats = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), sent.buffers)
        return {
            "change": packed(sent.change),
            "extra": packed(sent.extra),
            "buffers": packed(floats),
            "weight": sent.weight.astype(jnp.float32),
            "loss": sent.loss,
            "examples": sent.examples.astype(jnp.int32),
            "memory": packed(sent.memory),
        }

    return work


def _finish(algorithm: Algorithm, server: State, shapes: Any) -> Callable[..., Any]:
    """What the server does with what has been sent, as a function of leaves."""

    def finish(leaves, parts):  # type: ignore[no-untyped-def]
        state = unpacked(leaves, server)
        sent = unpacked(parts["buffers"], shapes.buffers)
        buffers = jax.tree.map(lambda new, old: new.astype(old.dtype), sent, state.buffers)
        change = unpacked(parts["change"], shapes.change)
        extra = unpacked(parts["extra"], shapes.extra)
        after = algorithm.server(state, change, extra, parts["participants"])
        kept = unpacked(jax.tree.leaves(parts["aggregator"]), state.aggregator)
        return packed(replace(after, buffers=buffers, aggregator=kept, round=state.round + 1))

    return finish


def _key(state: State, number: Any = _OF_SERVER) -> Any:
    """The raw bits of a key for a round, and for a client or the server."""
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.round)
    return jax.random.key_data(jax.random.fold_in(key, number))


def _one_example(element: Type) -> Sequence:
    """A client with one example of zeros."""
    held = shapes_of(SequenceType(element), 1)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), held)
    return to_python(zeros, SequenceType(element))


@local("int32", framework="jax")
def _one(number: Any) -> Any:
    return jnp.ones_like(number)
