"""One operator at a time: a call on the jax device against the same jax.numpy call.

    python -m benchmarks.eager [--quick]

Calls are dispatched in a row, and the last result of each kind is waited for. XLA's worker may have
a core of its own: on a single one, whoever dispatches more slowly than the worker computes pays
for a switch of threads at every call, which would measure the scheduler.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import torch

import calque
from benchmarks import common

CALLS = 200
OPERATORS: dict[str, tuple[Callable, Callable]] = {
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "mul": (lambda x, y: x * y, lambda x, y: x * y),
    "mul by a number": (lambda x, y: x * 2.0, lambda x, y: x * 2.0),
    "exp": (lambda x, y: x.exp(), lambda x, y: jnp.exp(x)),
    "relu": (lambda x, y: torch.relu(x), lambda x, y: jax.nn.relu(x)),
    "matmul": (lambda x, y: x @ y, lambda x, y: x @ y),
    "sum": (lambda x, y: x.sum(), lambda x, y: x.sum()),
    "mean over a dim": (lambda x, y: x.mean(1), lambda x, y: x.mean(1)),
    "softmax": (lambda x, y: x.softmax(-1), lambda x, y: jax.nn.softmax(x, -1)),
    "where": (
        lambda x, y: torch.where(x > 0, x, y),
        lambda x, y: jnp.where(x > 0, x, y),
    ),
    "transpose": (lambda x, y: x.t(), lambda x, y: x.T),
}


WRITES: dict[str, tuple[Callable, Callable]] = {
    "x.add_(y)": (lambda x, y: x.add_(y), lambda x, y: x + y),
    "x.mul_(1.0)": (lambda x, y: x.mul_(1.0), lambda x, y: x * 1.0),
    "x.fill_(1.0)": (lambda x, y: x.fill_(1.0), lambda x, y: x * 1.0),
    "torch.add(x, y, out=x)": (lambda x, y: torch.add(x, y, out=x), lambda x, y: x + y),
    "torch.exp(y, out=x)": (lambda x, y: torch.exp(y, out=x), lambda x, y: y.exp()),
    "x[1].add_(1.0)": (lambda x, y: x[1].add_(1.0), lambda x, y: x[1] + 1.0),
    "x.t()": (lambda x, y: x.t(), lambda x, y: x + y),
    "x[1]": (lambda x, y: x[1], lambda x, y: x + y),
}
"""In-place, `out=` and view calls, and the functional call that each is measured against."""


def repeat(call: Callable[[], object], wait: Callable[[object], object]) -> Callable[[], None]:
    """A function that makes `CALLS` calls and waits for the last result."""

    def run() -> None:
        result = None
        for _ in range(CALLS):
            result = call()
        wait(result)

    return run


def measure(
    ours: Callable, theirs: Callable, tensors: list[torch.Tensor], rounds: int
) -> tuple[float, float]:
    """Seconds of one call on the device, and of JAX's on copies of the same arrays."""
    arrays = [jnp.array(calque.to_jax(t)) for t in tensors]
    times = common.interleave(
        {
            "calque": repeat(lambda: ours(*tensors), _wait),
            "JAX": repeat(lambda: theirs(*arrays), jax.block_until_ready),
        },
        rounds,
        calls=1,
    )
    return times["calque"] / CALLS, times["JAX"] / CALLS


def _wait(result: object) -> None:
    """Wait for a tensor, or the first of several."""
    first = result[0] if isinstance(result, tuple) else result
    calque.to_jax(first).block_until_ready()


def main() -> None:
    rounds = 5 if common.quick(__doc__) else 31
    rows = []
    with torch.no_grad():
        for name in OPERATORS:
            row = [name]
            for size in (8, 256):
                tensors = [torch.randn(size, size, device="jax") for _ in range(2)]
                ours, theirs = measure(*OPERATORS[name], tensors, rounds)
                row += [
                    common.microseconds(ours),
                    common.microseconds(theirs),
                    f"{ours / theirs:.2f}",
                ]
            rows.append(row)
    header = [
        "operator",
        *(f"{c}{s}" for s in (" 8x8", " 256x256") for c in ("calque, µs", "jnp, µs", "ratio")),
    ]
    common.table("Eager calls", header, rows)
    common.table("In-place, out= and view calls, 8x8", [*_WRITES_HEADER], _writes(rounds))


_WRITES_HEADER = ("call", "calque, µs", "the functional call, µs", "ratio")


def _writes(rounds: int) -> list[list[str]]:
    rows = []
    for name, (write, functional) in WRITES.items():
        x, y = (torch.zeros(8, 8, device="jax") for _ in range(2))
        calls = {"write": partial(write, x, y), "functional": partial(functional, x, y)}
        runs = {which: repeat(call, _wait) for which, call in calls.items()}
        times = common.interleave(runs, rounds, calls=1)
        ratio = times["write"] / times["functional"]
        cells = [common.microseconds(times[which] / CALLS) for which in calls]
        rows.append([name, *cells, f"{ratio:.2f}"])
    return rows


if __name__ == "__main__":
    main()
