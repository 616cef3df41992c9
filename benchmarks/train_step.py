"""A training step: calque.jit against hand-written JAX, torch eager and torch.compile.

    python -m benchmarks.train_step [--quick]

All four start from equal weights on one batch; their first losses must agree before anything is
timed. Dropout is off: its random streams differ. A call ends when its loss is a Python float.
"""

from benchmarks import one_core  # noqa: F401  (first)

# isort: split
from benchmarks import common, handwritten
from benchmarks.models import CASES, OPTIMIZERS, Case, build, make_step

# isort: split
from collections.abc import Callable

import torch

import calque

AGREE_STEPS = 4
TOLERANCE = 2e-3


def candidates(case: Case, optimizer: str, inductor: bool) -> dict[str, Callable[[], float]]:
    """The step of each way to train, as a function that returns the loss."""

    def torch_step(device: str, wrap: Callable) -> Callable[[], float]:
        model, (x, y) = build(case, device)
        step = wrap(make_step(model, OPTIMIZERS[optimizer](model.parameters())))
        return lambda: step(x, y).item()

    def compiled(device: str) -> Callable[[], float]:
        model, (x, y) = build(case, device)
        step = make_step(torch.compile(model), OPTIMIZERS[optimizer](model.parameters()))
        return lambda: step(x, y).item()

    model, (x, y) = build(case)
    trainer = handwritten.Trainer(handwritten.TWINS[case.twin], model, optimizer)
    inputs = handwritten.array(x), handwritten.array(y)
    result = {
        "calque.jit": torch_step("jax", calque.jit),
        "JAX": lambda: float(trainer(*inputs)),
        "torch": torch_step("cpu", lambda step: step),
    }
    if inductor:
        result["torch.compile"] = compiled("cpu")
    return result


def agree(steps: dict[str, Callable[[], float]]) -> float:
    """The largest difference of the first losses, which is checked."""
    losses = {name: [step() for _ in range(AGREE_STEPS)] for name, step in steps.items()}
    reference = losses["torch"]
    worst = max(abs(a - b) for run in losses.values() for a, b in zip(run, reference, strict=True))
    if worst > TOLERANCE:
        raise AssertionError(f"the losses differ: {losses}")
    return worst


def main() -> None:
    quick = common.quick(__doc__)
    rows = []
    for case in CASES:
        for optimizer in OPTIMIZERS:
            steps = candidates(case, optimizer, inductor=not quick)
            worst = agree(steps)
            times = common.interleave(steps, *((3, 3) if quick else (15, 10)))
            ours = times["calque.jit"]
            rows.append(
                [
                    f"{case.name}, {optimizer}",
                    *(common.milliseconds(times[n]) if n in times else "-" for n in COLUMNS),
                    *(f"{ours / times[n]:.2f}" if n in times else "-" for n in COLUMNS[1:]),
                    f"{worst:.0e}",
                ]
            )
            print(f"{case.name}, {optimizer}: {ours / times['JAX']:.2f} of JAX", flush=True)
    header = ["step", *(f"{n}, ms" for n in COLUMNS), *(f"/ {n}" for n in COLUMNS[1:]), "loss diff"]
    common.table("Training step (lower is better; the ratios are calque.jit's)", header, rows)


COLUMNS = ("calque.jit", "JAX", "torch", "torch.compile")

if __name__ == "__main__":
    main()
