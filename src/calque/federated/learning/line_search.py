"""The line search of `torch.optim.LBFGS`, as loops that a compiled program runs.

It searches for a step size along a direction that satisfies the strong Wolfe conditions (Nocedal
and Wright 2006, algorithms 3.5 and 3.6): first by growing sizes, until two of them bracket such a
size, then inside the bracket.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_ARMIJO = 1e-4
_CURVATURE = 0.9
_SMALLEST_BRACKET = 1e-9


class Trial(NamedTuple):
    """A step size, and the loss there.

    Attributes:
        size: the step size; a scalar, like `loss` and `slope`.
        loss: the loss at the point.
        gradient: the gradient of the loss with respect to all parameters; (count,).
        slope: the derivative of the loss along the direction.
    """

    size: Any
    loss: Any
    gradient: Any
    slope: Any


class _Bracketing(NamedTuple):
    before: Trial
    last: Trial
    count: Any


class _Zoom(NamedTuple):
    """The ends of the bracket, as a `Trial` of pairs, and the index of the lower one."""

    ends: Trial
    low: Any
    count: Any
    is_stuck: Any
    done: Any


def strong_wolfe(
    evaluated: Callable[[Any], tuple[Any, Any]],
    start: Trial,
    size: object,
    direction: object,
    most: object,
) -> tuple[Trial, Any]:
    """Returns a step that satisfies the strong Wolfe conditions, or the best one that was tried.

    Args:
        evaluated: returns the loss and gradient for a step size.
        start: the trial of size 0, where the search begins.
        size: the first size to try.
        direction: the direction of the steps; (count,).
        most: the maximum number of sizes to try after the first.

    Returns:
        The trial, and the number of sizes tried.
    """
    search = _Search(evaluated, start, direction, most)
    grown = search.grown(size)
    end = search.narrowed(search.bracket(grown))
    return _end(end.ends, end.low), end.count + 1


@dataclass(frozen=True)
class _Search:
    """The arguments of `strong_wolfe`, which are constant during the search."""

    evaluated: Callable[[Any], tuple[Any, Any]]
    start: Trial
    direction: Any
    most: Any

    def grown(self, size: object) -> _Bracketing:
        """Tries larger sizes, until the last two bracket a solution or the last one suffices."""

        def grows(now: _Bracketing) -> Any:
            found = self._is_bracket(now) | self._is_flat(now.last) | (now.last.slope >= 0)
            return (now.count < self.most) & ~found

        def longer(now: _Bracketing) -> _Bracketing:
            least = now.last.size + 0.01 * (now.last.size - now.before.size)
            size = _cubic_minimum(now.before, now.last, least, now.last.size * 10)
            return _Bracketing(now.last, self._tried(size), now.count + 1)

        first = _Bracketing(self.start, self._tried(size), jnp.zeros((), jnp.int32))
        return jax.lax.while_loop(grows, longer, first)

    def bracket(self, grown: _Bracketing) -> _Zoom:
        """Returns the bracket found by larger sizes; if they found none, it begins at the start."""
        is_over = grown.count >= self.most
        ends = _pair(_chosen(is_over, self.start, grown.before), grown.last)
        done = ~is_over & ~self._is_bracket(grown) & self._is_flat(grown.last)
        low = jnp.where(done, 1, _lower(ends.loss))
        return _Zoom(ends, low, grown.count, jnp.zeros((), jnp.bool_), done)

    def narrowed(self, bracket: _Zoom) -> _Zoom:
        """Narrows the bracket, until an end suffices or the bracket is empty."""
        longest = jnp.abs(self.direction).max()

        def narrows(now: _Zoom) -> Any:
            width = jnp.abs(now.ends.size[1] - now.ends.size[0]) * longest
            return ~now.done & (now.count < self.most) & ~(width < _SMALLEST_BRACKET)

        return jax.lax.while_loop(narrows, self._narrower, bracket)

    def _narrower(self, now: _Zoom) -> _Zoom:
        size, is_stuck = _inside(now)
        trial, ends = self._tried(size), now.ends
        lowest, high = _end(ends, now.low), 1 - now.low
        fails = self._is_above(trial) | (trial.loss >= lowest.loss)
        turns = trial.slope * (ends.size[high] - lowest.size) >= 0
        raised = _with_end(ends, high, trial)
        turned = _chosen(turns & ~self._is_flat(trial), _with_end(ends, high, lowest), ends)
        lowered = _with_end(turned, now.low, trial)
        low = jnp.where(fails, _lower(raised.loss), now.low)
        done = ~fails & self._is_flat(trial)
        return _Zoom(_chosen(fails, raised, lowered), low, now.count + 1, is_stuck, done)

    def _tried(self, size: object) -> Trial:
        loss, gradient = self.evaluated(size)
        return Trial(size, loss, gradient, gradient @ self.direction)

    def _is_above(self, trial: Trial) -> Any:
        return trial.loss > self.start.loss + _ARMIJO * trial.size * self.start.slope

    def _is_flat(self, trial: Trial) -> Any:
        return jnp.abs(trial.slope) <= -_CURVATURE * self.start.slope

    def _is_bracket(self, now: _Bracketing) -> Any:
        rises = (now.count > 1) & (now.last.loss >= now.before.loss)
        return self._is_above(now.last) | rises


def _inside(now: _Zoom) -> tuple[Any, Any]:
    """Returns the next size, and whether it may be too close to an end of the bracket.

    If this happens twice in a row, or the size is at an end, it is moved away from the end.
    """
    one, other = (_end(now.ends, index) for index in (0, 1))
    least, most = now.ends.size.min(), now.ends.size.max()
    size = _cubic_minimum(one, other, least, most)
    margin = 0.1 * (most - least)
    is_near = jnp.minimum(most - size, size - least) < margin
    moves = is_near & (now.is_stuck | (size >= most) | (size <= least))
    away = jnp.where(jnp.abs(size - most) < jnp.abs(size - least), most - margin, least + margin)
    return jnp.where(moves, away, size), is_near & ~moves


def _cubic_minimum(one: Trial, other: Trial, least: Any, most: Any) -> Any:
    """Returns the minimum, between two bounds, of the cubic through two trials and their slopes."""
    left, right = (
        _chosen(one.size <= other.size, *order) for order in ((one, other), (other, one))
    )
    rise = one.slope + other.slope - 3 * (one.loss - other.loss) / (one.size - other.size)
    square = rise**2 - one.slope * other.slope
    root = jnp.sqrt(jnp.maximum(square, 0))
    part = (right.slope + root - rise) / (right.slope - left.slope + 2 * root)
    size = jnp.clip(right.size - (right.size - left.size) * part, least, most)
    return jnp.where(square >= 0, size, (least + most) / 2)


def _lower(losses: Any) -> Any:
    return jnp.where(losses[0] <= losses[1], 0, 1)


def _pair(one: Trial, other: Trial) -> Trial:
    return jax.tree.map(lambda *both: jnp.stack(both), one, other)


def _end(ends: Trial, index: object) -> Trial:
    return jax.tree.map(lambda pair: pair[index], ends)


def _with_end(ends: Trial, index: object, trial: Trial) -> Trial:
    return jax.tree.map(lambda pair, new: pair.at[index].set(new), ends, trial)


def _chosen(condition: Any, one: Any, other: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)
