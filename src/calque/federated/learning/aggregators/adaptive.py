"""Clips to a norm that follows a quantile of the clients' norms (Andrew et al. 2021).

The server keeps the norm between rounds, as the aggregator's state. Each client reports whether its
values are within the norm. If the fraction that is exceeds the quantile, the norm shrinks.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from calque.errors import with_user_frames
from calque.federated.decorators import local
from calque.federated.intrinsics import (
    federated_broadcast,
    federated_map,
    federated_mean,
    federated_sum,
    federated_value,
)
from calque.federated.learning.aggregators.basic import clip_to, mean, norm_of, with_noise
from calque.federated.learning.aggregators.kinds import Aggregator, is_private
from calque.federated.tracing import member_type, type_of
from calque.federated.types import CLIENTS


@dataclass(frozen=True)
class Clipping:
    """The parameters of an adaptive norm.

    Args:
        quantile: the target fraction of clients within the norm, between 0 and 1.
        norm: the initial norm.
        learning_rate: how fast the norm changes: by a factor of at most `exp(learning_rate)`.

    Raises:
        ValueError: one of them is out of range.
    """

    quantile: float
    norm: float
    learning_rate: float

    def __post_init__(self) -> None:
        if not 0 <= self.quantile <= 1:
            raise ValueError(f"quantile must be between 0 and 1, not {self.quantile}")
        if not (self.norm > 0 and self.learning_rate > 0):
            raise ValueError(
                f"norm and learning_rate must be positive, not {self.norm} and {self.learning_rate}"
            )

    def initial(self) -> Any:
        """Returns the state before the first round: the norm, a float32 scalar."""
        return jnp.asarray(self.norm, jnp.float32)

    def clipped(self, value: Any, weight: Any, norm: Any) -> Any:
        """Returns the clients' messages: the clipped values, whether they were within the norm (1.0
        or 0.0), and whether the client has examples.

        Clients without examples count as `quantile`, so that they do not change the norm.
        """
        parts = (value, weight, federated_broadcast(norm))

        @local(*(member_type(type_of(part)) for part in parts), framework="jax")
        def clip(value: Any, weight: Any, norm: Any) -> Any:
            within = jnp.where(weight > 0, norm_of(value) <= norm, self.quantile)
            return {
                "value": clip_to(value, norm),
                "within": within.astype(jnp.float32),
                "present": (weight > 0).astype(jnp.float32),
            }

        return federated_map(clip, parts)

    def moved(self, norm: Any, fraction: Any) -> Any:
        """Returns the next norm, given the fraction of clients within this one."""
        return norm * jnp.exp(-self.learning_rate * (fraction - self.quantile))


@dataclass(frozen=True)
class AdaptiveClipped(Clipping):
    """Like `aggregators.clipped`, with an adaptive norm; see `adaptive_clipped`."""

    inner: Aggregator

    def __call__(self, value: Any, weight: Any, key: Any, norm: Any) -> tuple[Any, Any]:
        """Returns the combined values, and the next norm."""
        sent = self.clipped(value, weight, norm)
        move = local("float32", "float32", framework="jax")(self.moved)
        new = federated_map(move, (norm, federated_mean(sent.within, sent.present)))
        return self.inner(sent["value"], weight, key), new


@dataclass(frozen=True)
class AdaptiveGaussian(Clipping):
    """Like `aggregators.dp_gaussian`, with an adaptive norm; see `adaptive_dp_gaussian`."""

    noise_multiplier: float
    count_deviation: float
    is_private: ClassVar[bool] = True

    def __call__(self, value: Any, weight: Any, key: Any, norm: Any) -> tuple[Any, Any]:
        """Returns the mean with noise, and the next norm."""
        sent = self.clipped(value, weight, norm)
        parts = {
            "total": federated_sum(sent["value"]),
            "within": federated_sum(sent.within),
            "count": federated_sum(federated_value(1.0, CLIENTS)),
            "key": key,
            "norm": norm,
        }
        kinds = {name: member_type(type_of(part)) for name, part in parts.items()}
        found = federated_map(local(framework="jax", **kinds)(self._noisy), parts)
        return found["mean"], found["norm"]

    def _noisy(self, total: Any, within: Any, count: Any, key: Any, norm: Any) -> Any:
        of_values, of_count = jax.random.split(jax.random.wrap_key_data(key))
        # The count uses part of the privacy budget; more noise on the values compensates.
        spent = 0.0
        if self.noise_multiplier:
            spent = (self.noise_multiplier**-2 - (2 * self.count_deviation) ** -2) ** -0.5
        mean = with_noise(total, spent * norm, count, jax.random.key_data(of_values))
        noise = self.count_deviation * jax.random.normal(of_count)
        return {"mean": mean, "norm": self.moved(norm, (within + noise) / count)}


@with_user_frames
def adaptive_clipped(
    quantile: float = 0.5,
    *,
    norm: float = 0.1,
    learning_rate: float = 0.2,
    inner: Aggregator | None = None,
) -> AdaptiveClipped:
    """Clips each client's values to a norm that follows the clients' norms; then applies `inner`.

    `State.aggregator` is the norm of the next round.

    Clients without examples do not move the norm.

    Args:
        quantile: the target fraction of clients within the norm.
        norm: the initial norm.
        learning_rate: how fast the norm changes: by a factor of at most `exp(learning_rate)`.
        inner: the aggregator of the clipped values; `mean()` by default.

    Raises:
        ValueError: a number is out of range, or `inner` is private: the norm has no noise.
    """
    if is_private(inner):
        raise ValueError(
            "the norm is adapted to the clients' norms without noise, so an inner aggregator "
            "could not guarantee privacy.\nUse adaptive_dp_gaussian."
        )
    return AdaptiveClipped(quantile, norm, learning_rate, inner or mean())


@with_user_frames
def adaptive_dp_gaussian(
    noise_multiplier: float,
    *,
    count_deviation: float,
    quantile: float = 0.5,
    norm: float = 0.1,
    learning_rate: float = 0.2,
) -> AdaptiveGaussian:
    """Like `aggregators.dp_gaussian`, with a norm that follows the clients' norms.

    Noise is added to the values and to the number of clients within the norm. Together they give
    the same privacy as `dp_gaussian(noise_multiplier, ...)`, so pass `noise_multiplier` to
    `learning.epsilon`. Clients without examples are counted as by `dp_gaussian`, and do not move
    the norm.

    Args:
        noise_multiplier: the noise multiplier of both together.
        count_deviation: the standard deviation of the noise on the number of clients within the
            norm, more than half of `noise_multiplier`; a twentieth of a round's clients is usual.
        quantile: as for `adaptive_clipped`.
        norm: as for `adaptive_clipped`.
        learning_rate: as for `adaptive_clipped`.

    Raises:
        ValueError: a number is out of range.
    """
    if not noise_multiplier >= 0:
        raise ValueError(f"noise_multiplier must be at least 0, not {noise_multiplier}")
    if not (2 * count_deviation > noise_multiplier or count_deviation == noise_multiplier == 0):
        raise ValueError(
            f"count_deviation must be more than half of noise_multiplier={noise_multiplier}, not "
            f"{count_deviation}: it would leave no privacy for the values."
        )
    if not math.isfinite(count_deviation):
        raise ValueError(f"count_deviation must be finite, not {count_deviation}")
    return AdaptiveGaussian(quantile, norm, learning_rate, noise_multiplier, count_deviation)
