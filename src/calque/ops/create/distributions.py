"""Samples from distributions whose parameters are tensors."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from calque.ops.create.draws import floats_only, working
from calque.ops.create.random_checks import NO_RATE, distribution, none_below
from calque.ops.table.facts import senseless
from calque.ops.table.promotion import (
    BOOL,
    COMPLEX,
    INT,
    is_complex,
    is_integral,
    opmath,
    type_name,
)
from calque.ops.table.random_bits import as_jaxs
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import each


@op(
    "multinomial",
    random=True,
    values=distribution,
    writes=("exact_dtype",),
    refuses=senseless(
        "multinomial only supports floating-point dtypes for input", BOOL, INT, COMPLEX
    ),
)
def multinomial(key: Array, self: Array, num_samples: int, replacement: bool = False) -> Array:
    floats_only("multinomial", self.dtype)
    if self.ndim not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and num_samples > self.shape[-1]:
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )
    logits = jnp.log(self.astype(working(self.dtype)))
    if replacement:
        shape = (*self.shape[:-1], num_samples)
        spread = logits if self.ndim == 1 else logits[:, None, :]
        return jax.random.categorical(key, spread, axis=-1, shape=shape).astype(jnp.int64)
    noisy = logits + jax.random.gumbel(key, logits.shape, logits.dtype)
    return lax.top_k(noisy, num_samples)[1].astype(jnp.int64)


@op("poisson", random=True, values=each("self", none_below, RuntimeError, NO_RATE))
def poisson(key: Array, self: Array) -> Array:
    floats_only("poisson_cpu", self.dtype)
    key = as_jaxs(key)  # jax.random.poisson needs JAX's own implementation
    return jax.random.poisson(key, self.astype(working(self.dtype))).astype(self.dtype)


@op("binomial", random=True)
def binomial(key: Array, count: Array, prob: Array) -> Array:
    for name, x in (("count", count), ("prob", prob)):
        if is_integral(x.dtype) or is_complex(x.dtype):
            raise ValueError(
                f"binomial only supports floating-point dtypes for {name}, got: "
                f"{type_name(x.dtype)}"
            )
    dtype = working(count.dtype)
    n, p = count.astype(dtype), prob.astype(dtype)
    return jax.random.binomial(key, n, p, dtype=dtype).astype(count.dtype)


@op("_standard_gamma", random=True)
def standard_gamma(key: Array, self: Array) -> Array:
    return jax.random.gamma(key, self.astype(working(self.dtype))).astype(self.dtype)


@op("_standard_gamma_grad")
@opmath
def standard_gamma_grad(self: Array, output: Array) -> Array:
    return lax.random_gamma_grad(self, output)  # pyright: ignore[reportCallIssue]


@op("_sample_dirichlet", random=True)
def sample_dirichlet(key: Array, self: Array) -> Array:
    drawn = jax.random.loggamma(key, self.astype(working(self.dtype)))
    return jax.nn.softmax(drawn, axis=-1).astype(self.dtype)
