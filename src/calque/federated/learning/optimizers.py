"""Optimizers of clients and the server: learning rates, optax and PyTorch optimizers."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import torch

from calque.federated.learning.models import tree_add
from calque.federated.learning.torch_optimizers import Make, TorchOptimizer


class Optimizer(Protocol):
    """The interface of optax's gradient transformations, which `sgd` implements too."""

    def init(self, params: Any, /) -> Any:
        """Returns the state before the first step."""
        ...

    def update(self, updates: object, state: object, params: object = None, /) -> tuple[Any, Any]:
        """Returns the updates to add to the parameters for these gradients, and the new state."""
        ...


Steps = float | Optimizer | Make
"""The types that algorithms accept as an optimizer; see `as_optimizer`."""


class Sgd(NamedTuple):
    """Gradient descent, optionally with momentum; see `sgd`."""

    learning_rate: float
    momentum: float

    def init(self, params: Any, /) -> Any:
        """Returns zero velocities, or an empty state without momentum."""
        return jax.tree.map(jnp.zeros_like, params) if self.momentum else ()

    def update(self, updates: object, state: object, params: object = None, /) -> tuple[Any, Any]:
        """Returns `-learning_rate * velocity`, like `torch.optim.SGD`."""
        if self.momentum:
            state = jax.tree.map(lambda v, g: self.momentum * v + g, state, updates)
            updates = state
        return jax.tree.map(lambda g: -self.learning_rate * g, updates), state


def sgd(learning_rate: float, momentum: float = 0.0) -> Sgd:
    """Returns gradient descent like that of `torch.optim.SGD`.

    >>> sgd(0.1).update({"w": 2.0}, ())[0]
    {'w': -0.2}
    """
    return Sgd(learning_rate, momentum)


def learning_rate(given: float) -> float:
    """Returns a valid learning rate; raises `ValueError` otherwise."""
    if not given >= 0:
        raise ValueError(f"a learning rate must be at least 0, not {given}")
    return given


def as_optimizer(given: Steps, names: Sequence[str] | None = None) -> Optimizer:
    """Converts a learning rate, optax optimizer or function to an optimizer.

    Args:
        given: a learning rate; an optax optimizer; a class of `torch.optim`, whose defaults are
            used; or a function that creates an optimizer for parameters, such as `lambda p:
            torch.optim.AdamW(p, lr=1e-3)` or a `functools.partial`.
        names: the names of the parameters, in the order in which they are passed to a function.

    Raises:
        TypeError: `given` is something else.
        ValueError: a learning rate is negative or NaN.
    """
    if isinstance(given, int | float | np.floating) and not isinstance(given, bool):
        return sgd(learning_rate(float(given)))
    if hasattr(given, "init") and hasattr(given, "update"):
        return given  # type: ignore[return-value]
    if isinstance(given, torch.optim.Optimizer):
        raise TypeError(
            "pass a PyTorch optimizer as a function that creates it: lambda p: "
            f"torch.optim.{type(given).__name__}(p, ...)"
        )
    if callable(given) and not (inspect.isclass(given) and not _is_torchs(given)):
        return TorchOptimizer(given, names)
    raise TypeError(
        "an optimizer must be a learning rate, an optax optimizer, or a function that creates "
        f"one from torch.optim, not {getattr(given, '__name__', type(given).__name__)}"
    )


def step(
    optimizer: Optimizer,
    gradients: Any,
    state: Any,
    params: Any,
    known: Mapping[str, Any] | None = None,
    reached: Collection[str] | None = None,
    scale: Any = None,
) -> tuple[Any, Any]:
    """Returns the parameters after a step of an optimizer, and its new state.

    Args:
        optimizer: the result of `as_optimizer`.
        gradients, state, params: the arguments of its `update`.
        known: extra arguments for optimizers: `value`, `grad` and `value_fn`.
        reached: the names of the parameters that have a gradient, because PyTorch's optimizers skip
            the others; None for all.
        scale: the factor for the step; None for 1.
    """
    exact: Callable[..., Any] | None = getattr(optimizer, "step", None)
    if exact is not None:
        new, state = exact(gradients, state, params, known=known, reached=reached)
        return (new if scale is None else _partway(params, new, scale)), state
    parameters = inspect.signature(optimizer.update).parameters.values()
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    updates, state = optimizer.update(
        gradients, state, params, **(known if known and takes_all else {})
    )
    return tree_add(params, updates, 1.0 if scale is None else scale), state


def _partway(before: object, after: object, scale: object) -> Any:
    """Returns parameters after a fraction of a step."""
    return tree_add(before, tree_add(after, before, -1.0), scale)


def _is_torchs(kind: type) -> bool:
    return issubclass(kind, torch.optim.Optimizer)
