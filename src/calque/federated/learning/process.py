"""What all algorithms have in common: a state on the server, and rounds that change it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calque.errors import ClientError, with_user_frames
from calque.federated.compiler.arguments import hold
from calque.federated.computation import Computation, computation, local
from calque.federated.intrinsics import (
    federated_broadcast,
    federated_map,
    federated_mean,
    federated_sum,
)
from calque.federated.learning.aggregators import Aggregator
from calque.federated.learning.models import Model
from calque.federated.representation import Sequence, shapes_of, to_python
from calque.federated.types import (
    SequenceType,
    Type,
    at_clients,
    at_server,
    to_type,
    type_of_value,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """What the server keeps from round to round: a pytree of arrays, to be saved as one.

    Attributes:
        parameters, buffers: the model's, keyed as its `state_dict()`.
        optimizer: the state of the server's optimizer.
        extra: what else the algorithm keeps on the server.
        memory: what the algorithm keeps for each client, with the clients as leading axis.
        key: raw bits of the key that all randomness comes from.
        round: how many rounds there were.
    """

    parameters: Any
    buffers: Any
    optimizer: Any
    extra: Any
    memory: Any
    key: Any
    round: Any


@dataclass(frozen=True)
class Algorithm:
    """One way to train; see `algorithms`.

    Attributes:
        model: what is trained.
        client: takes the server's state (without `memory`), a client's examples, raw bits of a key,
            and the client's memory; gives what `Sent` has.
        server: takes the server's state, and the means of what clients sent; gives the new state.
        aggregator: how the clients' `change` is joined.
        optimizer: takes the parameters that are trained; gives the first state of the server's
            optimizer.
        extra: likewise, what the server keeps at first.
        memory: likewise, zeros of the shapes of what is kept for each client.
        clients: how many clients there are; needed where there is a memory.
        whole_batches: the size of which each client's examples must be a multiple, if any.
    """

    model: Model
    client: Callable[[State, Sequence, Any, Any], "Sent"]
    server: Callable[[State, Any, Any, Any], State]
    aggregator: Aggregator
    optimizer: Callable[[Any], Any] = lambda parameters: ()
    extra: Callable[[Any], Any] = lambda parameters: ()
    memory: Callable[[Any], Any] | None = None
    clients: int | None = None
    whole_batches: int | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sent:
    """What a client sends after its work.

    Attributes:
        change: what `Algorithm.aggregator` joins, weighted by `weight`.
        extra: the mean over the clients is taken, each of the same weight.
        buffers: the mean is taken, weighted by `weight`.
        weight: a number.
        loss: the mean over the client's examples.
        examples: how many there were.
        memory: what is kept for the client.
    """

    change: Any
    extra: Any
    buffers: Any
    weight: Any
    loss: Any
    examples: Any
    memory: Any = field(default=())


class IterativeProcess:
    """An algorithm as rounds: `initialize()`, then `next(state, data)` as often as one likes.

    Args:
        algorithm: what clients and server do.
        options: as of `Computation.configured`: chunk, mesh, axis, check.
    """

    def __init__(self, algorithm: Algorithm, options: Mapping[str, Any]) -> None:
        self._algorithm = algorithm
        self._options = dict(options)
        self._rounds: dict[Type, Computation] = {}

    def initialize(self, seed: int = 0) -> State:
        """The state before the first round.

        Args:
            seed: of all randomness to come. The parameters are the module's own.
        """
        one = self._algorithm
        parameters = one.model.parameters
        free = one.model.free(parameters)
        memory = ()
        if one.memory is not None:
            memory = jax.tree.map(
                lambda leaf: jnp.zeros((one.clients, *leaf.shape), leaf.dtype),
                one.memory(free),
            )
        return State(
            parameters,
            one.model.buffers,
            one.optimizer(free),
            one.extra(free),
            memory,
            jax.random.key_data(jax.random.key(seed)),
            jnp.zeros((), jnp.int32),
        )

    @with_user_frames
    def next(self, state: State, data: Any, clients: Any = None) -> tuple[State, dict[str, Any]]:
        """One round.

        Args:
            state: the state before it.
            data: the examples of the clients that take part: a list with a dict of arrays `x` and
                `y` for each, examples first; or what `stage` made of one.
            clients: the numbers of the clients that take part; 0, 1, … by default.

        Returns:
            The state after it, and metrics: the clients' mean loss while they trained, how many
            examples there were, and how many clients.

        Raises:
            ClientError: a client's data are of another type, or its result is NaN.
            ValueError: there are no examples, or none that fill a batch.
        """
        staged, numbers, memory = self._participants(state, data, clients)
        arguments = _arguments(state, staged, numbers, memory)
        packed, kept, metrics = self._round(staged, state)(**arguments)
        examples = metrics["examples"]
        if not isinstance(examples, jax.core.Tracer) and int(examples) == 0:
            raise ValueError(
                "no client has examples to train on.\nChoose others, or smaller batches."
            )
        after = _unpacked(packed, replace(state, memory=()))
        rows = _unpacked(kept, memory)
        filled = jax.tree.map(
            lambda whole, new: jnp.asarray(whole).at[numbers].set(new), state.memory, rows
        )
        return replace(after, memory=filled), metrics

    @with_user_frames
    def lower(self, state: State, data: Any, clients: Any = None) -> Any:
        """The program of `next` for these arguments; `.as_text()` is StableHLO."""
        staged, numbers, memory = self._participants(state, data, clients)
        arguments = _arguments(state, staged, numbers, memory)
        return self._round(staged, state).lower(**arguments)

    def _participants(
        self, state: State, data: Any, clients: Any
    ) -> tuple[Sequence, np.ndarray, Any]:
        """The data, the numbers and the memories of the clients that take part."""
        staged = labelled(data)
        count = staged.length.shape[0]
        numbers = np.arange(count) if clients is None else np.asarray(clients)
        self._check(staged, numbers)
        return staged, numbers, jax.tree.map(lambda leaf: leaf[numbers], state.memory)

    def _check(self, staged: Sequence, numbers: np.ndarray) -> None:
        """Raise for clients that cannot take part as they are."""
        count, limit = len(staged.length), self._algorithm.clients
        if len(numbers) != count or len(set(numbers.tolist())) != count:
            raise ValueError(
                f"{len(numbers)} numbers of clients are given for the data of {count}, or one of "
                "them twice.\nGive one number for each."
            )
        if numbers.dtype.kind not in "iu":
            raise ValueError(f"numbers of clients are integers, not {numbers.tolist()}")
        if limit is not None and count and not 0 <= numbers.min() <= numbers.max() < limit:
            raise ValueError(
                f"numbers of clients are from 0 to {limit - 1}, not {numbers.tolist()}"
            )
        size = self._algorithm.whole_batches
        odd = np.flatnonzero(np.asarray(staged.length) % size) if size else np.zeros(0)
        if odd.size:
            raise ClientError(
                f"client {numbers[odd[0]]} has {int(staged.length[odd[0]])} examples, which are no "
                f"whole batches of {size}; BatchNorm makes the examples of a batch depend on each "
                "other, so that none can be filled up.\nPass drop_remainder=True, or a batch_size "
                "that divides all."
            )

    def _round(self, staged: Sequence, state: State) -> Computation:
        """The computation of a round, for examples of this type."""
        element = element_type(staged.elements)
        if element not in self._rounds:
            made = _round_of(self._algorithm, element, state)
            self._rounds[element] = made.configured(**self._options)
        return self._rounds[element]


def _arguments(state: State, staged: Sequence, numbers: np.ndarray, memory: Any) -> dict[str, Any]:
    """The arguments of a round's computation."""
    return {
        "state": _packed(replace(state, memory=())),
        "data": staged,
        "number": numbers.astype(np.int32),
        "memory": _packed(memory),
    }


