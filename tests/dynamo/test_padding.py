"""Primitives on padded arrays: whatever the padding holds, the program's elements are right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from calque.device.memory.cell import x64
from calque.dynamo.buckets.padding import Padded, Sizes, Unpaddable, run
from calque.dynamo.buckets.padding.padded import layout_of, settled

MOST = {"b": 8, "t": 8}
SIZES = [(5, 7), (6, 6), (8, 3)]


def compiled(function, shape, dtype):
    """A function of arrays of this shape, run by way of arrays of the padded sizes.

    What they are padded with is no number, or a number that would be noticed.
    """
    b, t = jax.export.symbolic_shape("b, t", constraints=["b >= 2", "t >= 2"])
    shape = tuple({"b": b, "t": t}.get(n, n) for n in shape)
    fixed = Sizes(MOST, {})
    layout = tuple(map(layout_of, shape))
    with x64():
        closed = jax.make_jaxpr(function)(jax.ShapeDtypeStruct(shape, dtype))
    outs = [v.aval.shape for v in closed.jaxpr.outvars]
    layouts = []

    @jax.jit
    def compute(true, array):
        sizes = Sizes(MOST, true)
        found = run(sizes, closed, [Padded(array, layout)], lambda e: "")
        found = [settled(sizes, v, shape) for v, shape in zip(found, outs, strict=True)]
        layouts[:] = [v.layout for v in found]
        return [v.array for v in found]

    def call(array):
        true = {str(s): np.int64(n) for s, n in zip(shape, array.shape, strict=True) if s in (b, t)}
        room = np.full(tuple(map(fixed.padded, shape)), np.nan, dtype)
        room[tuple(map(slice, array.shape))] = array
        with x64():
            held = compute({"b": 0, "t": 0, **true}, room)
        sizes = Sizes(MOST, true)
        return [own(sizes, *pair) for pair in zip(held, layouts, strict=True)]

    return call


def own(sizes, array, layouts):
    """The elements of a padded array that are the program's."""
    parts = [axis or (n,) for axis, n in zip(layouts, array.shape, strict=True)]
    joined = [part for axis in parts for part in axis]
    cut = np.asarray(array).reshape([sizes.padded(part) for part in joined])
    cut = cut[tuple(slice(sizes.true(part)) for part in joined)]
    return cut.reshape([int(np.prod([sizes.true(part) for part in axis])) for axis in parts])


X = ("b", "t", 4)

