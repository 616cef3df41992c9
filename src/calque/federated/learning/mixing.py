"""Detects whether the examples of a batch depend on each other, so that it must not be padded."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calque.errors import ClientError
from calque.federated.compiler.layout import is_placed
from calque.federated.learning.models import Model, count_of
from calque.federated.learning.staging import Staged, capacity_of, element_of
from calque.federated.learning.state import State
from calque.federated.ragged import Ragged
from calque.federated.types import Type, to_shapes

Run = Callable[[Any, Any, Any, Any], Any]
"""Takes parameters, buffers, examples and raw bits of a key; returns the losses of the examples,
and other arrays that must not depend on the padding of a batch.
"""

_TRIED = 4
"""How many examples of a client are tried in evaluation."""

_OTHERS = 16
"""The number of clients whose examples are tried as padding of a batch."""


class WholeBatches:
    """Refuses clients whose last batch would be padded, if examples depend on each other.

    Args:
        model: the model, used in training mode.
        size: the number of examples of a batch; None if batches are not padded.
        dropping: whether the examples of incomplete batches could be dropped.
    """

    def __init__(self, model: Model, size: int | None, *, dropping: bool = True) -> None:
        self._size = size
        self._advice = "Pass drop_remainder=True, or a" if dropping else "Pass a"
        self._trial = _Trial(in_training(model), known=model.mixes_examples)

    def require(self, staged: Staged, numbers: np.ndarray, state: State) -> None:
        """Raise `ClientError` for the first client whose batches cannot be padded.

        Args:
            staged: the examples of all clients.
            numbers: the clients' numbers, for the error.
            state: the state for the test.
        """
        if isinstance(staged.length, jax.core.Tracer) or self._size is None:
            return
        length = np.asarray(staged.length, np.int64)
        size = max(min(self._size, capacity_of(staged)), 1)
        rest = length % size
        odd = np.flatnonzero(rest)
        if not odd.size:
            return
        tried = odd[rest[odd].argmin()]
        rows = slice(length[tried] - rest[tried], length[tried])
        if self._trial.mixes(staged, int(tried), rows, size, state):
            raise ClientError(
                f"client {numbers[odd[0]]} has {length[odd[0]]} examples, which is not a "
                f"multiple of the batch size {self._size}; the model or the loss (BatchNorm, for "
                "instance) makes the examples of a batch depend on each other, or on how many "
                f"there are, so a batch cannot be padded.\n{self._advice} batch_size that "
                "divides all their numbers."
            )


class WholeClients:
    """Refuses to evaluate padded clients, if examples depend on each other.

    Args:
        model: the model, used in evaluation mode.
        size: the number of examples that are computed at once.
    """

    def __init__(self, model: Model, size: int) -> None:
        self._size = size
        self._trial = _Trial(in_evaluation(model), known=False)

    def require(self, staged: Staged, state: State) -> None:
        """Raise `ClientError` for the first padded client; see `WholeBatches`."""
        if isinstance(staged.length, jax.core.Tracer):
            return
        length, capacity = np.asarray(staged.length), capacity_of(staged)
        odd = np.flatnonzero((length > 0) & ((length < capacity) | (capacity > self._size)))
        if not odd.size:
            return
        tried = odd[length[odd].argmin()]
        size = max(min(capacity, self._size), 2)
        rows = slice(0, min(int(length[tried]), _TRIED, size - 1))
        if self._trial.mixes(staged, int(tried), rows, size, state):
            raise ClientError(
                f"client {odd[0]} has {length[odd[0]]} examples, others have up to {capacity}, "
                f"and {self._size} are evaluated at once; the model or the loss makes the "
                "examples of a client depend on each other in evaluation, too (BatchNorm "
                "without running statistics, for instance), so they have to be evaluated all at "
                "once and cannot be padded.\nEvaluate clients with the same number of examples, "
                "with that number as batch_size."
            )


class _Trial:
    """Tests once for each type of examples whether they depend on each other.

    Args:
        run: the function to test.
        known: the answer if it cannot be tested. True is taken without a test.
    """

    def __init__(self, run: Run, known: bool) -> None:
        self._run = run
        self._known = known
        self._found: dict[Type, bool] = {}

    def mixes(self, staged: Staged, client: int, rows: slice, size: int, state: State) -> bool:
        """Returns True if examples depend on each other.

        Args:
            staged: the examples of all clients.
            client, rows: the positions of the examples to test.
            size: the number of examples to which they are padded.
            state: the state for the test.
        """
        arrays = jax.tree.leaves(staged.elements)
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in arrays)
        own_state = jax.tree.leaves((state.parameters, state.buffers))
        if self._known or traced or any(map(is_placed, own_state)):
            return self._known
        element = element_of(staged)
        if element not in self._found:
            if any(map(is_placed, arrays)):  # distributed over several processes
                some, others = made_up(element, rows.stop - rows.start), made_up(element, 2)
            else:
                places = np.arange(rows.start, rows.stop)
                some = _at(staged, np.full_like(places, client), places)
                others = _others(staged, client, jax.tree.map(lambda leaf: leaf[-1:], some))
            self._found[element] = mixes_examples(
                self._run, state.parameters, state.buffers, some, others, size
            )
        return self._found[element]


def in_training(model: Model) -> Run:
    """Returns a function for the losses of a model in training, its new buffers and written
    parameters.
    """

    def run(parameters: Any, buffers: Any, examples: Any, key: Any) -> Any:
        one = model.losses(parameters, buffers, examples, key)
        return one.each, (one.buffers, one.written)

    return run


def in_evaluation(model: Model) -> Run:
    """Returns a function for the losses of a model in evaluation."""

    def run(parameters: Any, buffers: Any, examples: Any, key: Any) -> Any:
        return model.outputs(parameters, buffers, examples, key)[1], ()

    return run


def mixes_examples(
    run: Run, parameters: object, buffers: object, examples: Any, others: object, size: int
) -> bool:
    """Returns True if padding a batch changes the losses of its examples, or the new buffers.

    This is tested with different padding: copies of the last example, and values that have a
    visible effect (NaN for floats, different examples for other dtypes). If nothing is random, an
    unpadded batch is tested too.

    Args:
        run: the function to test.
        parameters, buffers: those of the model.
        examples: fewer examples than a batch has, as arrays with a leading axis of examples.
        others: examples in the same form, the first of which differ from the last example.
        size: the number of examples of a batch.
    """
    count = count_of(examples["y"])
    compiled = jax.jit(run)

    def found(batch: Any, seed: int = 0) -> list[np.ndarray]:
        bits = jax.random.key_data(jax.random.key(seed))
        each, rest = compiled(parameters, buffers, batch, bits)
        return [np.asarray(leaf) for leaf in (each[:count], *jax.tree.leaves(rest))]

    filled = jax.tree.map(lambda leaf: _filled(leaf, leaf[-1:], size), examples)
    odd = jax.tree.map(lambda leaf, rows: _filled(leaf, _odd(rows), size), examples, others)
    first = found(filled)
    if not _alike(first, found(odd), 1e-4):
        return True
    if not _alike(first, found(filled, seed=1), 1e-4):  # random
        return False
    try:
        alone = found(examples)
    except (RuntimeError, TypeError, ValueError, IndexError):  # only one batch size works
        return False
    # A different size may use a different algorithm, which in half precision rounds differently.
    return not _alike(first, alone, 0.05)


def _filled(leaf: Any, rows: Any, size: int) -> Any:
    """Pads examples by cycling through `rows`."""
    leaf = jnp.asarray(leaf)
    return jnp.concatenate([leaf, rows[np.arange(size - len(leaf)) % len(rows)]])


def _odd(rows: object) -> Any:
    rows = jnp.asarray(rows)
    return jnp.full_like(rows, jnp.nan) if jnp.issubdtype(rows.dtype, jnp.inexact) else rows


def _alike(some: list[np.ndarray], others: list[np.ndarray], rtol: float) -> bool:
    """Returns True if all arrays are nearly equal, and integers exactly equal."""

    def same(one: np.ndarray, other: np.ndarray) -> bool:
        if jnp.issubdtype(one.dtype, jnp.inexact):
            wide = np.complex128 if np.iscomplexobj(one) else np.float64
            one, other = one.astype(wide), other.astype(wide)
            return np.allclose(one, other, rtol=rtol, atol=1e-5, equal_nan=True)
        return np.array_equal(one, other)

    return all(same(one, other) for one, other in zip(some, others, strict=True))


def _at(staged: Staged, clients: np.ndarray, rows: np.ndarray) -> Any:
    """Returns one example for each pair of a client and an example number."""
    if isinstance(staged, Ragged):
        places = np.asarray(staged.places.start)[clients] + rows
        return jax.tree.map(lambda leaf: leaf[places], staged.elements)
    return jax.tree.map(lambda leaf: leaf[clients, rows], staged.elements)


def _others(staged: Staged, client: int, last: object) -> Any:
    """Returns the first examples of some clients, ordered by their difference from `last`."""
    present = np.append(np.flatnonzero(np.asarray(staged.length))[:_OTHERS], client)
    found = _at(staged, present, np.zeros_like(present))

    def differs(leaf: object, own: object) -> Any:
        return (np.asarray(leaf) != np.asarray(own)).reshape(len(present), -1).any(1)

    count = sum(jax.tree.leaves(jax.tree.map(differs, found, last)))
    order = np.argsort(-np.asarray(count), kind="stable")
    return jax.tree.map(lambda leaf: leaf[order], found)


def made_up(element: Type, count: int) -> Any:
    """Returns artificial examples of alternating zeros and ones, if real ones are unavailable.

    Args:
        element: the type of an example.
        count: the number of examples.
    """

    def rows(one: Any) -> Any:
        numbers = (np.arange(count) % 2).reshape(-1, *[1] * len(one.shape))
        return np.broadcast_to(numbers, (count, *one.shape)).astype(one.dtype)

    return jax.tree.map(rows, to_shapes(element))
