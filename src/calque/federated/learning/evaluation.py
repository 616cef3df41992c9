"""Evaluates a model on the clients' examples, directly or after fitting it to each client."""

from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import torch

from calque.errors import ClientError, with_user_frames
from calque.federated.computation import Computation
from calque.federated.decorators import computation, local
from calque.federated.intrinsics import federated_broadcast, federated_map, federated_sum
from calque.federated.learning.mixing import WholeBatches, WholeClients
from calque.federated.learning.models import Model
from calque.federated.learning.optimizers import Steps, as_optimizer
from calque.federated.learning.refusals import explained, require_no_autocast
from calque.federated.learning.setup import CompilationOptions, Loss, Settings, Setup, checked
from calque.federated.learning.staging import element_of, labelled
from calque.federated.learning.state import RoundInfo, State, of_client, of_round
from calque.federated.learning.training import batch_of, is_positive, train
from calque.federated.representation import Sequence
from calque.federated.types import SequenceType, StructType, Type, at_clients, at_server, to_type

Totals = Callable[..., dict[str, Any]]
"""Takes parameters, buffers, raw bits of a key and the sequences of a client; returns sums over its
examples.
"""


_AT_ONCE = 1024
"""How many examples of a client are evaluated at once by default."""


class Evaluation:
    """Computes the loss, and for classifiers the accuracy, over all examples of all clients.

    Args:
        module: the model; it is evaluated in `eval()` mode.
        loss: as for the algorithms.
        batch_size: the number of examples of a client that are computed at once, which does not
            affect the result.
        **options: as for `Computation.configured`: chunk, mesh, axis, check.

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
        *,
        batch_size: int = _AT_ONCE,
        **options: Unpack[CompilationOptions],
    ) -> None:
        checked(options, CompilationOptions)
        if not is_positive(batch_size):
            raise ValueError(f"batch_size must be an integer of at least 1, not {batch_size!r}")
        model = Model(module, loss)

        def totals(parameters: Any, buffers: Any, key: Any, data: Sequence) -> dict[str, Any]:
            return _totals(model, parameters, buffers, key, data, batch_size)

        self._summed = _Summed(model, totals, batch_size, options)

    @with_user_frames
    def __call__(self, state: State, data: Any) -> dict[str, Any]:
        """Returns metrics in which each example has the same weight.

        Args:
            state: the state that has the parameters and buffers.
            data: as for `IterativeProcess.next`.

        Returns:
            `loss`, `examples`, and `accuracy` if the module's output has scores of at least two
            classes for each integer of `y`, along its last axis or, as for `cross_entropy`, axis 1,
            and the shape shows which. Negative labels, such as the one that `cross_entropy`
            ignores, do not count.

        Raises:
            ClientError: a client's data have a different type, or its loss is NaN; or the examples
                of a client depend on each other, and clients have different numbers of examples, or
                more than `batch_size`.
            ValueError: there are no examples.
        """
        return self._summed(state, data)


class PersonalizedEvaluation:
    """Like `Evaluation`, but each client first fits the model to its own examples.

    Args:
        module: as for `Evaluation`.
        loss: as for `Evaluation`.
        client_optimizer: as for `fed_avg`.
        **settings: as for `fed_avg`: batch_size, epochs, shuffle, drop_remainder, and chunk, mesh,
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
        setup = Setup(module, loss, settings, without=("weighting", "failing", "client_schedule"))
        optimizer = as_optimizer(client_optimizer, setup.model.trained)

        def fitted(parameters: Any, buffers: Any, key: Any, test: Sequence, own: Sequence) -> Any:
            start = (setup.model, parameters, buffers)
            given = RoundInfo(key, min(setup.batches.size, max(own.capacity, 1)))
            done = train(*start, own, given, optimizer, setup.batches)
            after = ({**parameters, **done.parameters}, done.buffers)
            return _totals(setup.model, *after, key, test, _AT_ONCE)

        self._whole_batches = WholeBatches(setup.model, setup.filled)
        self._summed = _Summed(setup.model, fitted, _AT_ONCE, setup.options)

    @with_user_frames
    def __call__(self, state: State, own: Any, test: Any) -> dict[str, Any]:
        """Returns metrics over the clients' test examples, each with the same weight.

        Args:
            state: the state from which each client starts.
            own: the examples to which clients fit the model, as for `IterativeProcess.next`.
            test: the examples on which it is evaluated, for the same clients.

        Returns, raises: like `Evaluation`; also `ClientError` if a client's own examples do not
            form whole batches, and the examples of a batch depend on each other.
        """
        staged = labelled(own)
        self._whole_batches.require(staged, np.arange(staged.length.shape[0]), state)
        return self._summed(state, test, staged)


