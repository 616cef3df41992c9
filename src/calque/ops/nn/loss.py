"""Losses between the elements of an input and a target, and their gradients.

`reduction` is PyTorch's number: 0 none, 1 mean, 2 sum. A gradient is `jax.vjp` of the loss, unless
PyTorch's differs at a kink or at a clamp.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from calque.ops.table.facts import facts, no_kernel
from calque.ops.table.helpers import constant
from calque.ops.table.number_range import Holds
from calque.ops.table.promotion import (
    BOOL,
    COMPLEX,
    INT,
    category,
    opmath,
    promote,
    result_type,
    to_float,
    type_name,
)
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import TensorArgument, each

NONE, MEAN, SUM = 0, 1, 2
_NO_PROBABILITY = "all elements of input should be between 0 and 1"


def reduce(loss: Array, reduction: int) -> Array:
    """Returns the loss reduced by none, mean or sum."""
    if reduction == NONE:
        return loss
    return jnp.mean(loss) if reduction == MEAN else jnp.sum(loss)


def share(grad_output: Array, size: int, reduction: int) -> Array:
    """Returns the gradient of each of `size` elements through a reduction."""
    if reduction != MEAN:
        return grad_output
    return grad_output / jnp.asarray(size).astype(grad_output.dtype)


@op(
    "mse_loss",
    layout="elementwise",
    autocast="float32",
    refuses=no_kernel("mse_cpu", BOOL, INT, COMPLEX, pair=True),
)
def mse_loss(self: Array, target: Array, reduction: int = MEAN) -> Array:
    x, y = promote(self, target)
    return reduce(jnp.square(x - y), reduction)


@op("mse_loss_backward")
def mse_loss_backward(grad_output: Array, self: Array, target: Array, reduction: int) -> Array:
    x, y = promote(self, target)
    return 2 * (x - y) * share(grad_output, x.size, reduction)


@op(
    "smooth_l1_loss",
    layout="elementwise",
    autocast="float32",
    refuses=no_kernel("smooth_l1_cpu", BOOL, INT, COMPLEX, pair=True),
)
def smooth_l1_loss(self: Array, target: Array, reduction: int = MEAN, beta: float = 1.0) -> Array:
    if not beta >= 0:  # nor NaN
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    return reduce(_smooth(*promote(self, target), beta), reduction)


@opmath
def _smooth(x: Array, y: Array, beta: float) -> Array:
    gap = jnp.abs(x - y)
    return gap if beta == 0 else jnp.where(gap < beta, 0.5 * gap * gap / beta, gap - 0.5 * beta)


@op("smooth_l1_loss_backward")
def smooth_l1_loss_backward(
    grad_output: Array, self: Array, target: Array, reduction: int, beta: float
) -> Array:
    x, y = promote(self, target)
    gap = x - y
    slope = jnp.sign(gap) if beta == 0 else jnp.clip(gap / beta, -1, 1)
    return slope * share(grad_output, gap.size, reduction)


def _input_holds(self: Any, target: Any, *_: Any, **__: Any) -> None:
    """Raise if a loss, which has the input's dtype, cannot be cast to it."""
    dtype = to_float(result_type(self, target))
    if category(dtype) > category(self.dtype):
        raise RuntimeError(
            f"result type {type_name(dtype)} can't be cast to the desired output type "
            f"{type_name(self.dtype)}"
        )


@op(
    "huber_loss",
    layout="elementwise",
    autocast="float32",
    condition=_input_holds,
    refuses=no_kernel("huber_cpu", BOOL, INT, COMPLEX, pair=True),
)
def huber_loss(self: Array, target: Array, reduction: int = MEAN, delta: float = 1.0) -> Array:
    if not delta > 0:  # nor NaN
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    return reduce(_huber(*promote(self, target), delta).astype(self.dtype), reduction)


@opmath
def _huber(x: Array, y: Array, delta: float) -> Array:
    gap = jnp.abs(x - y)
    return jnp.where(gap <= delta, 0.5 * gap * gap, delta * (gap - 0.5 * delta))


@op("huber_loss_backward")
def huber_loss_backward(
    grad_output: Array, self: Array, target: Array, reduction: int, delta: float
) -> Array:
    x, y = promote(self, target)
    return jnp.clip(x - y, -delta, delta) * share(grad_output, x.size, reduction)


def _margin_condition(self: Any, target: Any, *_: Any, **__: Any) -> None:
    _input_holds(self, target)
    shape = jnp.broadcast_shapes(self.shape, target.shape)
    if shape != self.shape:
        raise RuntimeError(
            f"output with shape {list(self.shape)} doesn't match the broadcast shape {list(shape)}"
        )


