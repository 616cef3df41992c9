"""Fused optimizer steps: one executable updates every parameter of a group."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from calque.ops.table.registry import op

Arrays = list[Array]


def _kept(old: Any, new: Any, found_inf: Array | None) -> Any:
    """Returns the new values, or the old ones if the gradients overflowed."""
    if found_inf is None:
        return new
    skip = found_inf.reshape(()) != 0
    return [jnp.where(skip, o, n) for o, n in zip(old, new, strict=True)]


def _gradients(grads: Arrays, grad_scale: Array | None, maximize: bool) -> Arrays:
    """Returns the gradients to descend along, divided by the loss scale."""
    if grad_scale is not None:
        grads = [(g / grad_scale.reshape(())).astype(g.dtype) for g in grads]
    return [-g for g in grads] if maximize else grads


def _unscaled(grads: Arrays, grad_scale: Array | None) -> Arrays:
    return _gradients(grads, grad_scale, False)


def _one_minus_power(base: Any, step: Array) -> Array:
    """Returns `1 - base ** step`, accurate even if the power is nearly 1."""
    return -jnp.expm1(step * jnp.log(base))


def _adam(decoupled: bool) -> Any:
    def rule(
        self: Arrays,
        grads: Arrays,
        exp_avgs: Arrays,
        exp_avg_sqs: Arrays,
        max_exp_avg_sqs: Arrays,
        state_steps: Arrays,
        lr: Any,
        beta1: Any,
        beta2: Any,
        weight_decay: Any,
        eps: Any,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Array | None = None,
        found_inf: Array | None = None,
    ) -> tuple[Arrays, Arrays, Arrays, Arrays, Arrays]:
        params, firsts, seconds, tops = [], [], [], []
        used = _gradients(grads, grad_scale, maximize)
        for i, (p, g) in enumerate(zip(self, used, strict=True)):
            rate, step = jnp.asarray(lr).astype(p.dtype), state_steps[i].astype(jnp.float32)
            if decoupled:
                decayed = p - rate * weight_decay * p
            else:
                decayed, g = p, g + weight_decay * p
            first = exp_avgs[i] + (g - exp_avgs[i]) * (1 - beta1)
            second = exp_avg_sqs[i] * beta2 + (1 - beta2) * g * g
            top = jnp.maximum(max_exp_avg_sqs[i], second) if amsgrad else second
            root = jnp.sqrt(top) / jnp.sqrt(_one_minus_power(beta2, step)).astype(p.dtype)
            size = rate / _one_minus_power(beta1, step).astype(p.dtype)
            params.append((decayed - size * first / (root + eps)).astype(p.dtype))
            firsts.append(first.astype(exp_avgs[i].dtype))
            seconds.append(second.astype(exp_avg_sqs[i].dtype))
            tops.append(top)
        return (
            _kept(self, params, found_inf),
            _unscaled(grads, grad_scale),
            _kept(exp_avgs, firsts, found_inf),
            _kept(exp_avg_sqs, seconds, found_inf),
            _kept(max_exp_avg_sqs, tops, found_inf) if amsgrad else max_exp_avg_sqs,
        )

    return rule


_ADAM = {
    "dynamic": ("lr", "beta1", "beta2", "weight_decay", "eps"),
    "mutates": ("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"),
}
op("_fused_adam_", "_fused_adam_.tensor_lr", **_ADAM)(_adam(decoupled=False))
op("_fused_adamw_", "_fused_adamw_.tensor_lr", **_ADAM)(_adam(decoupled=True))


@op(
    "_fused_sgd_",
    "_fused_sgd_.tensor_lr",
    dynamic=("weight_decay", "momentum", "lr", "dampening"),
    mutates=("self", "grads", "momentum_buffer_list"),
)
def sgd(
    self: Arrays,
    grads: Arrays,
    momentum_buffer_list: Arrays,
    weight_decay: Any,
    momentum: Any,
    lr: Any,
    dampening: Any,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> tuple[Arrays, Arrays, Arrays]:
    params, buffers = [], []
    used = _gradients(grads, grad_scale, maximize)
    for i, (p, g) in enumerate(zip(self, used, strict=True)):
        g = g + weight_decay * p
        if momentum_buffer_list:
            old = momentum_buffer_list[i]
            buffer = g if is_first_step else old * momentum + g * (1 - dampening)
            g = g + momentum * buffer if nesterov else buffer
            buffers.append(buffer.astype(old.dtype))
        params.append((p - jnp.asarray(lr).astype(p.dtype) * g).astype(p.dtype))
    return (
        _kept(self, params, found_inf),
        _unscaled(grads, grad_scale),
        _kept(momentum_buffer_list, buffers, found_inf),
    )


@op(
    "_fused_adagrad_",
    "_fused_adagrad_.tensor_lr",
    dynamic=("lr", "lr_decay", "weight_decay", "eps"),
    mutates=("self", "grads", "state_sums"),
)
def adagrad(
    self: Arrays,
    grads: Arrays,
    state_sums: Arrays,
    state_steps: Arrays,
    lr: Any,
    lr_decay: Any,
    weight_decay: Any,
    eps: Any,
    maximize: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> tuple[Arrays, Arrays, Arrays]:
    params, sums = [], []
    used = _gradients(grads, grad_scale, maximize)
    for p, g, total, step in zip(self, used, state_sums, state_steps, strict=True):
        g = g + weight_decay * p
        rate = (jnp.asarray(lr) / (1 + (step - 1) * lr_decay)).astype(p.dtype)
        total = total + g * g
        params.append((p - rate * g / (jnp.sqrt(total) + eps)).astype(p.dtype))
        sums.append(total)
    return (
        _kept(self, params, found_inf),
        _unscaled(grads, grad_scale),
        _kept(state_sums, sums, found_inf),
    )
