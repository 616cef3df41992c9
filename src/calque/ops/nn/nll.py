"""The negative log-likelihood of class labels, and CTC.

An invalid label gives NaN, because the device cannot raise errors for values. The gradient compares
each class with the label instead of scattering, so XLA fuses it into the softmax's gradient.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from calque.ops.index.index_bounds import positions, take
from calque.ops.nn.loss import MEAN, NONE
from calque.ops.table.facts import facts, no_kernel
from calque.ops.table.promotion import BOOL, COMPLEX, INT, is_float, is_integral, type_name
from calque.ops.table.registry import op
from calque.ops.table.tensor_argument import TensorArgument


def _check(x: Array, target: Array, weight: Array | None, axis: int) -> None:
    labels = x.shape[:axis] + x.shape[axis + 1 :]
    if x.ndim <= 2 and target.ndim > 1:
        raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
    if x.ndim == 1 and target.shape and target.size != 1:
        raise ValueError(
            f"For 1D input, 1D target must have size 1, but got target size: {target.size}"
        )
    if target.shape != labels and not (x.ndim == 1 and target.size == 1):
        raise RuntimeError(
            f"size mismatch (got input: {list(x.shape)}, target: {list(target.shape)})"
            if x.ndim > 2 or len(target.shape) != 1
            else f"Expected input batch_size ({x.shape[0]}) to match target batch_size "
            f"({target.shape[0]})."
        )
    if weight is not None and weight.shape != (x.shape[axis],):
        raise RuntimeError(
            f"weight tensor should be defined either for all {x.shape[axis]} classes or no classes "
            f"but got weight tensor of shape: {list(weight.shape)}"
        )


def _label_weights(x: Array, target: Array, weight: Array | None, ignore: int) -> Array:
    """Returns the weight of each label, zero for ignored labels."""
    counted = target != ignore
    if weight is None:
        return counted.astype(x.dtype)
    taken = take(weight, positions(target, weight.shape[0]))
    return jnp.where(counted, taken, 0)


def _forward(
    x: Array, target: Array, weight: Array | None, reduction: int, ignore: int
) -> tuple[Array, Array]:
    axis = 0 if x.ndim == 1 else 1
    _check(x, target, weight, axis)
    target = target.reshape(x.shape[:axis] + x.shape[axis + 1 :])
    counted = target != ignore
    label = positions(jnp.where(counted, target, 0), x.shape[axis])
    label = jnp.where(label < 0, x.shape[axis], label)
    picked = jnp.take_along_axis(x, jnp.expand_dims(label, axis), axis=axis, mode="fill")
    picked = jnp.squeeze(picked, axis)
    weights = _label_weights(x, target, weight, ignore)
    loss = jnp.where(counted, -picked if weight is None else -picked * weights, 0)
    if reduction == NONE:
        return loss.astype(x.dtype), jnp.zeros((), x.dtype)
    total = jnp.sum(weights)
    summed = jnp.sum(loss)
    return (summed / total if reduction == MEAN else summed), total


def _backward(
    grad: Array,
    x: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore: int,
    total_weight: Array,
) -> Array:
    axis = 0 if x.ndim == 1 else 1
    target = target.reshape(x.shape[:axis] + x.shape[axis + 1 :])
    each = -_label_weights(x, target, weight, ignore) * grad
    if reduction == MEAN:
        each = each / total_weight
    each = jnp.where(target != ignore, each, 0)
    label = jnp.expand_dims(target, axis)
    classes = lax.broadcasted_iota(target.dtype, x.shape, axis)
    return jnp.where(classes == label, jnp.expand_dims(each, axis), 0).astype(x.dtype)


def _labels(
    self: TensorArgument, target: TensorArgument, ignore_index: int = -100, **_: Any
) -> None:
    """Raise IndexError for a class label without a score in the input."""
    if target.is_float or not target.size:
        return
    classes = self.shape[0] if self.ndim == 1 else self.shape[1]
    target.require(
        lambda label: ((label >= 0) & (label < classes)) | (label == ignore_index),
        lambda label: IndexError(f"Target {label} is out of bounds."),
    )


def _nll_condition(self: Any, target: Any, weight: Any, *_: Any, **__: Any) -> None:
    if is_integral(target.dtype) and target.dtype not in (jnp.int64, jnp.uint8):
        raise RuntimeError(
            f"expected target dtype to be Long or Byte, but got {type_name(target.dtype)}"
        )
    if weight is not None and is_float(self.dtype) and weight.dtype != self.dtype:
        raise RuntimeError(
            f"expected scalar type {type_name(self.dtype)} but found {type_name(weight.dtype)}"
        )


@op("nll_loss_forward", "nll_loss2d_forward", values=_labels, condition=_nll_condition)
def nll_loss_forward(
    self: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    return _forward(self, target, weight, reduction, ignore_index)


facts("nll_loss2d_forward", refuses=no_kernel("nll_loss2d_forward_out_frame", BOOL, INT, COMPLEX))
facts("nll_loss_forward", refuses=no_kernel("nll_loss_out_frame", BOOL, INT, COMPLEX))


@op("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    return _backward(grad_output, self, target, weight, reduction, ignore_index, total_weight)


_LENGTHS = ("input_lengths", "target_lengths")
_CTC = "(while checking arguments for ctc_loss_allocate_outputs)"


def _ctc_values(
    log_probs: TensorArgument,
    targets: TensorArgument,
    input_lengths: Any,
    target_lengths: Any,
    **_: Any,
) -> None:
    steps, labels = log_probs.shape[0], targets.shape[-1]

    def bad_input(bad: int) -> Exception:
        bound = f"at most {steps}" if bad > steps else "at least 0"
        return RuntimeError(
            f"Expected input_lengths to have value {bound}, but got value {bad} {_CTC}"
        )

    def bad_target(bad: int) -> Exception:
        if bad < 0:
            return RuntimeError(
                f"Expected target_lengths to have value at least 0, but got value {bad} {_CTC}"
            )
        return RuntimeError(
            f"Expected tensor to have size at least {bad} at dimension 1, but got size {labels} "
            f"for argument #2 'targets' {_CTC}"
        )

    _require_lengths(input_lengths, steps, bad_input)
    _require_lengths(target_lengths, labels, bad_target)
    known = target_lengths.values() if hasattr(target_lengths, "values") else target_lengths
    if known is None or targets.ndim != 1 or np.sum(known) == labels:
        return
    raise RuntimeError(
        f"Expected tensor to have size {np.sum(known)} at dimension 0, but got size {labels} for "
        f"argument #2 'targets' {_CTC}"
    )


def _require_lengths(lengths: Any, most: int, error: Callable[[int], Exception]) -> None:
    if hasattr(lengths, "require_within"):
        if not lengths.is_float:
            lengths.require_within(0, most + 1, error)
        return
    for length in lengths:
        if isinstance(length, int) and not 0 <= length <= most:
            raise error(length)


def _lengths(values: Any) -> Array:
    return (
        jnp.stack([jnp.asarray(v) for v in values]).astype(np.int64)
        if isinstance(values, list | tuple)
        else values.astype(np.int64)
    )


def _padded_targets(targets: Array, lengths: Array) -> Array:
    """Returns targets as (batch, longest), also for concatenated targets."""
    if targets.ndim == 2:
        return targets
    starts = jnp.cumsum(lengths) - lengths
    at = starts[:, None] + np.arange(targets.shape[0])
    return targets.at[at].get(mode="fill", fill_value=0)


def _ctc(
    log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array, blank: int
) -> tuple[Array, Array]:
    """Returns the negative log-likelihoods (batch,) and log-alphas (batch, time, 2 * longest +
    1)."""
    steps, batch, _ = log_probs.shape
    labels = _padded_targets(targets, target_lengths)
    longest = labels.shape[1]
    states = 2 * longest + 1
    extended = jnp.full((batch, states), blank, labels.dtype).at[:, 1::2].set(labels)
    no_way = np.asarray(-np.inf, log_probs.dtype)
    before = jnp.pad(extended, ((0, 0), (2, 0)), constant_values=blank)[:, :states]
    may_skip = (extended != blank) & (extended != before) & (np.arange(states) >= 2)
    emitted = jnp.take_along_axis(
        log_probs, jnp.broadcast_to(extended, (steps, batch, states)), axis=2, mode="clip"
    )
    reachable = (np.arange(states) == 0) | (
        (np.arange(states) == 1) & (target_lengths > 0)[:, None]
    )
    first = jnp.where(reachable, emitted[0], no_way)

    def step(alpha: Array, emission: Array) -> tuple[Array, Array]:
        one = jnp.pad(alpha, ((0, 0), (1, 0)), constant_values=-np.inf)[:, :states]
        two = jnp.pad(alpha, ((0, 0), (2, 0)), constant_values=-np.inf)[:, :states]
        two = jnp.where(may_skip, two, no_way)
        top = jnp.maximum(jnp.maximum(alpha, one), two)
        safe = lax.stop_gradient(jnp.where(top == -np.inf, 0, top))
        total = jnp.exp(alpha - safe) + jnp.exp(one - safe) + jnp.exp(two - safe)
        dead = total == 0
        new = jnp.where(dead, no_way, jnp.log(jnp.where(dead, 1, total)) + safe) + emission
        return new, new

    _, rest = lax.scan(step, first, emitted[1:])
    alphas = jnp.concatenate([first[None], rest])
    last = jnp.take_along_axis(alphas, (input_lengths - 1).reshape(1, batch, 1), axis=0)[0]
    end = 2 * target_lengths[:, None]
    final = jnp.take_along_axis(last, end, axis=1)[:, 0]
    other = jnp.take_along_axis(last, jnp.maximum(end - 1, 0), axis=1)[:, 0]
    other = jnp.where(target_lengths > 0, other, no_way)
    top = jnp.maximum(final, other)
    safe = lax.stop_gradient(jnp.where(top == -np.inf, 0, top))
    total = jnp.exp(final - safe) + jnp.exp(other - safe)
    dead = total == 0
    likelihood = jnp.where(dead, no_way, jnp.log(jnp.where(dead, 1, total)) + safe)
    unread = jnp.where(target_lengths == 0, 0, no_way)
    likelihood = jnp.where(input_lengths == 0, unread, likelihood)
    return -likelihood, alphas.swapaxes(0, 1)


@op(
    "_ctc_loss",
    "_ctc_loss.Tensor",
    dynamic=_LENGTHS,
    values=_ctc_values,
    refuses=no_kernel("ctc_loss_cpu", BOOL, INT, COMPLEX),
)
def ctc_loss(
    log_probs: Array,
    targets: Array,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Array, Array]:
    if not 0 <= blank < log_probs.shape[2]:
        raise RuntimeError("blank must be in label range")
    for name, lengths in zip(_LENGTHS, (input_lengths, target_lengths), strict=True):
        if hasattr(lengths, "dtype") and not is_integral(lengths.dtype):
            raise RuntimeError(f"{name} must be integral")
        if (lengths.size if hasattr(lengths, "dtype") else len(lengths)) != log_probs.shape[1]:
            raise RuntimeError(f"{name} must be of size batch_size")
    if targets.ndim == 2 and targets.shape[0] != log_probs.shape[1]:
        raise RuntimeError(
            f"Expected tensor to have size {log_probs.shape[1]} at dimension 0, but got size "
            f"{targets.shape[0]} for argument #2 'targets' {_CTC}"
        )
    return _ctc(log_probs, targets, _lengths(input_lengths), _lengths(target_lengths), blank)


@op("_ctc_loss_backward", "_ctc_loss_backward.Tensor", dynamic=_LENGTHS)
def ctc_loss_backward(
    grad: Array,
    log_probs: Array,
    targets: Array,
    input_lengths: Any,
    target_lengths: Any,
    neg_log_likelihood: Array,
    log_alpha: Array,
    blank: int,
    zero_infinity: bool = False,
) -> Array:
    """Like PyTorch's kernel, returns the derivative plus exp(input): the gradient of scores before
    a log-softmax."""
    inputs, labels = _lengths(input_lengths), _lengths(target_lengths)
    loss, pull = jax.vjp(lambda x: _ctc(x, targets, inputs, labels, blank)[0], log_probs)
    (derivative,) = pull(jnp.ones_like(loss))
    out = (jnp.exp(log_probs) + derivative) * grad[:, None]
    lost = (neg_log_likelihood == np.inf)[:, None]
    out = jnp.where(lost, 0 if zero_infinity else np.nan, out)
    live = np.arange(log_probs.shape[0])[:, None, None] < inputs[:, None]
    return jnp.where(live, out, 0).astype(log_probs.dtype)


facts("nll_loss nll_loss2d", autocast="float32")
