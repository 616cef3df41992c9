"""What all algorithms have in common: rounds that change a state on the server."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calque.errors import ClientError, with_user_frames
from calque.federated.compiler.layout import is_placed
from calque.federated.computation import Computation
from calque.federated.learning.aggregators import is_stateful
from calque.federated.learning.mixing import mixes_examples
from calque.federated.learning.rounds import round_computation
from calque.federated.learning.staging import element_type, labelled
from calque.federated.learning.state import Algorithm, State, packed, unpacked
from calque.federated.representation import Sequence
from calque.federated.types import Type


class IterativeProcess:
    """An algorithm as rounds: `initialize()`, then `next(state, data)` as often as one likes.

    Args:
        algorithm: what clients and server do.
        options: as of `Computation.configured`: chunk, mesh, axis, check.
        failing: the fraction of a round's clients that drop out of it.
    """

    def __init__(
        self, algorithm: Algorithm, options: Mapping[str, Any], failing: float = 0.0
    ) -> None:
        self._algorithm = algorithm
        self._options = dict(options)
        self._failing = failing
        self._rounds: dict[Type, Computation] = {}
        self._mixes: dict[Type, bool] = {}

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
            one.aggregator.initial() if is_stateful(one.aggregator) else (),
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
        packed, kept, metrics = self._round(staged, state).for_clients(numbers, **arguments)
        after = unpacked(packed, replace(state, memory=()))
        rows = unpacked(kept, memory)
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
        self._check(staged, numbers, state)
        if self._failing:
            staged, numbers = _survivors(staged, numbers, state, self._failing)
        return staged, numbers, jax.tree.map(lambda leaf: leaf[numbers], state.memory)

    def _check(self, staged: Sequence, numbers: np.ndarray, state: State) -> None:
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
        traced = isinstance(staged.length, jax.core.Tracer)
        if not traced and np.asarray(staged.length).max(initial=0) < self._algorithm.least:
            raise ValueError(
                "no client has examples to train on.\nChoose others, or smaller batches."
            )
        size = self._algorithm.filled
        if traced or size is None:
            return
        odd = np.flatnonzero(np.asarray(staged.length) % size)
        if odd.size and self._mixes_examples(staged, int(odd[0]), size, state):
            raise ClientError(
                f"client {numbers[odd[0]]} has {int(staged.length[odd[0]])} examples, which are no "
                f"whole batches of {size}; the model or the loss (BatchNorm, for instance) makes "
                "the examples of a batch depend on each other, so that none can be filled up.\n"
                "Pass drop_remainder=True, or a batch_size that divides all."
            )

    def _mixes_examples(self, staged: Sequence, client: int, size: int, state: State) -> bool:
        """Whether examples of a batch depend on each other; tried once for each type of them."""
        model = self._algorithm.model
        leaves = jax.tree.leaves((staged.elements, state.parameters, state.buffers))
        if model.mixes_examples or any(map(is_placed, leaves)):
            return model.mixes_examples
        element = element_type(staged.elements)
        if element not in self._mixes:
            length = int(staged.length[client])
            rest = slice(length - length % size, length)
            last = jax.tree.map(lambda leaf: leaf[client, rest], staged.elements)
            self._mixes[element] = mixes_examples(
                model, state.parameters, state.buffers, last, size
            )
        return self._mixes[element]

    def _round(self, staged: Sequence, state: State) -> Computation:
        """The computation of a round, for examples of this type."""
        element = element_type(staged.elements)
        if element not in self._rounds:
            made = round_computation(self._algorithm, element, state)
            self._rounds[element] = made.configured(**self._options)
        return self._rounds[element]


def _survivors(
    staged: Sequence, numbers: np.ndarray, state: State, failing: float
) -> tuple[Sequence, np.ndarray]:
    """The clients that do not drop out, in their order: as many in each round of so many."""
    count = len(numbers)
    lost = min(round(failing * count), count - 1)
    draw = np.random.default_rng([*np.asarray(state.key).tolist(), int(state.round)])
    kept = np.sort(draw.permutation(count)[lost:])
    return jax.tree.map(lambda leaf: leaf[kept], staged), numbers[kept]


def _arguments(state: State, staged: Sequence, numbers: np.ndarray, memory: Any) -> dict[str, Any]:
    """The arguments of a round's computation."""
    return {
        "state": packed(replace(state, memory=())),
        "data": staged,
        "number": numbers.astype(np.int32),
        "memory": packed(memory),
    }
