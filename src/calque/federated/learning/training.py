"""A client's training: steps of an optimizer, or one gradient over all of its examples.

Clients have different numbers of examples, padded to the same length. Batches after a client's own
examples are skipped, and in the last batch only its own examples count, so no example is dropped or
counted twice. The last batch is padded with copies of the last example.
"""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp

from calque.errors import TraceError
from calque.federated.learning.models import Losses, Model, Parameters, tree_add
from calque.federated.learning.optimizers import Optimizer
from calque.federated.learning.optimizers import step as stepped
from calque.federated.learning.state import RoundInfo
from calque.federated.learning.torch_optimizers import TorchOptimizer
from calque.federated.representation import Sequence


@dataclass(frozen=True)
class Batches:
    """The batches of a client.

    Attributes:
        size: the number of examples in a batch.
        epochs: the number of times that it goes through all examples.
        shuffle: whether it uses a new order each time.
        drop_remainder: whether the examples of incomplete batches are dropped.
    """

    size: int = 32
    epochs: int = 1
    shuffle: bool = False
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        if not (is_positive(self.size) and is_positive(self.epochs)):
            raise ValueError(
                f"batch_size and epochs must be integers of at least 1, not {self.size!r} and "
                f"{self.epochs!r}."
            )


@dataclass(frozen=True)
class Trained:
    """The trained parameters of a client after its steps; see `train`."""

    parameters: Any
    buffers: Any
    loss: Any
    steps: Any
    examples: Any
    changing: frozenset[str]
    reached: frozenset[str] | None


def is_positive(number: object) -> bool:
    """Returns True for an integer of at least 1."""
    return isinstance(number, Integral) and not isinstance(number, bool) and number >= 1


Hook = Callable[[Parameters, Parameters], Parameters]
"""Takes the gradients and the parameters; returns the gradients to use."""

Penalty = Callable[[Parameters], Any]
"""Takes the trained parameters; returns a number that is added to the loss of a batch."""


