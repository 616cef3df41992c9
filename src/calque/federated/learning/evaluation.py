"""How good a model is on the clients' examples, as it is or after it was fitted to each client."""

from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import torch

from calque.errors import with_user_frames
from calque.federated.computation import Computation, computation, local
from calque.federated.intrinsics import federated_broadcast, federated_map, federated_sum
from calque.federated.learning.models import Model
from calque.federated.learning.optimizers import Steps, as_optimizer
from calque.federated.learning.setup import Loss, Options, Settings, Setup, checked
from calque.federated.learning.staging import element_type, labelled
from calque.federated.learning.state import State
from calque.federated.learning.training import train
from calque.federated.representation import Sequence
from calque.federated.types import SequenceType, StructType, Type, at_clients, at_server, to_type

Totals = Callable[..., dict[str, Any]]
"""Takes parameters, buffers and the sequences of a client; gives sums over its examples."""


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
        self, module: torch.nn.Module, loss: Loss | None = None, **options: Unpack[Options]
    ) -> None:
        checked(options, Options)
        model = Model(module, loss)
        self._summed = _Summed(model, lambda *args: _totals(model, *args), options)

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
        return self._summed(state, data)


class PersonalizedEvaluation:
    """As `Evaluation`, but of a model that each client fits to its own examples first.

    Args:
        module: as of `Evaluation`.
        loss: as of `Evaluation`.
        client_optimizer: as of `fed_avg`.
        **settings: as of `fed_avg`: batch_size, epochs, shuffle, drop_remainder, and chunk, mesh,
            axis, check.

    >>> import numpy as np, torch
    >>> from calque.federated import learning
    >>> module = torch.nn.Linear(2, 2)
    >>> own = [{"x": np.eye(2, dtype=np.float32), "y": np.array(y)} for y in ([0, 1], [1, 0])]
    >>> state = learning.fed_avg(module).initialize()
    >>> fitted = learning.PersonalizedEvaluation(module, client_optimizer=1.0, epochs=50)
    >>> float(fitted(state, own, own)["accuracy"])
    1.0
    """

    @with_user_frames
    def __init__(
        self,
        module: torch.nn.Module,
        loss: Loss | None = None,
        *,
        client_optimizer: Steps = 0.1,
        **settings: Unpack[Settings],
    ) -> None:
        setup = Setup(module, loss, settings, without=("weighting", "failing"))
        optimizer = as_optimizer(client_optimizer, setup.model.trained)

        def fitted(parameters: Any, buffers: Any, test: Sequence, own: Sequence) -> Any:
            key = jax.random.key_data(jax.random.key(0))
            start = (setup.model, parameters, buffers)
            done = train(*start, own, key, optimizer, setup.batches)
            return _totals(setup.model, {**parameters, **done.parameters}, done.buffers, test)

        self._summed = _Summed(setup.model, fitted, setup.options)

    @with_user_frames
    def __call__(self, state: State, own: Any, test: Any) -> dict[str, Any]:
        """Metrics over the clients' test examples, each example weighing the same.

        Args:
            state: where each client begins.
            own: the examples that clients fit the model to; as of `IterativeProcess.next`.
            test: the examples that it is evaluated on, of the same clients.

        Returns, raises: as `Evaluation`.
        """
        return self._summed(state, test, own)


class _Summed:
    """Sums over the examples of all clients, divided by how many there are."""

    def __init__(self, model: Model, totals: Totals, options: Any) -> None:
        self._model = model
        self._totals = totals
        self._options = options
        self._known: dict[tuple[Type, ...], Computation] = {}

    def __call__(self, state: State, *data: Any) -> dict[str, Any]:
        """Metrics for the clients' sequences; the examples of the first are those that count."""
        staged = [labelled(one) for one in data]
        length = staged[0].length
        if not isinstance(length, jax.core.Tracer) and not np.asarray(length).any():
            raise ValueError("no client has examples to evaluate on.\nChoose others.")
        elements = tuple(element_type(one.elements) for one in staged)
        if elements not in self._known:
            made = _computation(self._model, self._totals, elements)
            self._known[elements] = made.configured(**self._options)
        totals = self._known[elements](state.parameters, state.buffers, *staged)
        count = totals.pop("examples")
        return {**{name: total / count for name, total in totals.items()}, "examples": count}


def _computation(model: Model, totals: Totals, elements: tuple[Type, ...]) -> Computation:
    """Sums over the clients of what each computes of its sequences."""
    parameters, buffers = to_type(model.parameters), to_type(model.buffers)
    sequences = [SequenceType(element) for element in elements]
    work = local(parameters, buffers, *sequences, framework="jax")(totals)
    result = work.type_signature.result
    assert isinstance(result, StructType)

    @computation(at_server(parameters), at_server(buffers), *map(at_clients, sequences))
    def evaluation(parameters: Any, buffers: Any, *data: Any) -> Any:
        both = federated_broadcast((parameters, buffers))
        found = federated_map(work, (both[0], both[1], *data))
        return {name: federated_sum(found[name]) for name in result.names if name is not None}

    return evaluation


def _totals(model: Model, parameters: Any, buffers: Any, data: Sequence) -> dict[str, Any]:
    """The loss and the right answers, summed over a client's examples."""
    output, losses = model.outputs(parameters, buffers, data.elements)
    found = {"loss": jnp.where(data.mask, losses, 0).sum(), "examples": data.length}
    target = data.elements["y"]
    if jnp.issubdtype(target.dtype, jnp.integer) and output.ndim == target.ndim + 1:
        right = (output.argmax(-1) == target).reshape(data.capacity, -1).mean(1)
        found["accuracy"] = jnp.where(data.mask, right, 0).sum()
    return found
