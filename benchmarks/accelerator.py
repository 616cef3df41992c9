"""Training steps on an accelerator: calque.jit against hand-written JAX, inductor and torch eager.

    python -m benchmarks.accelerator [--quick]

ResNet-50, ViT-B/16, GPT-2 (124M) and BERT-base with AdamW or SGD, in float32 (whose products may
use TF32, on every side) and under autocast to bfloat16. Every way to train runs in its own process.
All compile at the same time, and then each is timed alone. A way to train that fails has no figure.

Memory is the peak of PyTorch's allocator, and XLA's own account of the step: arguments + outputs
+ temporaries - donated.
"""

import argparse
import contextlib
import fcntl
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

OURS, JAX, INDUCTOR, TORCH = WAYS = ("calque.jit", "JAX", "inductor", "torch")
CASES = ("ResNet-50", "ViT-B/16", "GPT-2", "BERT-base")
DTYPES = ("float32", "bfloat16")
AGREE = {"float32": 2e-2, "bfloat16": 6e-2}  # relative difference of losses after four steps
ROUNDS, CALLS = 7, 5
GIB = 1 << 30

Step = Callable[[], Any]


@contextlib.contextmanager
def _holding(path: str, how: int) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, how)
        yield


@contextlib.contextmanager
def compiling(locks: str) -> Iterator[None]:
    """Waits until no process is being timed, or is waiting to be."""
    with _holding(f"{locks}/gate", fcntl.LOCK_EX):
        held = contextlib.ExitStack()
        held.enter_context(_holding(f"{locks}/device", fcntl.LOCK_SH))
    with held:
        yield


@contextlib.contextmanager
def alone(locks: str) -> Iterator[None]:
    """Waits until no other process uses the device, and keeps it."""
    with (
        _holding(f"{locks}/gate", fcntl.LOCK_EX),
        _holding(f"{locks}/device", fcntl.LOCK_EX),
    ):
        yield


def of_torch(case: str, dtype: str, way: str) -> tuple[Step, Callable[[], int]]:
    """The step of PyTorch, eager or compiled, and a function that returns its memory."""
    import torch

    from benchmarks.accelerator_models import build, loss_with

    device = "jax" if way == OURS else "cuda"
    if way == OURS:
        import calque
    torch.set_float32_matmul_precision("high")
    model, batch, make_optimizer = build(case, device)
    optimizer = make_optimizer(model.parameters())
    loss_of = loss_with(model, device, torch.bfloat16 if dtype == "bfloat16" else None)
    update = optimizer.step
    if way == INDUCTOR:
        loss_of, update = torch.compile(loss_of), torch.compile(update)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(x, y)
        loss.backward()
        update()
        optimizer.zero_grad()
        return loss.detach()

    if way == OURS:
        from benchmarks.common import program_bytes

        jitted = calque.jit(step)
        return lambda: jitted(*batch), lambda: program_bytes(jitted.lower(*batch).compile())
    return lambda: step(*batch), torch.cuda.max_memory_allocated


def of_jax(case: str, dtype: str) -> tuple[Step, Callable[[], int]]:
    """The same of hand-written JAX."""
    import jax.numpy as jnp

    from benchmarks import accelerator_twins, handwritten
    from benchmarks.accelerator_models import build
    from benchmarks.common import program_bytes

    model, batch, _ = build(case, "cpu")
    trainer = accelerator_twins.trainer(
        case, model, jnp.bfloat16 if dtype == "bfloat16" else jnp.float32
    )
    arrays = [handwritten.array(t) for t in batch]
    program = trainer.step.lower(trainer.state, *arrays)
    return lambda: trainer(*arrays), lambda: program_bytes(program.compile())


