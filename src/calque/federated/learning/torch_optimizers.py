"""Optimizers of `torch.optim` as pure functions: of parameters, gradients and a state of arrays."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from calque.interop.functional import functional

Make = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]
State = list[dict[str, Any]]
"""For each parameter, what `Optimizer.state` has for it."""


class TorchOptimizer:
    """An optimizer of PyTorch, in the form of optax; see `Optimizer`.

    Its own `step` runs, on the parameters and the state it is given. A state that the first step
    makes is made in the first step: a state of arrays says beside it whether there was one.

    Args:
        make: such as `torch.optim.Adam`, or `lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)`.

    >>> optimizer = TorchOptimizer(lambda p: torch.optim.SGD(p, lr=0.5))
    >>> state = optimizer.init({"w": jnp.ones(2)})
    >>> optimizer.step({"w": jnp.ones(2)}, state, {"w": jnp.ones(2)})[0]
    {'w': Array([0.5, 0.5], dtype=float32)}
    """

    def __init__(self, make: Make) -> None:
        self._make = make
        self._first, _ = functional(lambda params, grads: self._stepped(params, grads, None))
        self._next, _ = functional(self._stepped)

    def init(self, params: Any, /) -> Any:
        """The state before the first step, and that there was none."""
        leaves = jax.tree.leaves(params)
        shapes = jax.eval_shape(lambda p: self._first({}, p, p)[1], leaves)
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes), jnp.zeros((), jnp.bool_)

    def step(self, gradients: Any, state: Any, params: Any, /) -> tuple[Any, Any]:
        """The parameters after a step, and the new state."""
        held, begun = state
        leaves, spec = jax.tree.flatten(params)
        new, held = jax.lax.cond(
            begun,
            lambda p, g, s: self._next({}, p, g, s),
            lambda p, g, s: self._first({}, p, g),
            leaves,
            jax.tree.leaves(gradients),
            held,
        )
        return jax.tree.unflatten(spec, new), (held, jnp.ones((), jnp.bool_))

    def update(self, updates: Any, state: Any, params: Any = None, /) -> tuple[Any, Any]:
        """What to add to the parameters for these gradients, and the new state."""
        new, state = self.step(updates, state, params)
        return jax.tree.map(lambda a, b: a - b, new, params), state

    def _stepped(
        self, params: list[torch.Tensor], grads: list[torch.Tensor], state: State | None
    ) -> tuple[list[torch.Tensor], State]:
        """Parameters and state after a step of a new optimizer that is given a state."""
        leaves = [p.detach().clone().requires_grad_() for p in params]
        optimizer = self._make(leaves)
        for group in optimizer.param_groups:
            if group.get("capturable") is False:  # so that it counts steps on the device
                group["capturable"] = True
        for index, (leaf, gradient) in enumerate(zip(leaves, grads, strict=True)):
            leaf.grad = gradient.detach().to(leaf.dtype)
            if state is not None:
                optimizer.state[leaf] = {n: t.detach().clone() for n, t in state[index].items()}
        optimizer.step()
        found = [_tensors(optimizer.state[leaf]) for leaf in leaves]
        return [leaf.detach() for leaf in leaves], found


def _tensors(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What an optimizer keeps for a parameter; None is kept by keeping nothing."""
    odd = [name for name, part in state.items() if not isinstance(part, torch.Tensor | None)]
    if odd:
        raise TypeError(
            f"an optimizer keeps {odd[0]!r}, which is no tensor, so that clients cannot use it.\n"
            "Use another one, or one of optax."
        )
    return {name: part.detach() for name, part in state.items() if part is not None}
