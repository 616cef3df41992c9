"""Memory of a jitted training step, against hand-written JAX.

    python -m benchmarks.memory [--quick]

`program` is XLA's own account: arguments + outputs + temporaries - donated. `live` is what the
arrays hold between two steps.
"""

from benchmarks import one_core  # noqa: F401  (first)

# isort: split
from benchmarks import common, handwritten

# isort: split
import gc

import jax

import calque
from benchmarks.models import CASES, OPTIMIZERS, Case, build, make_step

MIB = 1 << 20


def live_bytes() -> int:
    """The bytes of all arrays that are alive."""
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def ours(case: Case, optimizer: str) -> tuple[int, int]:
    """Bytes of calque's program, and of the arrays that stay."""
    before = live_bytes()
    model, batch = build(case, "jax")
    step = calque.jit(make_step(model, OPTIMIZERS[optimizer](model.parameters())))
    for _ in range(3):
        loss = step(*batch).item()
    assert loss == loss
    live = live_bytes() - before
    return common.program_bytes(step.lower(*batch).compile()), live


def theirs(case: Case, optimizer: str) -> tuple[int, int]:
    """The same of hand-written JAX."""
    before = live_bytes()
    model, batch = build(case)
    trainer = handwritten.Trainer(handwritten.TWINS[case.twin], model, optimizer)
    arrays = [handwritten.array(t) for t in batch]
    for _ in range(3):
        trainer(*arrays).block_until_ready()
    live = live_bytes() - before
    return common.program_bytes(trainer.step.lower(trainer.state, *arrays).compile()), live


def main() -> None:
    cases = CASES[:2] if common.quick(__doc__) else CASES
    rows = []
    for case in cases:
        for optimizer in OPTIMIZERS:
            (program, live), (jax_program, jax_live) = (
                ours(case, optimizer),
                theirs(case, optimizer),
            )
            rows.append(
                [
                    f"{case.name}, {optimizer}",
                    *(f"{n / MIB:.2f}" for n in (program, jax_program)),
                    f"{program / jax_program:.2f}",
                    *(f"{n / MIB:.2f}" for n in (live, jax_live)),
                    f"{live / jax_live:.2f}",
                ]
            )
    header = ["step", "program, MiB", "JAX", "ratio", "live, MiB", "JAX", "ratio"]
    common.table("Memory", header, rows)


if __name__ == "__main__":
    main()
