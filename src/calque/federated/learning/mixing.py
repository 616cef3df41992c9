"""Detects whether a batch's examples depend on each other, so that none may fill it up."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calque.errors import ClientError
from calque.federated.compiler.layout import is_placed
from calque.federated.learning.models import Model, count_of
from calque.federated.learning.staging import Staged, element_of
from calque.federated.learning.state import State
from calque.federated.ragged import Ragged, take
from calque.federated.types import Type, to_shapes


class WholeBatches:
    """Refuses clients whose last batch would be filled up, where examples depend on each other.

    Args:
        model: in training.
        size: how many examples a batch has; None if no batch is filled up.
    """

    def __init__(self, model: Model, size: int | None) -> None:
        self._model = model
        self._size = size
        self._known: dict[Type, bool] = {}

    def require(self, staged: Staged, numbers: np.ndarray, state: State) -> None:
        """Raise `ClientError` for the first client whose batches cannot be filled up.

        Args:
            staged: the examples of all clients.
            numbers: the clients', for the error.
            state: with which it is tried.
        """
        if isinstance(staged.length, jax.core.Tracer) or self._size is None:
            return
        odd = np.flatnonzero(np.asarray(staged.length) % self._size)
        if odd.size and self._mixes(staged, int(odd[0]), self._size, state):
            raise ClientError(
                f"client {numbers[odd[0]]} has {int(staged.length[odd[0]])} examples, which are no "
                f"whole batches of {self._size}; the model or the loss (BatchNorm, for instance) "
                "makes the examples of a batch depend on each other, so that none can be filled "
                "up.\nPass drop_remainder=True, or a batch_size that divides all."
            )

    def _mixes(self, staged: Staged, client: int, size: int, state: State) -> bool:
        """Returns True if examples of a batch depend on each other; tried once for each type of
        them.
        """
        model = self._model
        arrays = jax.tree.leaves(staged.elements)
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in arrays)
        own_state = jax.tree.leaves((state.parameters, state.buffers))
        if model.mixes_examples or traced or any(map(is_placed, own_state)):
            return model.mixes_examples
        element = element_of(staged)
        if element not in self._known:
            count = int(staged.length[client])
            if any(map(is_placed, arrays)):  # spread over several processes
                last = made_up(element, count % size)
            else:
                own = take(staged, np.array([client]))
                whole = own.padded() if isinstance(own, Ragged) else own
                rest = slice(count - count % size, count)
                last = jax.tree.map(lambda leaf: leaf[0, rest], whole.elements)
            self._known[element] = mixes_examples(
                model, state.parameters, state.buffers, last, size
            )
        return self._known[element]


def mixes_examples(model: Model, parameters: Any, buffers: Any, examples: Any, size: int) -> bool:
    """Returns True if what fills up a batch changes the losses of its examples, or the new buffers.

    It is tried: with copies of the last example, and with what can hardly go unnoticed: NaN where
    numbers are floats, and copies of the first example where they are not.

    Args:
        model: in training.
        parameters, buffers: its own.
        examples: those of one client, fewer than a batch has, as arrays with the examples first.
        size: how many examples a batch has.
    """
    count = count_of(examples["y"])
    missing = size - count

    def filled(leaf: Any, other: bool) -> Any:
        leaf = jnp.asarray(leaf)
        row = leaf[:1] if other else leaf[-1:]
        if other and jnp.issubdtype(leaf.dtype, jnp.inexact):
            row = jnp.full_like(row, jnp.nan)
        return jnp.concatenate([leaf, *[row] * missing])

    key = jax.random.key_data(jax.random.key(0))
    found = []
    run = jax.jit(model.losses)
    for other in (False, True):
        batch = jax.tree.map(lambda leaf, other=other: filled(leaf, other), examples)
        one = run(parameters, buffers, batch, key)
        found.append([one.each[:count], *jax.tree.leaves((one.buffers, one.written))])
    return not all(
        np.allclose(np.float64(a), np.float64(b), rtol=1e-4, atol=1e-5, equal_nan=True)
        for a, b in zip(*found, strict=True)
    )


def made_up(element: Type, count: int) -> Any:
    """Examples of zeros and of ones by turns, where those of clients are out of reach.

    Args:
        element: the type of an example.
        count: how many there are.
    """

    def rows(one: Any) -> Any:
        numbers = (np.arange(count) % 2).reshape(-1, *[1] * len(one.shape))
        return np.broadcast_to(numbers, (count, *one.shape)).astype(one.dtype)

    return jax.tree.map(rows, to_shapes(element))
