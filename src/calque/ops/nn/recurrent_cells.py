"""The fused cells of LSTM and GRU, and their gradients.

The workspace holds the activated gates, which are all that the gradient needs.
"""

import jax
import jax.numpy as jnp
from jax import Array

from calque.ops.table.facts import facts
from calque.ops.table.registry import op


def _gates(
    input_gates: Array, hidden_gates: Array, input_bias: Array | None, hidden_bias: Array | None
) -> tuple[Array, Array]:
    if input_gates.shape != hidden_gates.shape:
        raise RuntimeError(
            f"input gates {list(input_gates.shape)} and hidden gates {list(hidden_gates.shape)} "
            "differ in shape"
        )
    x = input_gates if input_bias is None else input_gates + input_bias
    h = hidden_gates if hidden_bias is None else hidden_gates + hidden_bias
    return x, h


@op("_thnn_fused_lstm_cell", autocast="lower")
def lstm_cell(
    input_gates: Array,
    hidden_gates: Array,
    cx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Returns the hidden state, the cell state and the workspace; gates are in the order i,
    f, g, o.
    """
    x, h = _gates(input_gates, hidden_gates, input_bias, hidden_bias)
    i, f, g, o = jnp.split(x + h, 4, axis=1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cy = f * cx + i * g
    return o * jnp.tanh(cy), cy, jnp.concatenate([i, f, g, o], axis=1)


@op("_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    grad_hy: Array | None,
    grad_cy: Array | None,
    cx: Array,
    cy: Array,
    workspace: Array,
    has_bias: bool,
) -> tuple[Array | None, Array | None, Array | None]:
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = jnp.split(workspace, 4, axis=1)
    tanh = jnp.tanh(cy)
    to_cell = jnp.zeros_like(cy) if grad_cy is None else grad_cy
    to_output = jnp.zeros_like(cy)
    if grad_hy is not None:
        to_cell = to_cell + grad_hy * o * (1 - tanh * tanh)
        to_output = grad_hy * tanh * o * (1 - o)
    gates = jnp.concatenate(
        [
            to_cell * g * i * (1 - i),
            to_cell * cx * f * (1 - f),
            to_cell * i * (1 - g * g),
            to_output,
        ],
        axis=1,
    )
    return gates, to_cell * f, jnp.sum(gates, axis=0) if has_bias else None


@op("_thnn_fused_gru_cell", autocast="lower")
def gru_cell(
    input_gates: Array,
    hidden_gates: Array,
    hx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array]:
    """Returns the hidden state and the workspace: r, z, n,
    the old state and the hidden part of n.
    """
    x, h = _gates(input_gates, hidden_gates, input_bias, hidden_bias)
    (xr, xz, xn), (hr, hz, hn) = jnp.split(x, 3, axis=1), jnp.split(h, 3, axis=1)
    r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
    n = jnp.tanh(xn + r * hn)
    return n + z * (hx - n), jnp.concatenate([r, z, n, hx, hn], axis=1)


@op("_thnn_fused_gru_cell_backward")
def gru_cell_backward(
    grad_hy: Array, workspace: Array, has_bias: bool
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    r, z, n, hx, hn = jnp.split(workspace, 5, axis=1)
    to_n = grad_hy * (1 - z) * (1 - n * n)
    to_z = grad_hy * (hx - n) * z * (1 - z)
    to_r = to_n * hn * r * (1 - r)
    for_input = jnp.concatenate([to_r, to_z, to_n], axis=1)
    for_hidden = jnp.concatenate([to_r, to_z, to_n * r], axis=1)
    bias_input, bias_hidden = (
        jnp.sum(g, axis=0) if has_bias else None for g in (for_input, for_hidden)
    )
    return for_input, for_hidden, grad_hy * z, bias_input, bias_hidden


facts("gru_cell lstm_cell rnn_relu_cell rnn_tanh_cell", autocast="lower")
