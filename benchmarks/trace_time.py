"""Tracing and lowering a training step to StableHLO, against hand-written JAX.

    python -m benchmarks.trace_time [--quick]

XLA's compilation comes after this and is the same work for both.
"""

from benchmarks import one_core  # noqa: F401  (first)

# isort: split
from benchmarks import common, handwritten

# isort: split
from collections.abc import Callable

import jax

import calque
from benchmarks.models import LARGE, OPTIMIZERS, Case, build, make_step


def lowerings(case: Case, optimizer: str) -> dict[str, Callable[[], object]]:
    """Functions that trace and lower the step anew at every call."""
    model, batch = build(case, "jax")
    step = make_step(model, OPTIMIZERS[optimizer](model.parameters()))
    cpu_model, cpu_batch = build(case)
    state = handwritten.initial_state(cpu_model, optimizer)
    arrays = [handwritten.array(t) for t in cpu_batch]

    def theirs() -> object:
        # A new function object each time: JAX remembers the trace of a known one.
        fresh = handwritten.make_step(handwritten.TWINS[case.twin], optimizer)
        return jax.jit(fresh, donate_argnums=0).lower(state, *arrays)

    return {
        "calque": lambda: calque.jit(step).lower(*batch),
        "JAX": theirs,
    }


def main() -> None:
    quick = common.quick(__doc__)
    rows = []
    for case in LARGE:
        for optimizer in OPTIMIZERS:
            times = common.interleave(lowerings(case, optimizer), 1 if quick else 5, calls=1)
            ours, theirs = times["calque"], times["JAX"]
            rows.append(
                [
                    f"{case.name}, {optimizer}",
                    f"{ours:.2f}",
                    f"{theirs:.2f}",
                    f"{ours / theirs:.2f}",
                ]
            )
            print(" ".join(rows[-1]), flush=True)
    common.table("Trace and lower", ["step", "calque, s", "JAX, s", "ratio"], rows)


if __name__ == "__main__":
    main()
