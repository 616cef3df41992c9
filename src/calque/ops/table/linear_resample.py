"""Linear maps along one axis with known taps: each output is a weighted sum of a few inputs.

Resampling, adaptive average pooling and padding by copies are such maps, and their gradients are
the transposed maps, which are of the same kind. So neither direction needs a scatter, and an
infinity outside the taps cannot reach the sum, as it would through a dense matrix.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

_UNROLLED = 16


@dataclass(frozen=True)
class Taps:
    """A map whose output `o` is the sum over `k` of `weights[o, k] * input[sources[o, k]]`.

    Attributes:
        sources: integers of shape (outputs, taps); a tap of weight zero is not read.
        weights: floats of the same shape.
        size: the number of inputs.
    """

    sources: np.ndarray
    weights: np.ndarray
    size: int

    def __call__(self, x: Array, axis: int) -> Array:
        """Applies the map along an axis; callers widen half-precision values."""
        outputs, taps = self.sources.shape
        plain = bool(np.all(self.weights == 1))
        if taps == 1 and plain and outputs == self.size:
            if np.array_equal(self.sources[:, 0], np.arange(outputs)):
                return x
        if taps <= _UNROLLED:
            total = None
            for k in range(taps):
                term = self._term(x, axis, self.sources[:, k], self.weights[:, k])
                total = term if total is None else total + term
            return jnp.zeros_like(x) if total is None else total
        spread = self._term(x, axis, self.sources.reshape(-1), self.weights.reshape(-1))
        shape = (*x.shape[:axis], outputs, taps, *x.shape[axis + 1 :])
        return jnp.sum(spread.reshape(shape), axis=axis + 1)

    def _term(self, x: Array, axis: int, sources: np.ndarray, weights: np.ndarray) -> Array:
        taken = jnp.take(
            x, sources.astype(np.int32), axis=axis, mode="clip", indices_are_sorted=_rising(sources)
        )
        if np.all(weights == 1):
            return taken
        weights = weights.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - axis - 1))
        scaled = taken * weights
        if np.all(weights != 0):
            return scaled
        return lax.select(
            jnp.broadcast_to(weights != 0, taken.shape), scaled, jnp.zeros_like(taken)
        )

    def transposed(self) -> "Taps":
        """Returns the transposed map: from outputs to inputs."""
        outputs, taps = self.sources.shape
        live = self.weights.reshape(-1) != 0
        inputs = self.sources.reshape(-1)[live]
        order = np.argsort(inputs, kind="stable")
        inputs = inputs[order]
        rank = np.arange(len(inputs)) - np.searchsorted(inputs, inputs)
        width = int(rank.max(initial=0)) + 1
        sources = np.zeros((self.size, width), np.int64)
        weights = np.zeros((self.size, width), np.float64)
        sources[inputs, rank] = np.repeat(np.arange(outputs), taps)[live][order]
        weights[inputs, rank] = self.weights.reshape(-1)[live][order]
        return Taps(sources, weights, outputs)


def _rising(sources: np.ndarray) -> bool:
    return bool(np.all(sources[1:] >= sources[:-1]))


def widened(x: Array) -> Array:
    """Returns a half-precision array as float32, other arrays unchanged."""
    half = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
    return x.astype(np.float32) if half else x


def apply_taps(x: Array, taps: list[Taps], transpose: bool = False) -> Array:
    """Applies maps, or their transposes, to the last axes of an array, one for each axis."""
    out = widened(x)
    first = x.ndim - len(taps)
    for k, one in enumerate(taps):
        out = (one.transposed() if transpose else one)(out, first + k)
    return out.astype(x.dtype)