def labelled(data: Any) -> Sequence:
    """What `stage` makes of the clients' data; raises `ClientError` without `x` or `y`."""
    staged = stage(data)
    if not isinstance(staged.elements, dict) or not {"x", "y"} <= set(staged.elements):
        raise ClientError("the examples of clients have no x or no y.\nPass dicts with both.")
    return staged


def stage(data: Any) -> Sequence:
    """The examples of all clients as arrays on the device, to be used in many rounds.

    Args:
        data: a list with, for each client, a dict of arrays with the examples first.

    Returns:
        A `federated.Sequence` whose arrays have the clients first, then the examples, padded to
        the most that a client has.

    >>> import numpy as np
    >>> staged = stage([{"x": np.ones((2, 3), np.float32)}, {"x": np.ones((1, 3), np.float32)}])
    >>> staged.elements["x"].shape, staged.length.tolist()
    ((2, 2, 3), [2, 1])
    """
    if isinstance(data, Sequence):
        return data
    if not isinstance(data, list | tuple):
        raise ClientError(
            f"the data of all clients are a {type(data).__name__}.\n"
            "Pass a list with the examples of each."
        )
    if not data:
        raise ClientError("there are no clients.\nPass a list with the examples of each.")
    element = element_type(data[0], leading=1)
    kind = SequenceType(element)
    return to_python(hold(list(data), at_clients(kind), "the data"), kind)


