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
    """The state that the server keeps between rounds: a pytree of arrays, to be saved as one.

    Attributes:
        parameters, buffers: those of the model, with the keys of its `state_dict()`.
        optimizer: the state of the server's optimizer.
        extra: what else the algorithm keeps on the server.
        memory: what the algorithm keeps for each client, with the clients as leading axis.
        key: the raw bits of the key that all randomness comes from.
        round: the number of rounds so far.
        aggregator: what the aggregator keeps, if anything.
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
    """One way to train; see `algorithms`.

    Attributes:
        model: what is trained.
        client: takes the server's state (without `memory`), a client's examples, `RoundInfo`,
            and the client's memory; gives what `Sent` has.
        server: takes the server's state, the means of the clients' `change` and `extra`, their
            number and `Sent.reached`; gives the new state.
        aggregator: how the clients' `change` is joined.
        optimizer: takes the parameters that are trained; gives the first state of the server's
            optimizer.
        extra: likewise, what the server keeps at first.
        memory: likewise, zeros of the shapes of what is kept for each client.
        clients: how many clients there are; needed where there is a memory.
        least: how many examples some client must have, to be trained on.
        filled: how many examples the batches have that are filled up with copies, if any are; an
            example must not depend on others of its batch then.
        dropping: whether examples that fill no batch could be left out.
        size: how many examples are in a batch, or computed at once.
        schedule: takes the number of a round; gives what the clients' steps are multiplied by.
        description: what decides the numbers, in words, by which two runs are told apart.
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
        key: raw bits of a key, for dropout and the order of examples.
        most: how large batches are, at most: no larger than the data of any client.
        scale: what its steps are multiplied by; None where there is no schedule.
    """

    key: Any
    most: int
    scale: Any = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sent:
    """The message of a client after its work.

    Attributes:
        change: what `Algorithm.aggregator` joins, weighted by `weight`.
        extra: the mean over the clients is taken, each of the same weight.
        buffers: the mean is taken, weighted by `weight`.
        weight: a number.
        loss: the mean over the client's examples.
        examples: how many there were.
        memory: what is kept for the client.
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


def packed(tree: Any) -> tuple[Any, ...]:
    """Returns the leaves of a pytree as a struct without names, because states may contain any
    pytree.

    Of a key, as optimizers that add noise keep one, it is the raw bits.
    """
    return tuple(
        jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf)
        for leaf in jax.tree.leaves(tree)
    )


def unpacked(leaves: Any, like: Any) -> Any:
    """Returns a pytree of leaves, in the form of another."""
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
