"""What a call of a jitted function costs the host: 300 state tensors, next to no arithmetic.

    python -m benchmarks.host_overhead [--quick]

Against a bare jax.jit call that donates and returns the same 300 arrays.
"""

from benchmarks import one_core  # noqa: F401  (first)

# isort: split
from benchmarks import common

# isort: split
import jax
import jax.numpy as jnp
import torch

import calque

COUNT = 300


def main() -> None:
    quick = common.quick(__doc__)
    state = [torch.zeros(8, device="jax") for _ in range(COUNT)]
    increment = torch.ones(8, device="jax")
    array = jnp.ones(8)
    held = [[jnp.zeros(8) for _ in range(COUNT)]]

    @calque.jit
    def ours(x: torch.Tensor) -> torch.Tensor:
        for tensor in state:
            tensor.add_(x)
        return x + 1

    bare = jax.jit(lambda arrays, x: ([a + x for a in arrays], x + 1), donate_argnums=0)

    def call_ours() -> None:
        calque.to_jax(ours(increment)).block_until_ready()

    def call_bare() -> None:
        held[0], result = bare(held[0], array)
        result.block_until_ready()

    candidates = {"calque.jit": call_ours, "jax.jit": call_bare}
    times = common.interleave(candidates, *((5, 20) if quick else (31, 50)))
    ratio = times["calque.jit"] / times["jax.jit"]
    row = [f"{COUNT} state tensors", *(common.microseconds(times[n]) for n in candidates)]
    header = ["call", *(f"{n}, µs" for n in candidates), "ratio"]
    common.table("Host overhead of a call", header, [[*row, f"{ratio:.2f}"]])


if __name__ == "__main__":
    main()
