"""Tracing and lowering a training step to StableHLO, against hand-written JAX.

    python -m benchmarks.trace_time [--quick]

XLA's compilation comes after this and is the same work for both. In CPU time. Of deep models also
against JAX whose layer is a jitted function of its own.
"""

from benchmarks import one_core  # noqa: F401  (first)

# isort: split
from benchmarks import common, handwritten

# isort: split
import time
from collections.abc import Callable

import jax

import calque
from benchmarks.models import DEEP, LARGE, OPTIMIZERS, Case, build, make_step


def lowerings(case: Case, optimizer: str) -> dict[str, Callable[[], object]]:
    """Functions that trace and lower the step anew at every call."""
    model, batch = build(case, "jax")
    step = make_step(model, OPTIMIZERS[optimizer](model.parameters()))
    cpu_model, cpu_batch = build(case)
    state = handwritten.initial_state(cpu_model, optimizer)
    arrays = [handwritten.array(t) for t in cpu_batch]

    def theirs(twin: str) -> Callable[[], object]:
        def lower() -> object:
            # A new function object each time, because JAX caches traces by function.
            fresh = handwritten.make_step(handwritten.TWINS[twin], optimizer)
            return jax.jit(fresh, donate_argnums=0).lower(state, *arrays)

        return lower

    found = {"calque": lambda: calque.jit(step).lower(*batch), "JAX": theirs(case.twin)}
    by_layer = f"{case.twin}_by_layer"
    if by_layer in handwritten.TWINS:
        found["JAX by layer"] = theirs(by_layer)
    return found


def main() -> None:
    quick = common.quick(__doc__)
    rows = []
    cases = LARGE if quick else dict.fromkeys((*LARGE, *DEEP))
    for case in cases:
        for optimizer in OPTIMIZERS:
            found = lowerings(case, optimizer)
            times = common.interleave(found, 1 if quick else 5, 1, time.process_time)
            ours = times.pop("calque")
            row = [f"{case.name}, {optimizer}", f"{ours:.2f}"]
            for name in ("JAX", "JAX by layer"):
                known = times.get(name)
                row += ["", ""] if known is None else [f"{known:.2f}", f"{ours / known:.2f}"]
            rows.append(row)
            print(" ".join(row), flush=True)
    header = ["step", "calque, s", "JAX, s", "ratio", "JAX by layer, s", "ratio"]
    common.table("Trace and lower", header, rows)


if __name__ == "__main__":
    main()
