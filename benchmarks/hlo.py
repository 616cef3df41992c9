"""What XLA makes of one operator under jit, against the same mathematics in JAX.

    python -m benchmarks.hlo

Counts the instructions of the optimized programs, and of those the expensive kinds; no times.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from jax import Array, lax

import calque
from benchmarks import common

EXPENSIVE = (
    "convolution",
    "custom-call",
    "dot",
    "fusion",
    "gather",
    "reduce",
    "reduce-window",
    "scatter",
    "sort",
    "transpose",
    "while",
)
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = .*? ([a-z][\w-]*)\(", re.MULTILINE)
_FREE = frozenset(("parameter", "tuple", "get-tuple-element", "constant", "bitcast"))


class Case(NamedTuple):
    """One operator: in PyTorch, in JAX, and its arguments (integers are bounds of indices)."""

    torch: Callable[..., torch.Tensor]
    jax: Callable[..., Array]
    shapes: list[tuple[int, ...]]
    indices: list[tuple[tuple[int, ...], int]] = []


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    """Layer normalization over the last axis."""
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * weight + bias


def cross_entropy(x: Array, labels: Array) -> Array:
    """The mean negative log-likelihood of the labels."""
    return -jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1).mean()


def attention(q: Array, k: Array, v: Array) -> Array:
    """Causal attention of (batch, heads, length, features)."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v)


def convolution(x: Array, w: Array) -> Array:
    """A 3x3 convolution of NCHW images."""
    layout = ("NCHW", "OIHW", "NCHW")
    return lax.conv_general_dilated(x, w, (1, 1), ((1, 1), (1, 1)), dimension_numbers=layout)


CASES = {
    "convolution": Case(
        lambda x, w: F.conv2d(x, w, padding=1), convolution, [(2, 8, 16, 16), (16, 8, 3, 3)]
    ),
    "attention": Case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        attention,
        [(2, 4, 32, 16)] * 3,
    ),
    "layer_norm": Case(
        lambda x, w, b: F.layer_norm(x, (64,), w, b), layer_norm, [(32, 64), (64,), (64,)]
    ),
    "cross_entropy": Case(F.cross_entropy, cross_entropy, [(32, 10)], [((32,), 10)]),
    "embedding": Case(
        lambda table, i: F.embedding(i, table),
        lambda table, i: table[i],
        [(100, 16)],
        [((32,), 100)],
    ),
    "index_put": Case(
        lambda x, v, i: x.index_put((i,), v, accumulate=True),
        lambda x, v, i: x.at[i].add(v),
        [(100, 16), (32, 16)],
        [((32,), 100)],
    ),
    "cumsum": Case(lambda x: x.cumsum(1), lambda x: jnp.cumsum(x, 1), [(32, 64)]),
    "sort": Case(lambda x: x.sort(-1)[0], lambda x: jnp.sort(x, -1), [(32, 64)]),
    "topk": Case(lambda x: x.topk(5)[0], lambda x: lax.top_k(x, 5)[0], [(32, 64)]),
    "softmax": Case(lambda x: x.softmax(-1), lambda x: jax.nn.softmax(x, -1), [(32, 64)]),
    "batch_norm": Case(
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: (
            (x - x.mean((0, 2, 3), keepdims=True))
            * lax.rsqrt(x.var((0, 2, 3), keepdims=True) + 1e-5)
        ),
        [(4, 8, 6, 6)],
    ),
    "max_pool": Case(
        lambda x: F.max_pool2d(x, 2),
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"),
        [(2, 4, 16, 16)],
    ),
    "matmul": Case(lambda x, y: x @ y, lambda x, y: x @ y, [(4, 16, 32), (32, 8)]),
}


def instructions(text: str) -> Counter[str]:
    """How many instructions of each kind an HLO text has, less what costs nothing."""
    return Counter(kind for kind in _INSTRUCTION.findall(text) if kind not in _FREE)


def programs(case: Case, gradient: bool) -> tuple[Counter[str], Counter[str]]:
    """The instructions of the program from PyTorch, and of that from JAX."""
    torch.manual_seed(0)
    floats = [torch.randn(shape, device="jax") for shape in case.shapes]
    whole = [torch.randint(bound, shape, device="jax") for shape, bound in case.indices]

    def ours(*tensors: torch.Tensor) -> object:
        if not gradient:
            return case.torch(*tensors)
        leaves = [t.detach().requires_grad_() for t in tensors[: len(floats)]]
        case.torch(*leaves, *tensors[len(floats) :]).square().sum().backward()
        return [leaf.grad for leaf in leaves]

    def scalar(*arrays: Array) -> Array:
        return jnp.square(case.jax(*arrays)).sum()

    theirs = jax.grad(scalar, tuple(range(len(floats)))) if gradient else case.jax
    arrays = [calque.to_jax(t) for t in (*floats, *whole)]
    lowered = calque.jit(ours).lower(*floats, *whole)
    return tuple(
        instructions(one.compile().as_text()) for one in (lowered, jax.jit(theirs).lower(*arrays))
    )


def main() -> None:
    rows = []
    for name, case in CASES.items():
        for gradient in (False, True):
            ours, theirs = programs(case, gradient)
            kinds = [
                f"{kind} {ours[kind]}/{theirs[kind]}"
                for kind in EXPENSIVE
                if ours[kind] != theirs[kind]
            ]
            rows.append(
                [
                    f"{name}{', gradient' if gradient else ''}",
                    str(ours.total()),
                    str(theirs.total()),
                    "; ".join(kinds) or "the same",
                ]
            )
    common.table(
        "Instructions of optimized HLO",
        ["operator", "calque", "JAX", "expensive kinds that differ"],
        rows,
    )


if __name__ == "__main__":
    main()
