"""How good a model is on the clients' examples."""

from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import torch

from calque.errors import with_user_frames
from calque.federated.computation import Computation, computation, local
from calque.federated.intrinsics import federated_broadcast, federated_map, federated_sum
from calque.federated.learning.models import Model
from calque.federated.learning.setup import Loss, Options, checked
from calque.federated.learning.staging import element_type, labelled
from calque.federated.learning.state import State
from calque.federated.representation import Sequence
from calque.federated.types import SequenceType, StructType, Type, at_clients, at_server, to_type


class Evaluation:
    """The loss, and of classifiers the accuracy, over all examples of all clients.

    Args:
        module: the model; evaluated in `eval()` mode.
        loss: as of the algorithms.
        **options: as of `Computation.configured`: chunk, mesh, axis, check.

    >>> import numpy as np, torch
    >>> from calque.federated import learning
    >>> module = torch.nn.Identity()
    >>> data = [{"x": np.eye(2, dtype=np.float32), "y": np.array([0, 0])}]
    >>> state = learning.fed_avg(module).initialize()
    >>> float(learning.Evaluation(module)(state, data)["accuracy"])
    0.5
    """

    @with_user_frames
    def __init__(
        self,
        module: torch.nn.Module,
        loss: Loss | None = None,
        **options: Unpack[Options],
    ) -> None:
        checked(options, Options)
        self._model = Model(module, loss)
        self._options = options
        self._known: dict[Type, Computation] = {}

    @with_user_frames
    def __call__(self, state: State, data: Any) -> dict[str, Any]:
        """Metrics, each example weighing the same.

        Args:
            state: whose parameters and buffers are meant.
            data: as of `IterativeProcess.next`.

        Returns:
            `loss`, `examples`, and `accuracy` where the module's output has scores of classes for
            the integer that `y` is.

        Raises:
            ClientError: a client's data are of another type, or its loss is NaN.
            ValueError: there are no examples.
        """
        staged = labelled(data)
        if not isinstance(staged.length, jax.core.Tracer) and not np.asarray(staged.length).any():
            raise ValueError("no client has examples to evaluate on.\nChoose others.")
        element = element_type(staged.elements)
        if element not in self._known:
            made = _evaluation(self._model, element)
            self._known[element] = made.configured(**self._options)
        totals = self._known[element](state.parameters, state.buffers, staged)
        count = totals.pop("examples")
        means = {name: total / count for name, total in totals.items()}
        return {**means, "examples": count}


def _evaluation(model: Model, element: Type) -> Computation:
    parameters, buffers = to_type(model.parameters), to_type(model.buffers)

    @local(parameters, buffers, SequenceType(element), framework="jax")
    def totals(parameters: Any, buffers: Any, data: Sequence) -> Any:
        output, losses = model.outputs(parameters, buffers, data.elements)
        found = {
            "loss": jnp.where(data.mask, losses, 0).sum(),
            "examples": data.length,
        }
        target = data.elements["y"]
        if jnp.issubdtype(target.dtype, jnp.integer) and output.ndim == target.ndim + 1:
            right = (output.argmax(-1) == target).reshape(data.capacity, -1).mean(1)
            found["accuracy"] = jnp.where(data.mask, right, 0).sum()
        return found

    result = totals.type_signature.result
    assert isinstance(result, StructType)

    @computation(
        parameters=at_server(parameters),
        buffers=at_server(buffers),
        data=at_clients(SequenceType(element)),
    )
    def evaluation(parameters: Any, buffers: Any, data: Any) -> Any:
        both = federated_broadcast((parameters, buffers))
        found = federated_map(totals, (both[0], both[1], data))
        return {name: federated_sum(found[name]) for name in result.names if name is not None}

    return evaluation
