"""torch.compile with our backend, against torch eager, inductor and hand-written JAX.

    python -m benchmarks.compile [--quick]

Per call of a small layer, what the host pays; forward and training step of four models; tokens a
second of a GPT that decodes into a static cache; the time to the first result. The losses and the
tokens must agree before anything is timed. A call of a model ends when its result is there. The
process has one core, so everything computes in the thread that calls, JAX's programs included.
"""

from benchmarks import one_core  # noqa: F401  (first)

# isort: split
from benchmarks import common, decoding, handwritten
from benchmarks.models import COMPILED, OPTIMIZERS, Case, build
from benchmarks.train_step import agree

# isort: split
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.nn import functional as F

import calque

Candidates = dict[str, Callable[[], object]]
CALLS = 200  # consecutive calls
OURS, OURS_CPU, JAX, TORCH, INDUCTOR = "calque", "calque, CPU", "JAX", "torch", "inductor"
COLUMNS = (OURS, OURS_CPU, JAX, TORCH, INDUCTOR)
TOLERANCE = 1e-3
RUNS = {OURS: ("jax", "calque"), OURS_CPU: ("cpu", "calque"), INDUCTOR: ("cpu", "inductor")}
"""The device and the backend of each way to compile."""


def wait(tensor: Tensor) -> Tensor:
    """The tensor, computed."""
    if tensor.device.type == "jax":
        calque.to_jax(tensor).block_until_ready()
    return tensor


def overhead() -> Candidates:
    """Calls of Linear(8, 8) in a row, which are next to no arithmetic; the last is waited for."""
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 8), torch.randn(8, 8)
    weight, bias = (handwritten.array(p) for p in layer.parameters())
    bare, array = jax.jit(lambda x, w, b: x @ w.T + b), handwritten.array(x)

    def candidate(device: str, backend: str) -> Callable[[], object]:
        compiled, given = torch.compile(nn.Linear(8, 8).to(device), backend=backend), x.to(device)
        return lambda: wait(_last(compiled, given))

    found: Candidates = {name: candidate(*run) for name, run in RUNS.items()}
    found[JAX] = lambda: _last(bare, array, weight, bias).block_until_ready()
    return found


def _last(call: Callable[..., Any], *given: object) -> Any:
    for _ in range(CALLS - 1):
        call(*given)
    return call(*given)


def forwards(case: Case, inductor: bool) -> Candidates:
    """The forward in training mode, whose results are checked.

    Statistics of batches are part of it, and what follows from them: the new buffers.
    """

    def torch_forward(device: str, backend: str | None) -> Callable[[], Tensor]:
        model, (x, _) = build(case, device)
        run = torch.compile(model, backend=backend) if backend else model
        return lambda: wait(run(x))

    model, (x, _) = build(case)
    parameters, buffers, _ = handwritten.initial_state(model, "SGD")
    apply = jax.jit(handwritten.TWINS[case.twin])
    array = handwritten.array(x)
    found: Candidates = {JAX: lambda: apply(parameters, buffers, array)[0].block_until_ready()}
    for name, run in {TORCH: ("cpu", None), **RUNS}.items():
        if name != INDUCTOR or inductor:
            found[name] = torch_forward(*run)
    results = {name: jnp.asarray(_numbers(call())) for name, call in found.items()}
    for name, result in results.items():
        difference = float(jnp.abs(result - results[TORCH]).max())
        if difference > TOLERANCE:
            raise AssertionError(f"{case.name}: {name} differs from torch by {difference}")
    return found


def _numbers(result: object) -> object:
    return result.detach().cpu().numpy() if isinstance(result, Tensor) else result


