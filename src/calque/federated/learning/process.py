"""Training processes, which run rounds that change a state on the server, for all algorithms."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calque.device.runtime.sizes import translated
from calque.errors import ClientError, with_user_frames
from calque.federated.computation import Computation
from calque.federated.learning.aggregators import is_stateful
from calque.federated.learning.mixing import WholeBatches
from calque.federated.learning.refusals import (
    NoExamples,
    explained,
    require_known_clients,
    require_no_autocast,
)
from calque.federated.learning.rounds import round_computation
from calque.federated.learning.staging import Staged, capacity_of, element_of, labelled
from calque.federated.learning.state import Algorithm, State, packed, unpacked
from calque.federated.ragged import take
from calque.federated.types import Type

_WIDE = ("float64", "complex128")


class IterativeProcess:
    """Runs an algorithm in rounds: call `initialize()`, then `next(state, data)` for each round.

    Args:
        algorithm: the work of clients and server.
        options: as for `Computation.configured`: chunk, mesh, axis, check.
        failing: the fraction of a round's clients that drop out of it.
    """

    def __init__(
        self, algorithm: Algorithm, options: Mapping[str, Any], failing: float = 0.0
    ) -> None:
        self._algorithm = algorithm
        self._options = dict(options)
        self._failing = failing
        self._rounds: dict[tuple[Type, int], Computation] = {}
        self._whole_batches = WholeBatches(
            algorithm.model, algorithm.filled, dropping=algorithm.dropping
        )
        trained = algorithm.model.free(algorithm.model.parameters)
        wide = [name for name, value in trained.items() if value.dtype.name in _WIDE]
        if wide and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            raise TypeError(
                f"the parameter {wide[0]!r} has dtype {trained[wide[0]].dtype}, but JAX computes "
                "in 32 bits.\nCall module.float(), or jax.config.update('jax_enable_x64', True)."
            )

    @property
    def description(self) -> Mapping[str, str]:
        """A description of everything that determines its results."""
        return self._algorithm.description

    def __deepcopy__(self, memo: object) -> "IterativeProcess":
        return self  # like a function: the caller has the state

    @with_user_frames
    def initialize(self, seed: int = 0) -> State:
        """Returns the state before the first round.

        Args:
            seed: the seed of all random numbers of the rounds, an integer. The parameters are the
                module's own.
        """
        one, key = self._algorithm, _key_of(seed)
        parameters = one.model.parameters
        free = one.model.free(parameters)
        memory = ()
        if one.memory is not None:
            with translated():
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
            key,
            jnp.zeros((), jnp.int32),
            one.aggregator.initial() if is_stateful(one.aggregator) else (),
        )

    @with_user_frames
    def next(self, state: State, data: Any, clients: Any = None) -> tuple[State, dict[str, Any]]:
        """Runs one round.

        Args:
            state: the state before the round.
            data: the examples of the participating clients: a list with, for each, a dict of arrays
                `x` and `y` with a leading axis of examples; or the result of `stage`.
            clients: the numbers of the participating clients; 0, 1, … by default.

        Returns:
            The state after the round, and metrics: the clients' mean loss during training, and the
                numbers of examples and clients.

        Raises:
            ClientError: a client's data have a wrong type, or its result is NaN.
            ValueError: there are no examples, or none that fill a batch.
            TypeError: JAX traces `clients`, or the round of a process with `failing`.
            torch.OutOfMemoryError: there is too little memory. The state before the round is kept.
        """
        staged, numbers, memory = self._participants(state, data, clients)
        arguments = self._arguments(state, staged, numbers, memory)
        try:
            packed, kept, metrics = self._round(staged, state).for_clients(numbers, **arguments)
        except ClientError as error:
            raise explained(error, self._algorithm.model, state, staged) from None
        after = unpacked(packed, replace(state, memory=()))
        rows = unpacked(kept, memory)
        with translated():
            filled = jax.tree.map(
                lambda whole, new: jnp.asarray(whole).at[numbers].set(new), state.memory, rows
            )
        return replace(after, memory=filled), metrics

    @with_user_frames
    def lower(self, state: State, data: Any, clients: Any = None) -> Any:
        """Returns the program of `next` for these arguments; `.as_text()` is StableHLO."""
        staged, numbers, memory = self._participants(state, data, clients)
        arguments = self._arguments(state, staged, numbers, memory)
        return self._round(staged, state).lower(**arguments)

    def _participants(
        self, state: State, data: Any, clients: Any
    ) -> tuple[Staged, np.ndarray, Any]:
        """Returns the data, numbers and memories of the participating clients."""
        require_no_autocast()
        self._require_own(state)
        require_known_clients(clients, (state.key, state.round) if self._failing else ())
        staged = labelled(data)
        count = staged.length.shape[0]
        numbers = np.arange(count) if clients is None else np.asarray(clients)
        self._check(staged, numbers, state)
        if self._failing:
            staged, numbers = _survivors(staged, numbers, state, self._failing)
            self._require_examples(staged, numbers, "of the clients that have not dropped out, ")
        return staged, numbers, jax.tree.map(lambda leaf: leaf[numbers], state.memory)

    def _arguments(
        self, state: State, staged: Staged, numbers: np.ndarray, memory: Any
    ) -> dict[str, Any]:
        """Returns the arguments of a round's computation."""
        return {
            "state": packed(replace(state, memory=())),
            "data": staged,
            "number": numbers.astype(np.int32),
            "memory": packed(memory),
            "scale": self._scale(state),
        }

    def _scale(self, state: State) -> Any:
        """Returns the factor for the clients' steps in the next round."""
        schedule, number = self._algorithm.schedule, state.round
        if schedule is None:
            return np.float32(1.0)
        if isinstance(number, jax.core.Tracer):
            return jnp.asarray(schedule(number), jnp.float32)
        found = schedule(int(number))
        try:
            scale = float(found)
        except (TypeError, ValueError):
            scale = np.nan
        if not 0 <= scale < np.inf:
            raise ValueError(
                f"client_schedule returned {found!r} for round {int(number)}.\nReturn the factor "
                "for learning rates, a number of at least 0."
            )
        return np.float32(scale)

    def _require_own(self, state: State) -> None:
        """Raise unless a state belongs to this process."""
        if not isinstance(state, State):
            raise TypeError(
                f"a round needs a state, not {type(state).__name__}.\nPass the result of "
                "initialize(), or the state of the previous round."
            )
        same = jax.tree.structure(state) == jax.tree.structure(self._shapes)
        if not same or list(map(np.shape, jax.tree.leaves(state))) != [
            leaf.shape for leaf in jax.tree.leaves(self._shapes)
        ]:
            raise ValueError(
                "the state belongs to another model or algorithm.\nPass the result of this "
                "process's initialize(), or the state of one of its rounds."
            )

    @functools.cached_property
    def _shapes(self) -> State:
        """The shapes of this process's states."""
        return jax.eval_shape(self.initialize)

    def _check(self, staged: Staged, numbers: np.ndarray, state: State) -> None:
        """Raise for clients that cannot participate."""
        count, limit = len(staged.length), self._algorithm.clients
        if len(numbers) != count or len(set(numbers.tolist())) != count:
            raise ValueError(
                f"got {len(numbers)} client numbers for the data of {count} clients, or repeated "
                "numbers.\nPass one distinct number for each client."
            )
        if numbers.dtype.kind not in "iu":
            raise ValueError(f"client numbers must be integers, not {numbers.tolist()}")
        last = (2**31 if limit is None else limit) - 1
        if count and not 0 <= numbers.min() <= numbers.max() <= last:
            raise ValueError(f"client numbers must be between 0 and {last}, not {numbers.tolist()}")
        if not self._algorithm.model.trained:
            raise ValueError(
                "the module has no parameter that requires a gradient: there is nothing to train."
            )
        self._require_examples(staged, numbers)
        self._whole_batches.require(staged, numbers, state)

    def can_train(self, staged: Staged) -> bool:
        """Returns True if some client has enough examples to train on, or if this is unknown."""
        length = staged.length
        if isinstance(length, jax.core.Tracer):
            return True
        return bool(np.asarray(length).max(initial=0) >= self._algorithm.least)

    def _require_examples(self, staged: Staged, numbers: np.ndarray, of: str = "") -> None:
        """Raise unless some client has enough examples to train on."""
        if not self.can_train(staged):
            least = self._algorithm.least
            some = "examples" if least == 1 else f"the {least} examples of a batch"
            shown = f"{', '.join(map(str, numbers[:8]))}{', …' if len(numbers) > 8 else ''}"
            raise NoExamples(
                f"{of}no client of this round has {some} to train on: {shown}.\nChoose other "
                f"clients{'' if least == 1 else ', or a smaller batch_size'}."
            )

    def _round(self, staged: Staged, state: State) -> Computation:
        """Returns the computation of a round, for examples of this type."""
        kind = element_of(staged), min(self._algorithm.size, capacity_of(staged))
        if kind not in self._rounds:
            made = round_computation(self._algorithm, *kind, state)
            self._rounds[kind] = made.configured(**self._options)
        return self._rounds[kind]


def _key_of(seed: Any) -> Any:
    """Returns the raw bits of a key, which differ for all 64-bit seeds."""
    if isinstance(seed, jax.core.Tracer):
        return jax.random.key_data(jax.random.key(seed))
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= int(seed) < 2**63:
        raise ValueError(f"seed must be a non-negative integer, not {seed!r}")
    with jax.enable_x64(True):
        return jax.random.key_data(jax.random.key(int(seed)))


def _survivors(
    staged: Staged, numbers: np.ndarray, state: State, failing: float
) -> tuple[Staged, np.ndarray]:
    """Returns the clients that do not drop out, in their order.

    Of the same number of clients, the same number drop out, or sometimes one more if the fraction
    is not a whole number of clients. So there are at most two programs.
    """
    count = len(numbers)
    draw = np.random.default_rng([*np.asarray(state.key).tolist(), int(state.round)])
    order = draw.permutation(count)
    lost = min(int(failing * count + draw.random()), count - 1)
    kept = np.sort(order[lost:])
    return take(staged, kept), numbers[kept]