PROGRAMS = {
    "elementwise": lambda x: jnp.exp(x) * 2 + x / (1 + x**2),
    "broadcast": lambda x: x + jnp.arange(4.0) + jnp.ones(x.shape[:1] + (1, 1)),
    "sums": lambda x: (x.sum(0), x.sum(1), x.sum(), x.mean((0, 2)), x.std(1), x.prod(0)),
    "sums of one number": lambda x: (jnp.ones(x.shape).sum((0, 1)), jnp.full(x.shape, 2.0).max(1)),
    "extremes": lambda x: (x.max(0), x.min(1), jnp.argmax(x, 0), jnp.argmin(x, 1)),
    "extremes of infinity": lambda x: jnp.argmax(jnp.full(x.shape, -jnp.inf), 1),
    "truth": lambda x: ((x > 0).all(1), (x > 0).any(0)),
    "integers": lambda x: ((x * 9).astype(int).max(1), (x * 9).astype(int) // 3, x.astype(int) % 2),
    "softmax": lambda x: (jax.nn.softmax(x, 1), jax.nn.log_softmax(x, 0)),
    "attention": lambda x: jax.nn.softmax(x @ x.swapaxes(1, 2), -1) @ x,
    "products": lambda x: (
        jnp.einsum("btc,btd->cd", x, x),
        jnp.einsum("btc,bsc->bts", x, x),
        jnp.einsum("btc,t->bc", x, jnp.ones(x.shape[1])),
        jnp.ones(x.shape[1]) @ jnp.ones(x.shape[1]),
    ),
    "join and split": lambda x: (
        x.reshape(-1, 4).sum(0),
        x.reshape(-1, 2).reshape(x.shape) * x,
        x.reshape(x.shape[0], -1),
        x.transpose(1, 0, 2).reshape(-1, 4) * 2,
        x.reshape(-1),
    ),
    "heads": lambda x: (
        x.reshape(*x.shape[:2], 2, 2).swapaxes(1, 2).reshape(-1, x.shape[1], 2).cumsum(1)
    ),
    "cumulative": lambda x: (
        jnp.cumsum(x, 0),
        jnp.cumprod(x, 1),
        lax.cummax(x, 1),
        lax.cumsum(x, 0, reverse=True),
        lax.cumlogsumexp(x, 1),
    ),
    "cumulative where joined": lambda x: jnp.cumsum(x.reshape(-1, 4), 0),
    "sort": lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1), jnp.sort(-jnp.abs(x), 1)),
    "sort of infinity and no number": lambda x: jnp.sort(
        jnp.where(x > 0, jnp.inf, jnp.where(x < -1, jnp.nan, x)), 1
    ),
    "top": lambda x: lax.top_k(x, 2),
    "slices": lambda x: (x[1:], x[:-1], x[:, 0], x[0], x[:, -1], x[-2:], x[:, 1:-1], x[:, :2]),
    "steps": lambda x: (x[::2], x[:, 1::3]),
    "reversed": lambda x: (x[::-1], jnp.flip(x, (0, 1)), x[:, ::-1].cumsum(1)),
    "joined": lambda x: (
        jnp.concatenate([x, x + 1], 0),
        jnp.concatenate([jnp.ones((x.shape[0], 1, 4)), x, x[:, 1:]], 1).cumsum(1),
        jnp.stack([x, -x], 1),
        jnp.concatenate([x, x], -1),
    ),
    "padded": lambda x: (
        jnp.pad(x, ((1, 2), (0, 0), (1, 0))),
        jnp.pad(x, ((0, 0), (2, 1), (0, 0)), constant_values=3).cumsum(1),
        lax.pad(x, np.float32(0), ((-1, 0, 0), (0, 1, 1), (0, 0, 0))),
    ),
    "gathered": lambda x: (
        x[jnp.array([1, 0, 1])],
        x[:, jnp.array([-1, 0])],
        jnp.take(jnp.arange(40.0).reshape(10, 4), jnp.abs(x[..., 0]).astype(int), 0),
        jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
        jnp.take(x, jnp.array([0, 7]), 1, mode="fill"),
    ),
    "scattered": lambda x: (
        jnp.zeros((5, 4)).at[jnp.abs(x[:, :, 0]).astype(int)].add(x),
        jnp.zeros(5).at[jnp.abs(x[:, 0, 0]).astype(int)].max(x[:, 0, 1]),
        x.at[jnp.array([0, 1])].set(5.0),
        x.at[:, -1].add(1.0),
        x.at[:, :, 1].set(0.0),
        jnp.zeros(x.shape).at[jnp.arange(x.shape[0]), 0].add(x[:, 1]),
    ),
    "windows written": lambda x: (
        lax.dynamic_update_slice_in_dim(x, x[1:] * 2, 1, 0),
        lax.dynamic_update_slice(jnp.zeros(x.shape, x.dtype), x[1:, :-2], (1, 5, 0)),
        x.at[:, 1:-1].set(x[:, 2:]),
        x.at[1:].add(x[:-1]),
    ),
    "at a traced place": lambda x: (
        lax.dynamic_slice_in_dim(x, x.shape[0] - 1, 1, 0),
        lax.dynamic_slice_in_dim(x, 100, 2, 1),
        lax.dynamic_update_slice_in_dim(x, jnp.zeros((x.shape[0], 1, 4), x.dtype), 100, 1),
    ),
    "convolution": lambda x: (
        lax.conv_general_dilated(x.swapaxes(1, 2), jnp.ones((3, 4, 3), x.dtype), (1,), [(1, 1)]),
        lax.conv_general_dilated(x.swapaxes(1, 2), jnp.ones((3, 4, 2), x.dtype), (2,), [(2, 1)]),
        lax.conv_general_dilated(x[:, :1], jnp.ones((3, 1, 2), x.dtype), (1,), [(0, 0)]),
    ),
    "gradients": lambda x: jax.grad(
        lambda x: (
            jax.nn.softmax(x, 1).std(0).sum() + x[1:, :, 0].max(1).sum() + jnp.cumsum(x, 1).var()
        )
    )(x),
    "gradient of a convolution": lambda x: jax.grad(
        lambda w: (lax.conv_general_dilated(x[:, :2], w, (1,), [(1, 1)]) ** 2).sum()
    )(jnp.ones((3, 2, 3), x.dtype)),
    "windows": lambda x: lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 1, 2), (1, 1, 2), ((0, 0), (0, 0), (0, 0))
    ),
    "systems": lambda x: (
        jnp.linalg.cholesky(jnp.eye(4) * 9 + x[:, 0, :, None] * x[:, 0, None, :]),
        jax.scipy.linalg.solve_triangular(jnp.eye(4) + jnp.zeros((x.shape[0], 1, 1)), x[:, :1].mT),
    ),
    "sizes": lambda x: (x * x.shape[0], jnp.arange(x.shape[1]) / x.shape[1], x.sum() / x.size),
    "functions": lambda x: jax.nn.relu(jax.nn.gelu(x)) + jax.nn.silu(x) + jnp.clip(x, -1, 1),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_padding_reaches_nothing(name):
    random = np.random.default_rng(0)
    call = compiled(PROGRAMS[name], X, np.float32)
    for n, m in SIZES:
        x = random.normal(size=(n, m, 4)).astype(np.float32)
        with x64():
            want = jax.tree.leaves(jax.jit(PROGRAMS[name])(x))
        for got, expected in zip(call(x), want, strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)


def test_numbers_drawn_are_those_of_the_true_size():
    def draw(x):
        return jax.random.uniform(jax.random.key(3), x.shape, x.dtype)

    x = np.zeros((5, 4), np.float32)
    with x64():
        want = jax.jit(draw)(x)
    np.testing.assert_array_equal(compiled(draw, ("b", 4), x.dtype)(x)[0], want)
    with pytest.raises(Unpaddable, match="random numbers depend"):
        compiled(draw, (4, "b"), x.dtype)(x.T)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: jnp.argmax(x.reshape(-1)), "padded in several places"),
        (lambda x: x.reshape(-1) + x.T.reshape(-1), "in different ways"),
        (lambda x: x.reshape(-1).reshape(x.shape[1], x.shape[0]), "splits|joined"),
        (lambda x: lax.top_k(x, 2), "maximum along a padded axis"),
        (lambda x: jnp.linalg.qr(x), "no rule"),
        (lambda x: lax.map(lambda row: row * 2, x), "no rule"),
    ],
)
def test_what_cannot_be_padded_is_refused(function, reason):
    with pytest.raises(Unpaddable, match=reason):
        compiled(function, ("b", "t"), np.float32)(np.ones((3, 5), np.float32))