@op("soft_margin_loss", layout="elementwise", autocast="float32", condition=_margin_condition)
def soft_margin_loss(self: Array, target: Array, reduction: int = MEAN) -> Array:
    x, y = promote(self, target)
    return reduce(jax.nn.softplus(-y * x).astype(self.dtype), reduction)


@op("soft_margin_loss_backward", layout="elementwise", laid_by=(2, 1))
def soft_margin_loss_backward(
    grad_output: Array, self: Array, target: Array, reduction: int
) -> Array:
    x, y = promote(self, target)
    grad = -y * jax.nn.sigmoid(-y * x) * share(grad_output, x.size, reduction)
    return grad.astype(self.dtype)


def _bce_condition(self: Any, target: Any, weight: Any = None, *_: Any, **__: Any) -> None:
    if self.dtype != target.dtype:
        raise RuntimeError(
            f"Found dtype {type_name(target.dtype)} but expected {type_name(self.dtype)}"
        )
    if weight is not None:
        together = np.broadcast_shapes(self.shape, weight.shape)
        if together != self.shape:
            raise RuntimeError(
                f"output with shape {list(self.shape)} doesn't match the broadcast shape "
                f"{list(together)}"
            )


@op(
    "binary_cross_entropy",
    values=each("self", lambda p: (p >= 0) & (p <= 1), RuntimeError, _NO_PROBABILITY),
    layout="copied",
    unsafe_autocast=(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: "
        "use binary_cross_entropy_with_logits"
    ),
    refuses=no_kernel("binary_cross_entropy", BOOL, INT, COMPLEX),
    condition=_bce_condition,
)
def binary_cross_entropy(
    self: Array, target: Array, weight: Array | None = None, reduction: int = MEAN
) -> Array:
    """Returns the loss, with logarithms of at least -100 as in PyTorch; NaN for an input outside
    [0, 1]."""
    x, y = promote(self, target)
    log_x = jnp.maximum(jnp.log(x), -100)
    log_rest = jnp.maximum(jnp.log1p(-x), -100)
    loss = (y - 1) * log_rest - y * log_x
    return reduce(loss if weight is None else loss * weight, reduction)


@op("binary_cross_entropy_backward", layout="copied", laid_by=(1,))
def binary_cross_entropy_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    x, y = promote(self, target)
    grad = grad_output * (x - y) / jnp.maximum((1 - x) * x, np.asarray(1e-12, x.dtype))
    grad = grad if weight is None else grad * weight
    return share(grad, x.size, reduction).astype(self.dtype)


def _bce_with_logits_condition(self: Any, target: Any, *_: Any, **__: Any) -> None:
    if category(target.dtype) < category(self.dtype):
        raise RuntimeError(
            f"result type {type_name(self.dtype)} can't be cast to the desired output type "
            f"{type_name(target.dtype)}"
        )