def element_type(arrays: Any, leading: int = 2) -> Type:
    """The type of an example, from arrays with more axes in front; 64 bits as 32, as JAX has it."""
    if not all(hasattr(leaf, "shape") for leaf in jax.tree.leaves(arrays)):
        raise ClientError(
            "the examples of client 0 are no arrays.\nPass a dict of arrays, x and y."
        )
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[leading:], _narrow(a.dtype)), arrays)
    return to_type(one)


def _narrow(dtype: Any) -> Any:
    name = str(dtype).removeprefix("torch.")
    return {"float64": "float32", "int64": "int32"}.get(name, name)


def _round_of(algorithm: Algorithm, element: Type, state: State) -> Computation:
    """A round as a computation of leaves: what is in a state may be any pytree."""
    server = replace(state, memory=())
    memory = jax.tree.map(lambda leaf: leaf[0], state.memory)
    state_type, memory_type = type_of_value(_packed(server)), type_of_value(_packed(memory))
    data_type, whole = SequenceType(element), to_type("int32")

    @local(state_type, data_type, whole, memory_type, framework="jax")
    def work(packed: Any, data: Any, number: Any, kept: Any) -> Any:
        state = _unpacked(packed, server)
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.round)
        bits = jax.random.key_data(jax.random.fold_in(key, number))
        sent = algorithm.client(state, data, bits, _unpacked(kept, memory))
        floats = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), sent.buffers)
        return {
            "change": _packed(sent.change),
            "extra": _packed(sent.extra),
            "buffers": _packed(floats),
            "weight": sent.weight.astype(jnp.float32),
            "loss": sent.loss,
            "examples": sent.examples.astype(jnp.int32),
            "memory": _packed(sent.memory),
        }

    @local(state_type, framework="jax")
    def key_of(packed: Any) -> Any:
        state = _unpacked(packed, server)
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.round)
        return jax.random.key_data(jax.random.fold_in(key, np.uint32(2**32 - 1)))

    shapes = jax.eval_shape(
        lambda: algorithm.client(server, _one_example(element), server.key, memory)
    )

    @local(framework="jax")
    def finish(packed, parts):  # type: ignore[no-untyped-def]
        state = _unpacked(packed, server)
        buffers = jax.tree.map(
            lambda new, old: new.astype(old.dtype),
            _unpacked(parts["buffers"], shapes.buffers),
            state.buffers,
        )
        change = _unpacked(parts["change"], shapes.change)
        extra = _unpacked(parts["extra"], shapes.extra)
        after = algorithm.server(state, change, extra, parts["participants"])
        return _packed(replace(after, buffers=buffers, round=state.round + 1))

    @computation(
        state=at_server(state_type),
        data=at_clients(data_type),
        number=at_clients(whole),
        memory=at_clients(memory_type),
    )
    def round_(state: Any, data: Any, number: Any, memory: Any) -> Any:
        sent = federated_map(work, (federated_broadcast(state), data, number, memory))
        weight = sent.weight
        parts = {
            "change": algorithm.aggregator(sent.change, weight, federated_map(key_of, state)),
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


def _one_example(element: Type) -> Sequence:
    """A client with one example of zeros."""
    held = shapes_of(SequenceType(element), 1)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), held)
    return to_python(zeros, SequenceType(element))


def _packed(tree: Any) -> tuple[Any, ...]:
    """The leaves of a pytree, as a struct without names."""
    return tuple(jnp.asarray(leaf) for leaf in jax.tree.leaves(tree))


def _unpacked(leaves: Any, like: Any) -> Any:
    """A pytree of leaves, in the form of another."""
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


@local("int32", framework="jax")
def _one(number: Any) -> Any:
    return jnp.ones_like(number)
