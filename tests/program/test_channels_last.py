"""Programs whose images keep their channels last compute the same, and turn few images."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import Array, lax
from jax.extend.core import jaxpr_as_fun
from torch import nn

import calque
from calque.program.channels_last import channels_last, kernels

X = np.random.default_rng(0).normal(size=(2, 4, 7, 6)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(4, 4, 3, 3)).astype(np.float32)
V = np.random.default_rng(2).normal(size=(2, 4, 7, 6)).astype(np.float32)


def _convolved(x: Array, w: Array) -> Array:
    return lax.conv_general_dilated(x, w, (1, 1), [(1, 1), (1, 1)])


def _last(x: Array) -> Array:
    return jnp.moveaxis(x, 1, -1)


AFTERWARDS: dict[str, Callable[[Array, Array], object]] = {
    "nothing": lambda y, v: y,
    "elementwise": lambda y, v: jnp.tanh(y) * v + 2 - jnp.where(y > 0, y, v),
    "scale of channels": lambda y, v: y * v[0, :, 0, 0].reshape(1, -1, 1, 1),
    "sums": lambda y, v: (y.sum((0, 2, 3)), y.sum(1), y.max((1, 3)), y.mean(2, keepdims=True)),
    "sum that leaves the channels inside": lambda y, v: jnp.cos(y.sum(2)) + v.sum(2),
    "windows": lambda y, v: lax.reduce_window(
        y, -np.inf, lax.max, (1, 1, 3, 2), (1, 1, 2, 1), ((0, 0), (0, 0), (1, 1), (0, 1))
    ),
    "slices": lambda y, v: y[:, 1:3, ::2, 1:] + v[:, 1:3, ::2, 1:],
    "padding": lambda y, v: lax.pad(y, 1.5, ((0, 1, 0), (1, 0, 0), (0, -1, 0), (2, 1, 1))),
    "concatenation": lambda y, v: jnp.concatenate([y, v, y], axis=1),
    "reversal": lambda y, v: lax.rev(y, (1, 3)),
    "broadcast": lambda y, v: jnp.broadcast_to(y[:1, :, :1], y.shape) + v,
    "shapes": lambda y, v: (y.reshape(2, -1) @ v.reshape(2, -1).T, y.reshape(2, 2, 2, 7, 6)),
    "another transposition": lambda y, v: y.transpose(3, 0, 2, 1) + v.transpose(3, 0, 2, 1),
    "barrier": lambda y, v: lax.optimization_barrier((y, v))[0],
    "activation": lambda y, v: jax.nn.silu(jax.nn.relu(y)),
    "product over channels": lambda y, v: jnp.moveaxis(_last(y) @ v[0, :, 0, :4], -1, 1) + v,
    "sorting": lambda y, v: (jnp.sort(y, axis=1), jnp.argmax(y, axis=1), jnp.cumsum(y, axis=3)),
    "loop": lambda y, v: lax.fori_loop(0, 3, lambda i, s: s * 0.5 + v, y),
    "convolution": lambda y, v: _convolved(jax.nn.relu(y), W) + v,
    "groups": lambda y, v: lax.conv_general_dilated(
        y, W[:, :2], (2, 1), [(1, 0), (0, 1)], feature_group_count=2, rhs_dilation=(1, 2)
    ),
    "kernel made of the image": lambda y, v: _convolved(v, y[:1, :, :3, :3] + W),
}


def _traced(function: Callable[..., object], *arrays: np.ndarray) -> tuple[object, list[Array]]:
    flat = jax.make_jaxpr(lambda *a: jax.tree.leaves(function(*a)))(*arrays)
    return flat, jaxpr_as_fun(flat)(*arrays)


@pytest.mark.sampled(15)
@pytest.mark.parametrize(
    ("name", "gradient"),
    [
        *((name, False) for name in AFTERWARDS),
        *((name, True) for name in AFTERWARDS if name != "loop"),  # forward only
    ],
)
def test_the_same_is_computed(name: str, gradient: bool) -> None:
    def forward(x: Array, w: Array, v: Array) -> object:
        return AFTERWARDS[name](jax.jit(_convolved)(x, w), v)

    def backward(x: Array, w: Array, v: Array) -> object:
        y, pull = jax.vjp(
            lambda *a: [z.astype(float) for z in jax.tree.leaves(forward(*a))], x, w, v
        )
        return pull([jnp.cos(one) for one in y])

    closed, want = _traced(backward if gradient else forward, X, W, V)
    got = jaxpr_as_fun(channels_last(closed))(X, W, V)
    assert [one.dtype for one in got] == [one.dtype for one in want]
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


def _transpositions(jaxpr: object) -> int:
    found = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "transpose":
            found += len(equation.outvars[0].aval.shape) == 4
        elif equation.primitive.name == "jit":
            found += _transpositions(equation.params["jaxpr"].jaxpr)
    return found


def test_an_image_is_turned_once_to_and_once_fro() -> None:
    def network(x: Array, w: Array, v: Array) -> Array:
        for _ in range(5):
            x = jax.nn.relu(_convolved(x, w)) * v[0, :, 0, 0].reshape(1, -1, 1, 1)
            x = x + jnp.moveaxis(_last(x) @ v[0, :, 0, :4], -1, 1)
        return x

    closed, _ = _traced(network, X, W, V)
    scales = 5  # with one row each
    assert _transpositions(channels_last(closed).jaxpr) == 2 + scales


def test_programs_without_images_stay_as_they_are() -> None:
    closed, _ = _traced(lambda x, w, v: jnp.swapaxes(x, 1, 2) + 1, X, W, V)
    assert channels_last(closed) is closed


def test_kernels_that_are_stored_otherwise() -> None:
    def network(x: Array, w: Array, v: Array) -> tuple[Array, Array]:
        return jax.jit(_convolved)(x, w), v.sum()

    closed, want = _traced(network, X, W, V)
    assert kernels(closed) == {1: (2, 3, 1, 0)}
    got = jaxpr_as_fun(channels_last(closed, kernels(closed)))(X, W.transpose(2, 3, 1, 0), V)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-4)
    twice, _ = _traced(lambda x, w, v: (_convolved(x, w), w + 1), X, W, V)
    assert kernels(twice) == {}
    first, _ = _traced(lambda w, x, v: (_convolved(x, w), w), W, X, V)
    assert kernels(first) == {}
    given_back, _ = _traced(lambda x, w, v: (_convolved(x, w), w), X, W, V)
    assert kernels(given_back) == {}


def test_a_training_step_is_pytorchs() -> None:
    def net() -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        layers += [nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Hardswish(), nn.Conv2d(8, 16, 1)]
        layers += [nn.GroupNorm(4, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)]
        return nn.Sequential(*layers).double()

    x, y = torch.randn(4, 3, 20, 20, dtype=torch.float64), torch.randint(5, (4,))
    found = []
    for device in ("cpu", "jax"):
        model = net().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = nn.functional.cross_entropy(model(x), y)  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            optimizer.zero_grad()  # noqa: B023
            return loss

        run = step if device == "cpu" else calque.jit(step)
        losses = [run(x.to(device), y.to(device)).item() for _ in range(3)]
        found.append((losses, [one.cpu() for one in model.state_dict().values()]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)