def steps(case: Case, inductor: bool) -> dict[str, Callable[[], float]]:
    """A training step with SGD: forward and loss, backward and update are compiled."""

    def torch_step(device: str, backend: str | None) -> Callable[[], float]:
        model, (x, y) = build(case, device)
        optimizer = OPTIMIZERS["SGD"](model.parameters())

        def loss_of(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model(x), y)

        forward, update = loss_of, optimizer.step
        if backend is not None:
            forward = torch.compile(loss_of, backend=backend)
            update = torch.compile(optimizer.step, backend=backend)

        def step() -> float:
            loss = forward(x, y)
            loss.backward()
            update()
            optimizer.zero_grad()
            return loss.item()

        return step

    model, (x, y) = build(case)
    trainer = handwritten.Trainer(handwritten.TWINS[case.twin], model, "SGD")
    inputs = handwritten.array(x), handwritten.array(y)
    found = {JAX: lambda: float(trainer(*inputs))}
    for name, run in {TORCH: ("cpu", None), **RUNS}.items():
        if name != INDUCTOR or inductor:
            found[name] = torch_step(*run)
    return found


def first_calls(case: Case, inductor: bool) -> common.Times:
    """How long it takes until the first loss and gradients are there, after a warm process."""
    times: common.Times = {}
    for name, (device, backend) in RUNS.items():
        if name == INDUCTOR and not inductor:
            continue
        torch._dynamo.reset()
        model, (x, y) = build(case, device)
        start = time.perf_counter()
        loss = F.cross_entropy(torch.compile(model, backend=backend)(x), y)
        loss.backward()
        for parameter in model.parameters():
            wait(parameter.grad)
        times[name] = time.perf_counter() - start
    model, (x, y) = build(case)
    parameters, buffers, _ = handwritten.initial_state(model, "SGD")
    arrays = handwritten.array(x), handwritten.array(y)
    start = time.perf_counter()
    jax.block_until_ready(jax.jit(jax.grad(_loss_of(case)))(parameters, buffers, *arrays))
    times[JAX] = time.perf_counter() - start
    return times


def _loss_of(case: Case) -> Callable[..., jax.Array]:
    def loss(p: handwritten.Arrays, b: handwritten.Arrays, x: jax.Array, y: jax.Array) -> jax.Array:
        logits, _ = handwritten.TWINS[case.twin](p, b, x)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

    return loss


def row(name: str, times: common.Times, spoken: Callable[[float], str]) -> list[str]:
    """The times, then calque's ratio to the others."""
    cells = [spoken(times[n]) if n in times else "-" for n in COLUMNS]
    others = [n for n in COLUMNS if n not in (OURS, OURS_CPU)]
    return [name, *cells, *(f"{times[OURS] / times[n]:.2f}" if n in times else "-" for n in others)]


def header(what: str, unit: str) -> list[str]:
    others = [n for n in COLUMNS if n not in (OURS, OURS_CPU)]
    return [what, *(f"{n}, {unit}" for n in COLUMNS), *(f"/ {n}" for n in others)]


def main() -> None:
    quick = common.quick(__doc__)
    inductor = not quick
    with torch.no_grad():
        rows = common.interleave(overhead(), 5 if quick else 31, calls=1)
    times = {name: seconds / CALLS for name, seconds in rows.items()}
    title = "What a call of a compiled Linear(8, 8) costs (lower is better)"
    common.table(title, header("call", "µs"), [row("Linear(8, 8)", times, common.microseconds)])
    rounds = (2, 2) if quick else (15, 10)
    cases = COMPILED[2:3] if quick else COMPILED
    tables: dict[str, list[list[str]]] = {"forward": [], "training step": [], "first call": []}
    for case in cases:
        torch._dynamo.reset()
        with torch.no_grad():
            found = common.interleave(forwards(case, inductor), *rounds)
        tables["forward"].append(row(case.name, found, common.milliseconds))
        torch._dynamo.reset()
        candidates = steps(case, inductor)
        agree(candidates)
        found = common.interleave(candidates, *rounds)
        tables["training step"].append(row(case.name, found, common.milliseconds))
        found = first_calls(case, inductor)
        tables["first call"].append(row(case.name, found, common.milliseconds))
        print(f"{case.name}: done", flush=True)
    for what, rows in tables.items():
        common.table(f"{what.capitalize()} (the ratios are calque's)", header(what, "ms"), rows)
    torch._dynamo.reset()
    decoding.report(quick)


if __name__ == "__main__":
    main()