def measure(case: str, dtype: str, way: str, locks: str) -> dict[str, Any]:
    """Compiles and times one way to train; called in a process of its own."""
    with compiling(locks):
        start = time.perf_counter()
        step, memory = of_jax(case, dtype) if way == JAX else of_torch(case, dtype, way)
        losses = [float(step()) for _ in range(4)]
        first = time.perf_counter() - start
    with alone(locks):
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            for _ in range(CALLS):
                loss = step()
            float(loss)
            times.append((time.perf_counter() - start) / CALLS)
    with compiling(locks):
        return {"losses": losses, "times": times, "memory": memory(), "first": first}


def run(case: str, dtype: str, way: str, locks: str) -> dict[str, Any]:
    """Runs `measure` in a new process; returns its report, or the error."""
    command = [sys.executable, "-m", "benchmarks.accelerator", "--one", case, dtype, way, locks]
    env = {
        **os.environ,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_COMPILATION_CACHE_DIR": f"{locks}/jax",  # `program_bytes` compiles again
        "CALQUE_CACHE_DIR": f"{locks}/calque",
    }
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = json.loads(lines[-1]) if lines else {"error": done.stderr.strip()[-1500:]}
    found.update(case=case, dtype=dtype, way=way)
    said = found.get("error") or f"{1e3 * min(found['times']):.1f} ms, {found['losses']}"
    print(f"{case}, {dtype}, {way}: {said}", flush=True)
    return found


def check(found: dict[str, dict[str, Any]], dtype: str) -> None:
    """Raises AssertionError if losses differ."""
    losses = {way: one["losses"] for way, one in found.items() if "losses" in one}
    for a, b in itertools.combinations(losses.values(), 2):
        if any(abs(x - y) > AGREE[dtype] * abs(y) for x, y in zip(a, b, strict=True)):
            raise AssertionError(f"the losses differ: {losses}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="GPT-2 in bfloat16 only")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--at-once", type=int, default=4, help="processes that compile at once")
    parser.add_argument("--cases", nargs="*", default=CASES)
    parser.add_argument("--dtypes", nargs="*", default=DTYPES)
    parser.add_argument("--ways", nargs="*", default=WAYS)
    given = parser.parse_args()
    if given.one:
        case, dtype, way, locks = given.one
        print(json.dumps(measure(case, dtype, way, locks)))
        return
    from benchmarks import common

    groups = list(itertools.product(given.cases, given.dtypes))
    if given.quick:
        groups = [("GPT-2", "bfloat16")]
    with tempfile.TemporaryDirectory() as locks, ThreadPoolExecutor(given.at_once) as pool:
        for name in ("gate", "device"):
            Path(locks, name).touch()
        asked = [(case, dtype, way) for case, dtype in groups for way in given.ways]
        reports = list(pool.map(lambda a: run(a[0], a[1], a[2], locks), asked))
    rows = []
    for case, dtype in groups:
        found = {r["way"]: r for r in reports if (r["case"], r["dtype"]) == (case, dtype)}
        check(found, dtype)
        times = {way: sorted(r["times"])[ROUNDS // 2] for way, r in found.items() if "times" in r}
        memory = {way: r["memory"] for way, r in found.items() if "memory" in r}
        rows.append([f"{case}, {dtype}", *cells(times, 1e3, 1), *cells(memory, 1 / GIB, 2)])
    header = ["step", *(f"{w}, ms" for w in WAYS), *(f"/ {w}" for w in WAYS[1:])]
    header += [*(f"{w}, GiB" for w in WAYS), *(f"/ {w}" for w in WAYS[1:])]
    common.table("Training step on an accelerator (the ratios are calque.jit's)", header, rows)


def cells(found: dict[str, float], factor: float, digits: int) -> list[str]:
    """The figures of each way to train, then calque's ratio to the others."""
    figures = [f"{factor * found[way]:.{digits}f}" if way in found else "-" for way in WAYS]
    both = (OURS in found and way in found for way in WAYS[1:])
    ratios = (
        f"{found[OURS] / found[way]:.2f}" if has else "-"
        for way, has in zip(WAYS[1:], both, strict=True)
    )
    return [*figures, *ratios]


if __name__ == "__main__":
    main()
