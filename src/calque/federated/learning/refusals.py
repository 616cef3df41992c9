"""Why a client gives NaN: what PyTorch itself says of its examples."""

import jax
import numpy as np

from calque.errors import ClientError
from calque.federated.compiler.layout import is_placed
from calque.federated.learning.models import Model
from calque.federated.learning.staging import Staged
from calque.federated.learning.state import State
from calque.federated.ragged import Ragged, take


def explained(error: ClientError, model: Model, state: State, *data: Staged) -> ClientError:
    """Returns the error, with what PyTorch says of the client's examples if it refuses them.

    Args:
        error: of a computation over the clients.
        model, state: what was to be computed with.
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
            return ClientError(f"{first}\nPyTorch says of its examples: {refusal}.\n{rest}")
    return error
