"""A training step spread over eight devices of the host: calque.jit against hand-written JAX.

    python -m benchmarks.sharding [--quick]

Both have equal weights, the same shardings and the same batch, and run in turn in one process. The
devices are XLA's own on the CPU, so that the times tell what the host costs and whether XLA is
given the same program, and nothing of how collectives run elsewhere.
"""

from benchmarks import spread  # isort: skip  (first: it makes the devices)

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import torch

import calque
from benchmarks import common
from benchmarks.models import OPTIMIZERS, make_step
from calque import sharding as sh
from calque.device.runtime.executable import execution
from calque.sharding import P, Plan, along

TOLERANCE = 2e-3
COUNT = 150
TP: Plan = {
    "*.qkv.weight": P("tp", "dp"),
    "*.up.weight": P("tp", "dp"),
    "*.out.weight": P("dp", "tp"),
    "*.down.weight": P("dp", "tp"),
    "*": along("dp"),
}
CASES: dict[str, tuple[dict[str, int], Plan, int]] = {
    "FSDP over 8, 4 layers": ({"dp": 8}, {"*": along("dp")}, 4),
    "FSDP 4 x TP 2, 2 layers": ({"dp": 4, "tp": 2}, TP, 2),
}


def pair(axes: dict[str, int], plan: Plan, depth: int) -> tuple[Any, Any, Any, Any]:
    """Both steps as functions that return the loss, and both compiled programs."""
    mesh = sh.mesh(**axes)
    own = sh.shard_module(spread.model(depth).to("jax"), plan, mesh)
    step = calque.jit(make_step(own, OPTIMIZERS["AdamW"](own.parameters())))
    x, y = (sh.shard(tensor, P("dp"), mesh) for tensor in spread.batch())
    specs = {n: calque.to_jax(p.detach()).sharding.spec for n, p in own.named_parameters()}
    trainer = spread.Placed(spread.model(depth), specs, mesh)
    arrays = spread.spread_batch(mesh)
    theirs = trainer.step.lower(trainer.state, *arrays).compile()
    for _ in range(4):
        a, b = step(x, y).item(), float(trainer(*arrays))
        if abs(a - b) > TOLERANCE:
            raise AssertionError(f"the losses differ: {a} and {b}")
    ours = step.lower(x, y).compile()
    return lambda: step(x, y).item(), lambda: float(trainer(*arrays)), ours, theirs


def eager(quick: bool) -> None:
    """Operators on spread arrays against jax.numpy on the same arrays."""
    sh.mesh(dp=8)
    x, y = (sh.shard(torch.randn(64, 64), P("dp")) for _ in range(2))
    a, b = calque.to_jax(x), calque.to_jax(y)
    cases: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "x + y": (lambda: x + y, lambda: a + b),
        "x + 1": (lambda: x + 1, lambda: a + 1),
        "relu(x)": (lambda: torch.relu(x), lambda: jax.nn.relu(a)),
        "x @ y": (lambda: x @ y, lambda: a @ b),
        "x.sum()": (lambda: x.sum(), lambda: a.sum()),
    }
    rows = []
    for name, (ours, theirs) in cases.items():

        def awaited(theirs: Any = theirs) -> None:
            jax.block_until_ready(theirs())

        def known(ours: Any = ours) -> None:
            jax.block_until_ready(calque.to_jax(ours()))

        for _ in range(4):
            known()
        times = spread.alternated(known, awaited, 50 if quick else 400)
        ratio = statistics.median(p for p, _ in times) / statistics.median(q for _, q in times)
        best = [min(column) for column in zip(*times, strict=True)]
        rows.append([name, *map(common.microseconds, best), f"{ratio:.2f}"])
    header = ["operator", "calque, µs", "jax.numpy, µs", "ratio of medians"]
    common.table("Eager, 64 x 64 over 8 devices", header, rows)