@op(
    "binary_cross_entropy_with_logits",
    layout="meta_if_strided",
    autocast="float32",
    condition=_bce_with_logits_condition,
    refuses=no_kernel("log_sigmoid_cpu", BOOL, INT, COMPLEX),
)
def binary_cross_entropy_with_logits(
    self: Array,
    target: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    x, y = promote(self, target)
    log_sigmoid = jax.nn.log_sigmoid(x)
    positive = log_sigmoid if pos_weight is None else ((pos_weight - 1) * y + 1) * log_sigmoid
    loss = (1 - y) * x - positive
    loss = loss if weight is None else loss * weight
    return reduce(loss.astype(target.dtype), reduction)


def _row(values: Array) -> tuple[Array, tuple[int, ...]]:
    """Returns the input as (samples, classes), and the shape of the samples."""
    return (values[None], ()) if values.ndim < 2 else (values, values.shape[:1])


def _check_classes(x: Any) -> None:
    if x.ndim > 2 or x.shape[-1:] == (0,):
        raise RuntimeError(
            "Expected non-empty vector or matrix with optional 0-dim batch size, but got: "
            f"{list(x.shape)}"
        )


def _check_rows(x: Array, target: Array, shape: tuple[int, ...]) -> None:
    if target.shape != shape and not (not shape and target.size == 1):
        raise RuntimeError(f"inconsistent target size, expected {shape} but got {target.shape}")


def _positive(gap: Array) -> Array:
    """Returns positive gaps, and 0 for others. As in C, NaN is not positive; there is no gradient
    at 0."""
    return jnp.where(gap > 0, gap, 0)


def _multi_margin(
    x: Array, target: Array, p: int, margin: Any, weight: Array | None, reduction: int
) -> Array:
    matrix, samples = _row(jnp.atleast_1d(x))
    _check_rows(x, target, samples)
    classes = matrix.shape[1]
    label = target.reshape(-1, 1)
    hit = jnp.take_along_axis(matrix, label, axis=1, mode="fill")
    gap = _positive(constant(margin, x.dtype) - hit + matrix)
    loss = gap if p == 1 else gap * gap
    if weight is not None:
        loss = loss * jnp.take(weight, label, mode="fill")
    loss = jnp.where(np.arange(classes) == label, 0, loss)
    loss = jnp.where((label < 0) | (label >= classes), np.nan, loss)
    shape = samples or target.shape
    return reduce((jnp.sum(loss, axis=1) / classes).reshape(shape), reduction)


def _are_long(self: Any, target: Any, *_: Any, **__: Any) -> None:
    _check_classes(self)
    if target.dtype != np.int64:
        raise RuntimeError(f"expected scalar type Long but found {type_name(target.dtype)}")


def _classes(name: str, least: int) -> Any:
    """Returns a check that labels are at least `least` and below the number of classes."""

    def check(self: TensorArgument, target: TensorArgument, **_: Any) -> None:
        labels = None if target.is_float else target.values()
        classes = self.shape[-1] if self.ndim else 1
        if labels is not None and not ((labels >= least) & (labels < classes)).all():
            raise RuntimeError(f"{name}: target out of range")

    return check


@op(
    "multi_margin_loss",
    static=("p", "margin"),
    autocast="float32",
    condition=_are_long,
    values=_classes("multi_margin_loss", 0),
    numbers=Holds("margin", like="self"),
)
def multi_margin_loss(
    self: Array,
    target: Array,
    p: Any = 1,
    margin: Any = 1,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    if p not in (1, 2):
        raise RuntimeError("only p == 1 and p == 2 supported")
    if weight is not None and weight.shape != (self.shape or (1,))[-1:]:
        raise RuntimeError(
            f"inconsistent weight size, expected {self.shape[-1] if self.ndim else 1} but got "
            f"{list(weight.shape)}"
        )
    return _multi_margin(self, target, p, margin, weight, reduction)


@op("multi_margin_loss_backward", static=("p", "margin"))
def multi_margin_loss_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    p: Any,
    margin: Any,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    def forward(x: Array) -> Array:
        return _multi_margin(x, target, p, margin, weight, reduction)

    return jax.vjp(forward, self)[1](grad_output)[0]


def _is_target(matrix: Array, target: Array) -> tuple[Array, Array]:
    """Returns which positions of the target count (those before the first -1), and which classes
    are targets.
    """
    valid = jnp.cumsum(target < 0, axis=1) == 0
    at = jnp.where(valid, target, matrix.shape[1])
    rows = np.arange(matrix.shape[0])[:, None]
    named = jnp.zeros(matrix.shape, bool).at[rows, at].set(True, mode="drop")
    return valid, named


def _multilabel_margin(x: Array, target: Array, reduction: int) -> Array:
    matrix, samples = _row(jnp.atleast_1d(x))
    labels, _ = _row(jnp.atleast_1d(target))
    valid, named = _is_target(matrix, labels)
    hit = jnp.take_along_axis(matrix, jnp.where(valid, labels, 0), axis=1, mode="fill")
    gap = _positive(1 - hit[:, :, None] + matrix[:, None, :])
    gap = jnp.where(valid[:, :, None] & ~named[:, None, :], gap, 0)
    gap = jnp.where((valid & (labels >= matrix.shape[1]))[:, :, None], np.nan, gap)
    return reduce((jnp.sum(gap, axis=(1, 2)) / matrix.shape[1]).reshape(samples), reduction)


@op(
    "multilabel_margin_loss_forward",
    condition=_are_long,
    values=_classes("multilabel_margin_loss", -1),
)
def multilabel_margin_loss_forward(
    self: Array, target: Array, reduction: int
) -> tuple[Array, Array]:
    if self.shape != target.shape and not (self.size == target.size == 1):
        raise RuntimeError(f"inconsistent target size: {target.shape} for input of {self.shape}")
    matrix, _ = _row(jnp.atleast_1d(self))
    labels, _ = _row(jnp.atleast_1d(target))
    named = _is_target(matrix, labels)[1].astype(self.dtype).reshape(target.shape)
    return _multilabel_margin(self, target, reduction), named


@op("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    grad_output: Array, self: Array, target: Array, reduction: int, is_target: Array
) -> Array:
    return jax.vjp(lambda x: _multilabel_margin(x, target, reduction), self)[1](grad_output)[0]


facts(
    "cosine_embedding_loss cross_entropy_loss hinge_embedding_loss kl_div l1_loss",
    "margin_ranking_loss multilabel_margin_loss poisson_nll_loss triplet_margin_loss",
    autocast="float32",
)
