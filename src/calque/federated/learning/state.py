"""The server's state, the clients' messages, and the functions of an algorithm."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from calque.federated.learning.aggregators import Aggregator, StatefulAggregator
from calque.federated.learning.models import Model
from calque.federated.representation import Sequence


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """The state that the server keeps between rounds, a pytree of arrays.

    Attributes:
        parameters, buffers: those of the model, with the keys of its `state_dict()`.
        optimizer: the state of the server's optimizer.
        extra: other arrays that the algorithm keeps on the server.
        memory: the arrays that the algorithm keeps for each client, with a leading axis of clients.
        key: the raw bits of the key for all random numbers.
        round: the number of rounds so far.
        aggregator: the aggregator's state, if it has one.
    """

    parameters: Any
    buffers: Any
    optimizer: Any
    extra: Any
    memory: Any
    key: Any
    round: Any
    aggregator: Any = ()


@dataclass(frozen=True)
class Algorithm:
    """The functions of a training algorithm.

    Attributes:
        model: the trained model.
        client: takes the server's state (without `memory`), a client's examples, `RoundInfo`, and
            the client's memory; returns `Sent`.
        server: takes the server's state, the means of the clients' `change` and `extra`, their
            number and `Sent.reached`; returns the new state.
        aggregator: aggregates the clients' `change`.
        optimizer: takes the trained parameters; returns the initial state of the server's
            optimizer.
        extra: takes the trained parameters; returns the initial `State.extra`.
        memory: takes the trained parameters; returns zeros in the shapes of a client's memory.
        clients: the number of clients; required if there is a memory.
        least: the minimum number of examples of a client for training.
        filled: the size to which batches are padded with copies, in which case an example must not
            depend on others of its batch; None if they are not padded.
        dropping: whether the examples of incomplete batches could be dropped.
        size: the number of examples in a batch, or computed at once.
        schedule: takes the number of a round; returns the factor for the clients' steps.
        description: describes everything that determines the results, to distinguish runs.
    """

    model: Model
    client: Callable[[State, Sequence, "RoundInfo", Any], "Sent"]
    server: Callable[[State, Any, Any, Any, frozenset[str] | None], State]
    aggregator: Aggregator | StatefulAggregator
    optimizer: Callable[[Any], Any] = lambda parameters: ()
    extra: Callable[[Any], Any] = lambda parameters: ()
    memory: Callable[[Any], Any] | None = None
    clients: int | None = None
    least: int = 1
    filled: int | None = None
    dropping: bool = True
    size: int = 32
    schedule: Callable[[Any], Any] | None = None
    description: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundInfo:
    """The information that a client gets in addition to the server's state.

    Attributes:
        key: the raw bits of a key, for dropout and the order of examples.
        most: the maximum size of batches, at most the largest number of examples of a client.
        scale: the factor for its steps; None if there is no schedule.
    """

    key: Any
    most: int
    scale: Any = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sent:
    """The message of a client after its work.

    Attributes:
        change: aggregated by `Algorithm.aggregator`, weighted by `weight`.
        extra: averaged over the clients, with equal weights.
        buffers: averaged, weighted by `weight`.
        weight: the weight of the client, a number.
        loss: the mean loss over the client's examples.
        examples: the number of examples.
        memory: the client's new memory.
        changing: the names of the buffers that clients change.
        reached: the names of the parameters that have a gradient; None for all.
    """

    change: Any
    extra: Any
    buffers: Any
    weight: Any
    loss: Any
    examples: Any
    memory: Any = field(default=())
    changing: frozenset[str] = field(default=frozenset(), metadata={"static": True})
    reached: frozenset[str] | None = field(default=None, metadata={"static": True})


def packed(tree: object) -> tuple[Any, ...]:
    """Returns the leaves of a pytree as a struct without names, because states may contain any
    pytree.

    A key, which the state of an optimizer with noise contains, becomes its raw bits.
    """
    return tuple(
        jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf)
        for leaf in jax.tree.leaves(tree)
    )


def unpacked(leaves: Any, like: object) -> Any:
    """Returns a pytree of leaves with the structure of `like`."""
    forms, structure = jax.tree.flatten(like)
    pairs = zip(leaves, forms, strict=True)
    return jax.tree.unflatten(
        structure, [jax.random.wrap_key_data(a) if _is_key(b) else a for a, b in pairs]
    )


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def of_round(state: State) -> Any:
    """Returns the raw bits of a key for the randomness of the next round."""
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.round)
    return jax.random.key_data(key)


def of_client(bits: Any, number: Any) -> Any:
    """Returns the raw bits of a client's key, from those of a round's."""
    return jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(bits), number))
