"""`torch.optim.LBFGS` as a pure function that can recompute the loss."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax.flatten_util import ravel_pytree

from calque.federated.learning.line_search import Trial, strong_wolfe

_LEAST_CURVATURE = 1e-10

Leaves = list[Any]


class LBFGSMemory(NamedTuple):
    """The state between steps; its vectors hold all parameters, concatenated.

    Attributes:
        iterations: the number of iterations so far.
        direction, size: the last move was `size * direction`.
        gradient: the gradient where the last move began.
        changes, moves: the changes of gradients and of parameters, the latest in the last rows.
        weights: for each row, the reciprocal of the product of the two.
        stored: the number of rows in use.
        scale: the scale of the initial inverse Hessian.
    """

    iterations: Any
    direction: Any
    size: Any
    gradient: Any
    changes: Any
    moves: Any
    weights: Any
    stored: Any
    scale: Any


class _Search(NamedTuple):
    """The state of one step, between two iterations."""

    point: Any
    loss: Any
    gradient: Any
    memory: LBFGSMemory
    taken: Any
    evaluated: Any
    done: Any


class Lbfgs:
    """The steps of `torch.optim.LBFGS`, with the settings of its parameter group.

    Args:
        optimizer: the optimizer that has the settings.

    Raises:
        RuntimeError: it names a line search that PyTorch does not have.
    """

    def __init__(self, optimizer: torch.optim.LBFGS) -> None:
        self._group: dict[str, Any] = optimizer.param_groups[0]
        if self._group["line_search_fn"] not in (None, "strong_wolfe"):
            raise RuntimeError("only 'strong_wolfe' is supported")

    def init(self, leaves: Leaves) -> LBFGSMemory:
        """Returns the memory before the first step."""
        flat, _ = ravel_pytree(leaves)
        rows = jnp.zeros((self._group["history_size"], flat.size), flat.dtype)
        zero, none = jnp.zeros((), flat.dtype), jnp.zeros((), jnp.int32)
        empty = jnp.zeros_like(flat)
        return LBFGSMemory(none, empty, zero, empty, rows, rows, rows[:, 0], none, zero + 1)

    def step(
        self,
        leaves: Leaves,
        memory: LBFGSMemory,
        value: Any,
        gradients: Leaves,
        loss: Callable[..., Any],
    ) -> tuple[Leaves, LBFGSMemory]:
        """Returns the parameters after a step, and the new memory.

        Args:
            leaves: the parameters.
            memory: the memory after the previous step.
            value, gradients: the loss and its gradients at the parameters.
            loss: the loss as a function of the leaves.
        """
        point, unravel = ravel_pytree(leaves)
        gradient, _ = ravel_pytree(gradients)

        def evaluated(point: object) -> tuple[Any, Any]:
            value, found = jax.value_and_grad(lambda p: loss(unravel(p)))(point)
            return value, found.astype(gradient.dtype)

        none = jnp.zeros((), jnp.int32)
        start = _Search(point, value, gradient, memory, none, none + 1, self._is_optimal(gradient))
        end = jax.lax.while_loop(
            lambda now: ~now.done & (now.taken < self._group["max_iter"]),
            lambda now: self._iteration(now, evaluated),
            start,
        )
        return unravel(end.point), end.memory

    def _is_optimal(self, gradient: Any) -> Any:
        return jnp.abs(gradient).max() <= self._group["tolerance_grad"]

    def _iteration(self, now: _Search, evaluated: Callable[..., Any]) -> _Search:
        rate, least = self._group["lr"], self._group["tolerance_change"]
        memory = self._directed(now.memory, now.gradient)
        direction = memory.direction
        first = memory.iterations == 1
        size = jnp.where(first, jnp.minimum(1.0, 1.0 / jnp.abs(now.gradient).sum()) * rate, rate)
        memory = memory._replace(size=size.astype(direction.dtype), gradient=now.gradient)
        flat = now.gradient @ direction > -least
        taken = now.taken + 1
        is_last = taken == self._group["max_iter"]
        moved = self._moved(now, memory, flat, is_last, evaluated)
        done = (
            flat
            | is_last
            | (moved.evaluated >= self._group["max_eval"])
            | self._is_optimal(moved.gradient)
            | (jnp.abs(moved.memory.size * direction).max() <= least)
            | (jnp.abs(moved.loss - now.loss) < least)
        )
        return moved._replace(taken=taken, done=done)

    def _moved(
        self,
        now: _Search,
        memory: LBFGSMemory,
        flat: Any,
        is_last: Any,
        evaluated: Callable[..., Any],
    ) -> _Search:
        """Returns the state after a move along the direction; does not move if `flat`."""
        direction = memory.direction

        def near(size: object) -> tuple[Any, Any]:
            return evaluated(now.point + size * direction)

        if self._group["line_search_fn"] is None:
            # PyTorch does not evaluate the loss after the last move.
            loss, gradient = jax.lax.cond(
                flat | is_last, lambda _: (now.loss, now.gradient), near, memory.size
            )
            size, count = memory.size, jnp.where(flat | is_last, 0, 1)
        else:
            start = Trial(
                jnp.zeros_like(memory.size), now.loss, now.gradient, now.gradient @ direction
            )
            most = self._group["max_eval"] - now.evaluated
            trial, count = jax.lax.cond(
                flat,
                lambda size: (start._replace(size=size), jnp.zeros((), jnp.int32)),
                lambda size: strong_wolfe(near, start, size, direction, most),
                memory.size,
            )
            loss, gradient, size = trial.loss, trial.gradient, trial.size
        return now._replace(
            point=jnp.where(flat, now.point, now.point + size * direction),
            loss=loss,
            gradient=gradient,
            memory=memory._replace(size=size),
            evaluated=now.evaluated + count,
        )

    def _directed(self, memory: LBFGSMemory, gradient: Any) -> LBFGSMemory:
        """Returns the memory with the next direction, updated with the last move."""
        learnt = _learnt(memory, gradient)
        later = learnt._replace(direction=_direction(learnt, gradient))
        memory = memory._replace(direction=-gradient)
        chosen = jax.tree.map(lambda a, b: jnp.where(memory.iterations == 0, a, b), memory, later)
        return chosen._replace(iterations=memory.iterations + 1)


def _learnt(memory: LBFGSMemory, gradient: object) -> LBFGSMemory:
    change = gradient - memory.gradient
    move = memory.direction * memory.size
    product = change @ move

    def pushed(rows: Any, row: Any) -> Any:
        return jnp.roll(rows, -1, 0).at[-1].set(row)

    found = memory._replace(
        changes=pushed(memory.changes, change),
        moves=pushed(memory.moves, move),
        weights=pushed(memory.weights, 1.0 / product),
        stored=jnp.minimum(memory.stored + 1, len(memory.weights)),
        scale=product / (change @ change),
    )
    return jax.tree.map(lambda a, b: jnp.where(product > _LEAST_CURVATURE, a, b), found, memory)


def _direction(memory: LBFGSMemory, gradient: Any) -> Any:
    """Returns the approximate inverse Hessian times the negative gradient, by the two-loop
    recursion.
    """
    rows = len(memory.weights)

    def back(count: Any, carry: Any) -> Any:
        left, parts = carry
        row = rows - 1 - count
        part = (memory.moves[row] @ left) * memory.weights[row]
        return left - part * memory.changes[row], parts.at[row].set(part)

    def forth(row: object, right: object) -> Any:
        part = (memory.changes[row] @ right) * memory.weights[row]
        return right + memory.moves[row] * (parts[row] - part)

    empty = jnp.zeros_like(memory.weights)
    left, parts = jax.lax.fori_loop(0, memory.stored, back, (-gradient, empty))
    return jax.lax.fori_loop(rows - memory.stored, rows, forth, left * memory.scale)
