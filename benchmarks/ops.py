"""The sixty operators that models use most, one at a time: against the same call in JAX.

    python -m benchmarks.ops [--quick]

As `benchmarks.eager`, which see; arrays are 64x64 unless an operator needs others.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from jax import lax

from benchmarks import common
from benchmarks.eager import measure
from benchmarks.hlo import CASES


class Op(NamedTuple):
    """One operator: in PyTorch, in JAX, and how many 64x64 arrays it takes."""

    torch: Callable
    jax: Callable
    count: int = 1


SQUARE = (64, 64)
OPS = {
    "add": Op(torch.add, jnp.add, 2),
    "sub": Op(torch.sub, jnp.subtract, 2),
    "mul": Op(torch.mul, jnp.multiply, 2),
    "div": Op(torch.div, jnp.divide, 2),
    "add a number": Op(lambda x: x + 1, lambda x: x + 1),
    "mul by a number": Op(lambda x: x * 2.5, lambda x: x * 2.5),
    "power of a number": Op(lambda x: x**2, lambda x: x**2),
    "neg": Op(torch.neg, jnp.negative),
    "abs": Op(torch.abs, jnp.abs),
    "exp": Op(torch.exp, jnp.exp),
    "log": Op(torch.log, jnp.log),
    "sqrt": Op(torch.sqrt, jnp.sqrt),
    "rsqrt": Op(torch.rsqrt, lax.rsqrt),
    "sin": Op(torch.sin, jnp.sin),
    "cos": Op(torch.cos, jnp.cos),
    "tanh": Op(torch.tanh, jnp.tanh),
    "sigmoid": Op(torch.sigmoid, jax.nn.sigmoid),
    "erf": Op(torch.erf, lax.erf),
    "relu": Op(torch.relu, jax.nn.relu),
    "gelu": Op(F.gelu, lambda x: jax.nn.gelu(x, approximate=False)),
    "silu": Op(F.silu, jax.nn.silu),
    "leaky_relu": Op(F.leaky_relu, jax.nn.leaky_relu),
    "softplus": Op(F.softplus, jax.nn.softplus),
    "clamp": Op(lambda x: x.clamp(-1, 1), lambda x: jnp.clip(x, -1, 1)),
    "maximum": Op(torch.maximum, jnp.maximum, 2),
    "greater": Op(torch.gt, jnp.greater, 2),
    "equal elements": Op(torch.eq, jnp.equal, 2),
    "where": Op(lambda x, y: torch.where(x > 0, x, y), lambda x, y: jnp.where(x > 0, x, y), 2),
    "masked_fill": Op(
        lambda x: x.masked_fill(x > 0, 0.0), lambda x: jnp.where(x > 0, jnp.float32(0.0), x)
    ),
    "sum": Op(torch.sum, jnp.sum),
    "sum over a dim": Op(lambda x: x.sum(1), lambda x: x.sum(1)),
    "mean over a dim": Op(lambda x: x.mean(-1), lambda x: x.mean(-1)),
    "var": Op(lambda x: x.var(1), lambda x: x.var(1, ddof=1)),
    "amax": Op(lambda x: x.amax(1), lambda x: x.max(1)),
    "max over a dim": Op(lambda x: x.max(1), lambda x: (x.max(1), x.argmax(1))),
    "argmax": Op(lambda x: x.argmax(1), lambda x: x.argmax(1)),
    "norm": Op(lambda x: torch.linalg.vector_norm(x), lambda x: jnp.linalg.norm(x)),
    "cumsum": Op(lambda x: x.cumsum(1), lambda x: jnp.cumsum(x, 1)),
    "sort": Op(lambda x: x.sort(1), lambda x: (jnp.sort(x, 1), jnp.argsort(x, 1))),
    "topk": Op(lambda x: x.topk(5), lambda x: lax.top_k(x, 5)),
    "softmax": Op(lambda x: x.softmax(-1), lambda x: jax.nn.softmax(x, -1)),
    "log_softmax": Op(lambda x: x.log_softmax(-1), lambda x: jax.nn.log_softmax(x, -1)),
    "matmul": Op(torch.mm, jnp.matmul, 2),
    "bmm": Op(lambda x, y: torch.bmm(x[None], y[None]), lambda x, y: x[None] @ y[None], 2),
    "addmm": Op(lambda b, x, y: torch.addmm(b, x, y), lambda b, x, y: b + x @ y, 3),
    "linear": Op(lambda x, w: F.linear(x, w), lambda x, w: x @ w.T, 2),
    "einsum": Op(
        lambda x, y: torch.einsum("ij,kj->ik", x, y), lambda x, y: jnp.einsum("ij,kj->ik", x, y), 2
    ),
    "transpose": Op(lambda x: x.t(), lambda x: x.T),
    "reshape": Op(lambda x: x.reshape(16, 256), lambda x: x.reshape(16, 256)),
    "permute and copy": Op(lambda x: x.t().contiguous(), lambda x: jnp.copy(x.T)),
    "slice": Op(lambda x: x[:, 8:32] + 1, lambda x: x[:, 8:32] + 1),
    "cat": Op(lambda x, y: torch.cat([x, y], 1), lambda x, y: jnp.concatenate([x, y], 1), 2),
    "stack": Op(lambda x, y: torch.stack([x, y]), lambda x, y: jnp.stack([x, y]), 2),
    "split": Op(lambda x: x.split(32, 1)[1] * 2, lambda x: jnp.split(x, 2, 1)[1] * 2),
    "pad": Op(lambda x: F.pad(x, (1, 1)), lambda x: jnp.pad(x, ((0, 0), (1, 1)))),
    "tril": Op(torch.tril, jnp.tril),
    "cast": Op(lambda x: x.to(torch.bfloat16), lambda x: x.astype(jnp.bfloat16)),
}
HEAVY = ("convolution", "attention", "layer_norm", "cross_entropy", "embedding", "index_put")


def arguments(shapes: list[tuple[int, ...]], indices: list[tuple[tuple[int, ...], int]]) -> list:
    """Positive floats (so that `log` is defined), and indices."""
    floats = [torch.rand(shape, device="jax") + 0.1 for shape in shapes]
    return floats + [torch.randint(bound, shape, device="jax") for shape, bound in indices]


def main() -> None:
    rounds = 3 if common.quick(__doc__) else 15
    cases = {name: (op.torch, op.jax, [SQUARE] * op.count, []) for name, op in OPS.items()}
    cases |= {
        name: (c.torch, c.jax, c.shapes, c.indices) for name, c in CASES.items() if name in HEAVY
    }
    rows, above = [], []
    with torch.no_grad():
        for name, (ours, theirs, shapes, indices) in cases.items():
            mine, other = measure(ours, theirs, arguments(shapes, indices), rounds)
            above += [name] if mine / other > 2 else []
            rows.append(
                [name, common.microseconds(mine), common.microseconds(other), f"{mine / other:.2f}"]
            )
    common.table("Eager calls", ["operator", "calque, µs", "JAX, µs", "ratio"], rows)
    print(f"\n{len(rows)} operators; above 2.0: {', '.join(above) or 'none'}")


if __name__ == "__main__":
    main()
