"""Attention by cuDNN on NVIDIA GPUs, which holds no array of size queries times keys.

cuDNN takes operands of half precision. Calls with a mask or dropout are computed by the plain form:
a mask can hide every key of a query, whose result is then zero in PyTorch, and cuDNN draws other
random numbers in the forward pass than the gradient would find again.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.nn import softmax_attention
from calque.ops.table.tensor_argument import TensorArgument

_DTYPES = (np.dtype(np.float16), np.dtype(jnp.bfloat16))
_WIDEST = 128  # elements of a head; the gradient of wider ones needs particular GPUs
_OLDEST = 8.0  # compute capability


Operand = Array | TensorArgument


def applies(q: Operand, k: Operand, v: Operand, bias: Operand | None, dropout_p: float) -> bool:
    """Returns True if cuDNN can compute the attention of these operands."""
    width = q.shape[-1]
    return (
        bias is None
        and not dropout_p
        and q.dtype in _DTYPES
        and q.dtype == k.dtype == v.dtype
        and width == v.shape[-1] <= _WIDEST
        and width % 8 == 0
        and all(type(n) is int and n for x in (q, k) for n in x.shape)
        and _exists()
    )


@functools.cache
def _exists() -> bool:
    """Returns True if JAX computes on an NVIDIA GPU with flash attention."""
    if jax.default_backend() != "gpu":
        return False
    device = jax.local_devices()[0]
    try:
        return float(getattr(device, "compute_capability", "")) >= _OLDEST
    except ValueError:  # not from NVIDIA
        return False


def attend(
    q: Array, k: Array, v: Array, is_causal: bool, scale: float | None
) -> tuple[Array, Array]:
    """Returns the output and the log-sum-exp of the scores, as `softmax_attention.attend` does.

    The output has no gradient with respect to the log-sum-exp.
    """

    def run(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        return _of_cudnn(q, k, v, is_causal, scale)

    attended, pull, lse = jax.vjp(run, *map(lax.stop_gradient, (q, k, v)), has_aux=True)
    return _tied(attended, q, k, v, pull, is_causal, scale), lse


def _of_cudnn(
    q: Array, k: Array, v: Array, is_causal: bool, scale: float | None
) -> tuple[Array, Array]:
    attended, lse = jax.nn.dot_product_attention(
        *(jnp.swapaxes(x, 1, 2) for x in (q, k, v)),
        scale=scale,
        is_causal=is_causal,
        implementation="cudnn",
        return_residual=True,
    )
    return jnp.swapaxes(attended, 1, 2), jnp.swapaxes(lse, 1, 2).astype(np.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _tied(
    attended: Array,
    q: Array,
    k: Array,
    v: Array,
    pull: Any,
    is_causal: bool,
    scale: float | None,
) -> Array:
    """Returns the output, as a function of the operands that can be differentiated repeatedly."""
    return attended


def _tied_forward(
    attended: Array, q: Array, k: Array, v: Array, pull: Any, is_causal: bool, scale: float | None
) -> tuple[Array, Any]:
    return _tied(attended, q, k, v, pull, is_causal, scale), (q, k, v, pull)


def _tied_backward(is_causal: bool, scale: float | None, saved: Any, incoming: Array) -> Any:
    gradients: Any = _pulled(*saved, incoming, is_causal, scale)
    return None, *gradients, None


_tied.defvjp(_tied_forward, _tied_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _pulled(
    q: Array,
    k: Array,
    v: Array,
    pull: Any,
    incoming: Array,
    is_causal: bool,
    scale: float | None,
) -> Any:
    """Returns the gradients. cuDNN has no gradient of these: they are those of the plain form."""
    return pull(incoming)


def _pulled_forward(q: Array, k: Array, v: Array, pull: Any, incoming: Array, *how: Any) -> Any:
    return pull(incoming), (q, k, v, incoming)


def _pulled_backward(is_causal: bool, scale: float | None, saved: Any, incoming: Any) -> Any:
    def gradients(q: Array, k: Array, v: Array, inner: Array) -> Any:
        def run(q: Array, k: Array, v: Array) -> Array:
            attend = softmax_attention.attend
            return attend(q, k, v, None, is_causal, scale, None, 0.0)[0]

        found: Any = jax.vjp(run, q, k, v)[1](inner)
        return found

    found: Any = jax.vjp(gradients, *saved)[1](incoming)
    *operands, inner = found
    return *operands, None, inner


_pulled.defvjp(_pulled_forward, _pulled_backward)
