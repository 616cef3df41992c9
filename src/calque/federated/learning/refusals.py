"""Errors of a round: for autocast around it, traced client numbers, and bad examples."""

from typing import Any

import jax
import numpy as np
import torch

from calque.errors import ClientError
from calque.federated.compiler.layout import is_placed
from calque.federated.learning.models import Model
from calque.federated.learning.staging import Staged
from calque.federated.learning.state import State
from calque.federated.ragged import Ragged, take


class NoExamples(ValueError):
    """No client of a round has enough examples to train on."""


def require_no_autocast() -> None:
    """Raise a `TypeError` if autocast is on, which a compiled round ignores."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("jax"):
        raise TypeError(
            "autocast is on around a federated computation, but does not apply to it.\nUse it in "
            "the module's forward: with torch.autocast('cpu', dtype=torch.bfloat16)."
        )


def require_known_clients(clients: Any, drawn_from: Any) -> None:
    """Raise a `TypeError` if JAX traces which clients participate.

    Args:
        clients: the numbers that the user passes.
        drawn_from: the round number, from which the clients that drop out are drawn.
    """
    if _is_traced(clients):
        raise TypeError(
            "the client numbers of a round are traced by JAX, but their values have to be "
            "known.\nClose over them, or call next outside jax.jit and jax.lax.scan."
        )
    if _is_traced(drawn_from):
        raise TypeError(
            "a round with clients that drop out (failing) is traced by JAX, but it has to be "
            "known which ones do.\nCall next outside jax.jit and jax.lax.scan, or leave failing "
            "out."
        )


def _is_traced(values: object) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def explained(error: ClientError, model: Model, state: State, *data: Staged) -> ClientError:
    """Returns the error, extended by PyTorch's error for the client's examples if there is one.

    Args:
        error: the error of a computation over the clients.
        model, state: the model and the state of the computation.
        data: the examples of all clients, in their order.
    """
    if error.position is None or any(map(is_placed, jax.tree.leaves((state, data)))):
        return error
    for staged in data:
        own = take(staged, np.array([error.position]))
        length = int(own.length[0])
        whole = own.padded() if isinstance(own, Ragged) else own
        examples = jax.tree.map(lambda leaf, length=length: leaf[0, :length], whole.elements)
        refusal = model.refusal(state.parameters, state.buffers, examples)
        if refusal is not None:
            first, _, rest = str(error).partition("\n")
            return ClientError(f"{first}\nPyTorch's error for its examples: {refusal}.\n{rest}")
    return error