def train(
    model: Model,
    parameters: Parameters,
    buffers: Parameters,
    data: Sequence,
    given: RoundInfo,
    optimizer: Optimizer,
    batches: Batches,
    hook: Hook | None = None,
    penalty: Penalty | None = None,
) -> Trained:
    """Takes steps of an optimizer over a client's examples.

    Args:
        model: the model whose loss is minimized.
        parameters, buffers: the client's initial parameters and buffers.
        data: the examples, `x` and `y`.
        given: the client's key, the maximum batch size and the scale of steps.
        optimizer: the optimizer, whose state is new.
        batches: the batches.
        hook: changes the gradients of each step.
        penalty: added to the loss that the optimizer minimizes, but not to the reported loss.

    Returns:
        The client's final parameters; `loss`, the mean over all examples of all epochs, each before
        its step; `steps`, the number of steps; `examples`, the number of examples of an epoch;
        `changing`, the buffers that `forward` writes to; and `reached`, the parameters that have a
        gradient, or None if a hook may provide gradients for others.
    """
    found: list[frozenset[str] | None] = []
    changing: list[frozenset[str]] = []
    key, size = given.key, min(batches.size, given.most)
    per_epoch = -(-data.capacity // size)

    def step(carry: Any, index: Any) -> tuple[Any, None]:
        epoch, batch = index // per_epoch, index % per_epoch
        start = batch * size
        last = start + batches.size - 1 if batches.drop_remainder else start

        def taken(carry: Any) -> Any:
            free, buffers, state, total, steps = carry
            keys = jax.random.split(_key(key, epoch))
            order = _order(data, keys[0]) if batches.shuffle else None
            examples, mask = batch_of(data, start, size, order)
            rng = jax.random.key_data(jax.random.fold_in(keys[1], batch))
            whole = {**parameters, **free}
            mean = _mean_loss(model, whole, buffers, examples, mask, rng, penalty)
            (value, (loss, one)), gradients = _with_gradients(mean, free)
            known = {"value": value, "grad": gradients, "value_fn": lambda p: mean(p)[0]}
            if hook is not None:  # it may add gradients that the loss does not have
                gradients, known = hook(gradients, free), {}
            if isinstance(optimizer, TorchOptimizer) and optimizer.searches(free):
                require_no_writes(one, "LBFGS computes the loss more than once in a step")
                require_no_schedule(given)
            changing.append(one.changing)
            found.append(one.reached if hook is None and penalty is None else None)
            free = {**free, **one.written}
            scaled = {"reached": found[-1], "scale": given.scale}
            free, state = stepped(optimizer, gradients, state, free, known, **scaled)
            return free, one.buffers, state, total + loss, steps + 1

        return data.unless_behind(last, taken, carry), None

    zero = jnp.zeros((), jnp.float32)
    free = model.free(parameters)
    start = (free, buffers, optimizer.init(free), zero, jnp.zeros((), jnp.int32))
    count = batches.epochs * per_epoch
    (free, buffers, _, total, steps), _ = jax.lax.scan(step, start, jnp.arange(count))
    examples = _taking_part(data, batches)
    loss = total / jnp.maximum(examples * batches.epochs, 1)
    return Trained(free, buffers, loss, steps, examples, changing[-1], found[-1])


def _taking_part(data: Sequence, batches: Batches) -> Any:
    """Returns the number of examples in an epoch."""
    if batches.drop_remainder:
        return data.length // batches.size * batches.size
    return data.length


def full_gradient(
    model: Model,
    parameters: Parameters,
    buffers: Parameters,
    data: Sequence,
    given: RoundInfo,
    size: int,
) -> tuple[Parameters, Any, Losses]:
    """Returns the gradient of the mean loss over all of a client's examples, that loss, and the
    other results of a batch.

    Args:
        model: the model.
        parameters, buffers: the parameters and buffers, which do not change.
        data: the examples.
        given: the client's key, for dropout, and the maximum batch size.
        size: the number of examples that are computed at once.
    """
    batches: list[Losses] = []
    key, size = given.key, min(size, given.most)
    per_epoch = -(-data.capacity // size)

    def step(carry: Any, batch: Any) -> tuple[Any, None]:
        def taken(carry: Any) -> Any:
            gradients, total = carry
            examples, mask = batch_of(data, batch * size, size, None)
            rng = jax.random.key_data(jax.random.fold_in(_key(key, 0), batch))
            mean = _mean_loss(model, parameters, buffers, examples, mask, rng)
            free = model.free(parameters)
            (_, (loss, one)), found = _with_gradients(mean, free)
            batches.append(one)
            return tree_add(gradients, found, mask.sum()), total + loss

        return data.unless_behind(batch * size, taken, carry), None

    start = (jax.tree.map(jnp.zeros_like, model.free(parameters)), jnp.zeros((), jnp.float32))
    (gradients, total), _ = jax.lax.scan(step, start, jnp.arange(per_epoch))
    count = jnp.maximum(data.length, 1)
    mean = jax.tree.map(lambda g: (g / count).astype(g.dtype), gradients)
    return mean, total / count, batches[-1]


def _with_gradients(mean: Callable[[Any], Any], free: Parameters) -> tuple[Any, Parameters]:
    """Returns the results of `mean` and its gradients in PyTorch's convention, in which complex
    gradients are the conjugates of JAX's.
    """
    result, found = jax.value_and_grad(mean, has_aux=True)(free)
    return result, jax.tree.map(jnp.conj, found)


def _mean_loss(
    model: Model,
    parameters: Any,
    buffers: Any,
    examples: Any,
    mask: Any,
    key: Any,
    penalty: Penalty | None = None,
) -> Callable[[Any], Any]:
    """Returns the mean of the unmasked losses, as a function of the trained parameters.

    The function also returns the sum of these losses, without the penalty, and the result of
    `Model.losses`.
    """

    def mean(free: Any) -> Any:
        one = model.losses({**parameters, **free}, buffers, examples, key)
        total = jnp.where(mask, one.each, 0).sum()
        # Batches after a client's examples are skipped, but under vmap their derivatives are
        # computed.
        value = total / jnp.maximum(mask.sum(), 1)
        if penalty is not None:
            value = value + penalty({**free, **_as_written(free, one.written)})
        return value, (total.astype(jnp.float32), one)

    return mean


def _as_written(free: Parameters, written: Parameters) -> Parameters:
    """Returns written parameters such that, as in PyTorch, gradients flow to the original ones."""
    still = jax.lax.stop_gradient
    return {name: still(new) + (free[name] - still(free[name])) for name, new in written.items()}


def require_no_writes(one: Losses, where: str) -> None:
    """Raise a `TraceError` if a forward pass writes to parameters."""
    if one.written:
        names = ", ".join(map(repr, sorted(one.written)))
        raise TraceError(
            f"forward writes to the parameters {names}, which would be lost: {where}.\n"
            "Use another algorithm or optimizer, or compute with a changed copy of the "
            "parameter."
        )


def require_no_schedule(given: RoundInfo) -> None:
    """Raise a `TypeError` if steps would be scaled by a schedule."""
    if given.scale is not None:
        raise TypeError(
            "LBFGS depends on its previous steps, which client_schedule would scale.\nUse "
            "another optimizer, or leave the schedule out."
        )


def batch_of(data: Sequence, start: Any, size: int, order: Any) -> tuple[Any, Any]:
    """Returns the examples of a batch, and a mask of those that are not padding; the padding is
    copies of the last example.
    """
    place = start + jnp.arange(size)
    rows = jnp.clip(place, 0, jnp.maximum(data.length - 1, 0))
    if order is not None:
        rows = order[rows]
    return jax.tree.map(lambda leaf: leaf[rows], data.elements), place < data.length


def _order(data: Sequence, key: Any) -> Any:
    """Returns the indices of a client's examples in random order, followed by those of the
    padding.
    """
    drawn = jax.random.uniform(key, (data.capacity,))
    return jnp.argsort(jnp.where(data.mask, drawn, 2.0))


def _key(bits: Any, number: Any) -> Any:
    return jax.random.fold_in(jax.random.wrap_key_data(bits), number)