class _Summed:
    """Sums over the examples of all clients, divided by their number."""

    def __init__(self, model: Model, totals: Totals, size: int, options: Any) -> None:
        self._model = model
        self._totals = totals
        self._options = options
        self._known: dict[tuple[Type, ...], Computation] = {}
        self._whole_clients = WholeClients(model, size)

    def __call__(self, state: State, *data: Any) -> dict[str, Any]:
        """Returns metrics for the clients' sequences, averaged over the examples of the first
        sequence.
        """
        require_no_autocast()
        staged = [labelled(one) for one in data]
        length = staged[0].length
        if not isinstance(length, jax.core.Tracer) and not np.asarray(length).any():
            raise ValueError("no client has examples to evaluate on.\nChoose other clients.")
        self._whole_clients.require(staged[0], state)
        elements = tuple(element_of(one) for one in staged)
        if elements not in self._known:
            made = _computation(self._model, self._totals, elements)
            self._known[elements] = made.configured(**self._options)
        try:
            totals = self._known[elements](
                state.parameters,
                state.buffers,
                of_round(state),
                np.arange(length.shape[0]),
                *staged,
            )
        except ClientError as error:
            raise explained(error, self._model, state, *staged) from None
        found = {"loss": totals["loss"] / totals["examples"]}
        if "judged" in totals:
            found["accuracy"] = totals["right"] / totals["judged"]
        return {**found, "examples": totals["examples"]}


def _computation(model: Model, totals: Totals, elements: tuple[Type, ...]) -> Computation:
    """Sums the results of all clients."""
    server = [to_type(model.parameters), to_type(model.buffers), to_type("uint32[2]")]
    clients = [to_type("int32"), *map(SequenceType, elements)]

    @local(*server, *clients, framework="jax")
    def work(parameters: object, buffers: object, key: object, number: object, *data: Any) -> Any:
        return totals(parameters, buffers, of_client(key, number), *data)

    result = work.type_signature.result
    assert isinstance(result, StructType)

    @computation(*map(at_server, server), *map(at_clients, clients))
    def evaluation(parameters: object, buffers: object, key: object, *own: Any) -> Any:
        whole = federated_broadcast((parameters, buffers, key))
        found = federated_map(work, (*whole, *own))
        return {name: federated_sum(found[name]) for name in result.names if name is not None}

    return evaluation


def _totals(
    model: Model, parameters: Any, buffers: Any, key: Any, data: Sequence, size: int
) -> dict[str, Any]:
    """Returns the loss and the number of correct predictions, summed over a client's examples,
    `size` at once.
    """

    def summed(examples: object, mask: object, key: object) -> dict[str, Any]:
        return _sums(model, parameters, buffers, examples, mask, key)

    if data.capacity <= size:
        found = summed(data.elements, data.mask, key)
        return {"examples": data.length, **{name: found[name] for name in sorted(found)}}

    def step(carry: Any, batch: Any) -> tuple[Any, None]:
        def taken(carry: Any) -> Any:
            found = summed(*batch_of(data, batch * size, size, None), of_client(key, batch))
            return jax.tree.map(jnp.add, carry, found)

        return data.unless_behind(batch * size, taken, carry), None

    shapes = jax.eval_shape(summed, *batch_of(data, 0, size, None), key)
    start = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes)
    found, _ = jax.lax.scan(step, start, jnp.arange(-(-data.capacity // size)))
    return {"examples": data.length, **found}  # JAX sorts the names in this order


def _sums(
    model: Model, parameters: Any, buffers: Any, examples: Any, mask: Any, key: Any
) -> dict[str, Any]:
    """Returns the loss and the number of correct predictions, summed over the unmasked examples."""
    output, losses = model.outputs(parameters, buffers, examples, key)
    losses = losses.astype(jnp.promote_types(losses.dtype, jnp.float32))
    found = {"loss": jnp.where(mask, losses, 0).sum()}
    target = examples["y"]
    axis = _class_axis(output, target)
    if axis is not None:
        classes = (target >= 0).reshape(len(mask), -1)
        hits = (output.argmax(axis) == target).reshape(len(mask), -1) & classes
        counted = classes.sum(1)
        right = hits.sum(1) / jnp.maximum(counted, 1)
        found["right"] = jnp.where(mask, right, 0).sum()
        found["judged"] = (mask & (counted > 0)).sum(dtype=jnp.int32)
    return found


def _class_axis(output: Any, target: Any) -> int | None:
    """Returns the axis of the output that has a score for each class, if it is clear which."""
    if not (hasattr(output, "ndim") and hasattr(target, "ndim")):
        return None
    if not jnp.issubdtype(target.dtype, jnp.integer):
        return None
    shape = tuple(output.shape)
    fitting = [
        axis
        for axis in sorted({1, len(shape) - 1})
        if axis < len(shape) and shape[:axis] + shape[axis + 1 :] == tuple(target.shape)
    ]
    return fitting[0] if len(fitting) == 1 and shape[fitting[0]] > 1 else None