def host_part(quick: bool) -> None:
    """What a call with many arrays costs its thread on one device and on eight.

    The host part is what a call takes longer than that of a bare executable with such arrays. Both
    numbers of devices are measured in turn: eight threads leave the caches of all others cold.
    """
    candidates = {devices: counting(devices) for devices in (1, 8)}
    found: dict[int, list[list[float]]] = {devices: [[], [], []] for devices in candidates}
    rounds = 50 if quick else 600
    for index in range(-20, rounds):
        for devices, calls in candidates.items():
            for which in (index % 3, (index + 1) % 3, (index + 2) % 3):
                took = on_thread(calls[which])
                if index >= 0:
                    found[devices][which].append(took)
    times = {n: [statistics.median(column) for column in columns] for n, columns in found.items()}
    parts = {n: own - bare for n, (own, bare, _) in times.items()}
    rows = [
        [f"{n} devices" if n > 1 else "1 device", *map(common.microseconds, (*times[n], parts[n]))]
        for n in times
    ]
    ratios = [eight / one for one, eight in zip(times[1], times[8], strict=True)]
    rows.append(["ratio", *(f"{ratio:.2f}" for ratio in (*ratios, parts[8] / parts[1]))])
    header = ["", "calque.jit, µs", "executable, µs", "jax.jit, µs", "host part, µs"]
    common.table(f"A thread's time in a call with {COUNT} arrays", header, rows)


def counting(devices: int) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]:
    """Calls that replace many small arrays: by calque.jit, by an executable itself, by jax.jit."""
    one = torch.ones(8, device="jax")
    state = [torch.zeros(8, device="jax") for _ in range(COUNT)]
    if devices > 1:
        sh.mesh(dp=devices)
        one = sh.shard(one, P("dp"))
        state = [sh.shard(tensor, P("dp")) for tensor in state]
    ours = calque.jit(lambda x: [tensor.add_(x) for tensor in state] and x + 1)
    donated = tuple(range(1, COUNT + 1))
    theirs = jax.jit(lambda x, *held: (x + 1, *(a + x for a in held)), donate_argnums=donated)
    array = calque.to_jax(one)
    copies = [[calque.to_jax(t) + 0 for t in state] for _ in range(2)]
    held, given = (jax.device_put(copy, array.sharding) for copy in copies)
    found = execution(theirs.lower(array, *given).compile())
    assert found is not None
    execute, handlers = getattr(found.execute, "execute", found.execute), found.handlers

    def bare() -> Any:
        nonlocal given
        result, *given = execute([array, *given]).consume_with_handlers(handlers)
        return result

    def by_jax() -> Any:
        nonlocal held
        result, *held = theirs(array, *held)
        return result

    return lambda: ours(one), bare, by_jax


def on_thread(call: Callable[[], Any]) -> float:
    """The processor time of this thread in a call, whose result is then waited for."""
    began = time.thread_time()
    result = call()
    took = time.thread_time() - began
    array = calque.to_jax(result) if isinstance(result, torch.Tensor) else result
    array.block_until_ready()
    return took


def main() -> None:
    quick = common.quick(__doc__)
    host_part(quick)
    eager(quick)
    rows, programs = [], []
    for name, (axes, plan, depth) in CASES.items():
        ours, theirs, own, other = pair(axes, plan, depth)
        times = spread.alternated(ours, theirs, 5 if quick else 40)
        best = [min(column) for column in zip(*times, strict=True)]
        ratio = spread.median_ratio(times)
        rows.append(
            [name, *map(common.milliseconds, best), f"{best[0] / best[1]:.2f}", f"{ratio:.2f}"]
        )
        for who, program in (("calque", own), ("JAX", other)):
            found = [spread.temporaries(program), spread.collectives(program)]
            programs.append([f"{name}, {who}", *found])
    header = ["step", "calque, ms", "JAX, ms", "ratio of minima", "median of ratios of pairs"]
    common.table("Training step, GPT with AdamW", header, rows)
    common.table("The programs", ["", "temporaries, MB a device", "collectives"], programs)


if __name__ == "__main__":
    main()
