"""Optimizers in the form of optax: `init(params)` and `update(gradients, state, params)`."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp


class Optimizer(Protocol):
    """What optax's gradient transformations are, and what `sgd` gives."""

    def init(self, params: Any, /) -> Any:
        """The state before the first step."""
        ...

    def update(self, updates: Any, state: Any, params: Any = None, /) -> tuple[Any, Any]:
        """What to add to the parameters for these gradients, and the new state."""
        ...


class Sgd(NamedTuple):
    """Gradient descent, with momentum if asked for; see `sgd`."""

    learning_rate: float
    momentum: float

    def init(self, params: Any, /) -> Any:
        """Zero velocities, or nothing without momentum."""
        return jax.tree.map(jnp.zeros_like, params) if self.momentum else ()

    def update(self, updates: Any, state: Any, params: Any = None, /) -> tuple[Any, Any]:
        """`-learning_rate * velocity`, as `torch.optim.SGD` has it."""
        if self.momentum:
            state = jax.tree.map(lambda v, g: self.momentum * v + g, state, updates)
            updates = state
        return jax.tree.map(lambda g: -self.learning_rate * g, updates), state


def sgd(learning_rate: float, momentum: float = 0.0) -> Sgd:
    """Gradient descent as `torch.optim.SGD` does it.

    >>> sgd(0.1).update({"w": 2.0}, ())[0]
    {'w': -0.2}
    """
    return Sgd(learning_rate, momentum)
