"""Whether the examples of a batch depend on each other, so that none may fill it up."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calque.federated.learning.models import Model


def mixes_examples(model: Model, parameters: Any, buffers: Any, examples: Any, size: int) -> bool:
    """Whether what fills up a batch changes the losses of its examples, or the new buffers.

    It is tried: with copies of the last example, and with what can hardly go unnoticed: NaN where
    numbers are floats, and copies of the first example where they are not.

    Args:
        model: in training.
        parameters, buffers: its own.
        examples: those of one client, fewer than a batch has, as arrays with the examples first.
        size: how many examples a batch has.
    """
    count = len(examples["y"])
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
        losses, new = run(parameters, buffers, batch, key)
        found.append([losses[:count], *jax.tree.leaves(new)])
    return not all(
        np.allclose(np.float64(a), np.float64(b), rtol=1e-4, atol=1e-5, equal_nan=True)
        for a, b in zip(*found, strict=True)
    )
