"""Whole recurrent layers: one scan over time for each layer and direction.

PyTorch composes these operators from a kernel for each step. Here one product projects the inputs
of all steps before the scan, and the program does not grow with the sequence.

Packed sequences of different lengths (`.data`) are unpacked to a rectangle of steps and sequences;
after a sequence's end, its state does not change.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from calque.ops.table.facts import facts
from calque.ops.table.registry import op

State = tuple[Array, ...]


class _Weights(NamedTuple):
    """The parameters of one direction of one layer."""

    input: Array
    hidden: Array
    input_bias: Array | None
    hidden_bias: Array | None
    projection: Array | None


class _Kind(NamedTuple):
    """A cell, which computes the new state from the projected input, the projected hidden state and
    the state.

    Attributes:
        step: the cell, in float32 for half-precision operands.
        joined: whether both biases may be added before the scan.
    """

    step: Callable[[Array, Array, State], State]
    joined: bool = True


def _lstm_step(x: Array, hidden: Array, state: State) -> State:
    i, f, g, o = jnp.split(x + hidden, 4, axis=1)
    cell = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def _gru_step(x: Array, hidden: Array, state: State) -> State:
    (xr, xz, xn), (hr, hz, hn) = jnp.split(x, 3, axis=1), jnp.split(hidden, 3, axis=1)
    r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
    n = jnp.tanh(xn + r * hn)
    return (n + z * (state[0] - n),)


def _tanh_step(x: Array, hidden: Array, state: State) -> State:
    return (jnp.tanh(x + hidden),)


def _relu_step(x: Array, hidden: Array, state: State) -> State:
    return (jax.nn.relu(x + hidden),)  # its derivative at 0 is 0, unlike maximum's


LSTM, GRU = _Kind(_lstm_step), _Kind(_gru_step, joined=False)
RNN = {"tanh": _Kind(_tanh_step), "relu": _Kind(_relu_step)}


def _product(x: Array, weight: Array) -> Array:
    if x.dtype != weight.dtype:
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {x.dtype} != {weight.dtype}"
        )
    if x.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({'x'.join(map(str, x.shape))} and "
            f"{weight.shape[1]}x{weight.shape[0]})"
        )
    return lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))


def _wide(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _direction(
    kind: _Kind, x: Array, valid: Array | None, first: State, w: _Weights, reverse: bool
) -> tuple[State, Array]:
    """Returns the last state and the outputs of all steps."""
    projected = _product(x, w.input)
    inside = None
    if w.input_bias is not None and w.hidden_bias is not None:
        projected = projected + w.input_bias + (w.hidden_bias if kind.joined else 0)
        inside = None if kind.joined else w.hidden_bias

    def step(state: State, inputs: tuple[Array, Array | None]) -> tuple[State, Array]:
        here, runs = inputs
        hidden = _product(state[0], w.hidden)
        if inside is not None:
            hidden = hidden + inside
        new = kind.step(_wide(here), _wide(hidden), tuple(map(_wide, state)))
        new = tuple(n.astype(s.dtype) for n, s in zip(new, state, strict=True))
        if w.projection is not None:
            new = (_product(new[0], w.projection), *new[1:])
        if runs is not None:
            new = tuple(jnp.where(runs[:, None], n, s) for n, s in zip(new, state, strict=True))
        return new, new[0]

    return lax.scan(step, first, (projected, valid), reverse=reverse)


def _weights(params: Sequence[Array], biases: bool, projected: bool) -> Iterator[_Weights]:
    size = 2 + 2 * biases + projected
    for start in range(0, len(params), size):
        own = list(params[start : start + size])
        projection = own.pop() if projected else None
        input_bias, hidden_bias = own[2:] if biases else (None, None)
        yield _Weights(own[0], own[1], input_bias, hidden_bias, projection)


def _drop(key: Array, x: Array, p: float) -> Array:
    if p == 1:
        return jnp.zeros_like(x)
    kept = jax.random.bernoulli(key, 1 - p, x.shape)
    return jnp.where(kept, x / jnp.asarray(1 - p, x.dtype), 0)


def _layers(
    kind: _Kind,
    key: Array | None,
    x: Array,
    valid: Array | None,
    states: Sequence[Array],
    params: Sequence[Array],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    bidirectional: bool,
) -> tuple[Array, ...]:
    """Returns the outputs of the last layer, and the last states of all layers and directions."""
    directions = 2 if bidirectional else 1
    projected = len(states) == 2 and states[0].shape[2] != states[1].shape[2]
    weights = list(_weights(params, has_biases, projected))
    count = num_layers * directions
    if len(weights) != count or any(s.shape[0] != count for s in states):
        raise RuntimeError(
            f"a recurrent network of {num_layers} layers and {directions} directions needs {count} "
            f"states and sets of weights, but got {states[0].shape[0]} and {len(weights)}"
        )
    if x.shape[0] == 0:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    last: list[State] = []
    for layer in range(num_layers):
        if layer and key is not None:
            x = _drop(jax.random.fold_in(key, layer), x, dropout)
        outputs = []
        for index in range(layer * directions, (layer + 1) * directions):
            first = tuple(s[index] for s in states)
            reverse = index > layer * directions
            state, output = _direction(kind, x, valid, first, weights[index], reverse)
            last.append(state)
            outputs.append(output)
        x = jnp.concatenate(outputs, axis=-1) if bidirectional else outputs[0]
    return (x, *(jnp.stack(parts) for parts in zip(*last, strict=True)))


def _unpack(data: Array, batch_sizes: Array, batch: int) -> tuple[Array, Array, Array, Array]:
    """Returns the steps as a rectangle, a mask of the data in it, and the step and row of each
    datum.
    """
    sizes = batch_sizes.astype(jnp.int32)
    ends = jnp.cumsum(sizes)
    starts = ends - sizes
    rows = jnp.arange(batch, dtype=jnp.int32)
    valid = rows < sizes[:, None]
    x = data[jnp.where(valid, starts[:, None] + rows, 0)]
    place = jnp.arange(data.shape[0], dtype=jnp.int32)
    step = jnp.searchsorted(ends, place, side="right").astype(jnp.int32)
    return x, valid, step, place - starts[step]


def _input(
    kind: _Kind, key: Array | None, x: Array, states: Sequence[Array], *settings: Any
) -> tuple[Array, ...]:
    params, has_biases, num_layers, dropout, bidirectional, batch_first = settings
    if x.ndim != 3:
        raise RuntimeError(f"a recurrent network takes a 3-D input, got {x.ndim}-D")
    x = jnp.swapaxes(x, 0, 1) if batch_first else x
    if any(s.ndim != 3 or s.shape[1] != x.shape[1] for s in states):
        raise RuntimeError(
            f"Expected hidden states of a batch of {x.shape[1]}, got "
            f"{[list(s.shape) for s in states]}"
        )
    out, *last = _layers(
        kind, key, x, None, states, params, has_biases, num_layers, dropout, bidirectional
    )
    return jnp.swapaxes(out, 0, 1) if batch_first else out, *last


def _data(
    kind: _Kind,
    key: Array | None,
    data: Array,
    batch_sizes: Array,
    states: Sequence[Array],
    *settings: Any,
) -> tuple[Array, ...]:
    x, valid, step, row = _unpack(data, batch_sizes, states[0].shape[1])
    out, *last = _layers(kind, key, x, valid, states, *settings)
    return out[step, row], *last


def drops(*args: Any) -> bool:
    """Returns a function that returns True if a call of these operators draws random numbers."""
    has_biases_at = next(i for i, a in enumerate(args) if isinstance(a, bool))
    layers, dropout, train = args[has_biases_at + 1 : has_biases_at + 4]
    return bool(train and dropout and layers > 1)


@op("lstm.input", random=drops, layout="sequence", autocast="lower", node=True)
def lstm(
    key: Array | None,
    input: Array,
    hx: Sequence[Array],
    params: Sequence[Array],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Array, ...]:
    """Returns the outputs, and the last hidden and cell states."""
    if len(hx) != 2:
        raise RuntimeError("lstm expects two hidden states")
    return _input(
        LSTM, key, input, hx, params, has_biases, num_layers, dropout, bidirectional, batch_first
    )


@op("lstm.data", random=drops, autocast="lower", node=True)
def lstm_packed(
    key: Array | None,
    data: Array,
    batch_sizes: Array,
    hx: Sequence[Array],
    params: Sequence[Array],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Array, ...]:
    """Like `lstm.input`, over packed sequences."""
    if len(hx) != 2:
        raise RuntimeError("lstm expects two hidden states")
    return _data(
        LSTM, key, data, batch_sizes, hx, params, has_biases, num_layers, dropout, bidirectional
    )


def _one_state(kind: _Kind) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns the rules of a network whose state is one array: for padded and for packed
    sequences."""

    def whole(
        key: Array | None,
        input: Array,
        hx: Array,
        params: Sequence[Array],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Array, ...]:
        return _input(
            kind,
            key,
            input,
            (hx,),
            params,
            has_biases,
            num_layers,
            dropout,
            bidirectional,
            batch_first,
        )

    def packed(
        key: Array | None,
        data: Array,
        batch_sizes: Array,
        hx: Array,
        params: Sequence[Array],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> tuple[Array, ...]:
        return _data(
            kind,
            key,
            data,
            batch_sizes,
            (hx,),
            params,
            has_biases,
            num_layers,
            dropout,
            bidirectional,
        )

    return whole, packed


for _name, _kind in {"gru": GRU, "rnn_tanh": RNN["tanh"], "rnn_relu": RNN["relu"]}.items():
    for _overload, _rule in zip(("input", "data"), _one_state(_kind), strict=True):
        op(f"{_name}.{_overload}", random=drops)(_rule)


facts("gru.data rnn_relu.data rnn_tanh.data", autocast="lower", node=True)
facts("gru.input rnn_relu.input rnn_tanh.input", layout="sequence", autocast="lower", node=True)
