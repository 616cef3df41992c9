"""A training step spread over eight devices of the host: calque.jit against hand-written JAX.

    python -m benchmarks.sharding [--quick]

Both have equal weights, the same shardings and the same batch, and run in turn in one process. The
devices are XLA's own on the CPU, so that the times tell what the host costs and whether XLA is
given the same program, and nothing of how collectives run elsewhere.
"""

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

# isort: split
from benchmarks import common, handwritten
from benchmarks.models import GPT, OPTIMIZERS, make_step

# isort: split
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import torch
from jax.sharding import Mesh, NamedSharding

import calque
from calque import sharding as sh
from calque.sharding import P, Plan, along

TOLERANCE = 2e-3
COUNT = 150
COLLECTIVES = re.compile(r" = .*? (all-gather|all-reduce|reduce-scatter|all-to-all)(?:-start)?\(")
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


class Placed:
    """The step by hand: its state on the mesh, its results pinned to where the state is."""

    def __init__(self, model: torch.nn.Module, plan: Plan, mesh: Mesh) -> None:
        twin = sh.shard_module(model.to("jax"), plan, mesh)
        shardings = {n: calque.to_jax(p.detach()).sharding for n, p in twin.named_parameters()}
        state = handwritten.initial_state(model.to("cpu"), "AdamW")
        whole = NamedSharding(mesh, P())

        def where(path: Any, leaf: Any) -> NamedSharding:
            name = next((k.key for k in reversed(path) if hasattr(k, "key")), None)
            found = shardings.get(name)
            return whole if found is None or leaf.shape == () else found

        places = jax.tree_util.tree_map_with_path(where, state)
        self.state = jax.device_put(state, places)
        step = handwritten.make_step(handwritten.gpt, "AdamW")
        self.step = jax.jit(step, donate_argnums=0, out_shardings=(places, None))

    def __call__(self, x: Any, y: Any) -> Any:
        self.state, loss = self.step(self.state, x, y)
        return loss


def pair(axes: dict[str, int], plan: Plan, depth: int) -> tuple[Any, Any, Any, Any]:
    """Both steps as functions that return the loss, and both compiled programs."""
    mesh = sh.mesh(**axes)
    torch.manual_seed(0)
    start = GPT(depth=depth).state_dict()
    x = torch.randint(0, 64, (16, 64))
    y = torch.randint(0, 64, (16 * 64,))

    def model() -> torch.nn.Module:
        made = GPT(depth=depth)
        made.load_state_dict(start)
        return made

    own = sh.shard_module(model().to("jax"), plan, mesh)
    step = calque.jit(make_step(own, OPTIMIZERS["AdamW"](own.parameters())))
    batch = sh.shard(x, P("dp"), mesh), sh.shard(y, P("dp"), mesh)
    trainer = Placed(model(), plan, mesh)
    placed = [jax.device_put(handwritten.array(t), NamedSharding(mesh, P("dp"))) for t in (x, y)]
    theirs = trainer.step.lower(trainer.state, *placed).compile()
    for _ in range(4):
        a, b = step(*batch).item(), float(trainer(*placed))
        if abs(a - b) > TOLERANCE:
            raise AssertionError(f"the losses differ: {a} and {b}")
    ours = step.lower(*batch).compile()
    return lambda: step(*batch).item(), lambda: float(trainer(*placed)), ours, theirs


def collectives(compiled: Any) -> str:
    """How many of each kind a program has."""
    found = Counter(COLLECTIVES.findall(compiled.as_text()))
    return ", ".join(f"{count} {kind}" for kind, count in sorted(found.items())) or "none"


def alternated(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> list[Any]:
    """The times of calls in turn."""
    times = []
    for index in range(rounds):
        both = [0.0, 0.0]
        for which in (index % 2, 1 - index % 2):
            began = time.perf_counter()
            (ours, theirs)[which]()
            both[which] = time.perf_counter() - began
        times.append(both)
    return times


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
        times = alternated(known, awaited, 50 if quick else 400)
        ratio = statistics.median(p for p, _ in times) / statistics.median(q for _, q in times)
        best = [min(column) for column in zip(*times, strict=True)]
        rows.append([name, *map(common.microseconds, best), f"{ratio:.2f}"])
    header = ["operator", "calque, µs", "jax.numpy, µs", "ratio of medians"]
    common.table("Eager, 64 x 64 over 8 devices", header, rows)


def host_part(quick: bool) -> None:
    """What a call with many arrays costs its thread on one device and on eight, beside JAX's."""
    found = []
    for devices in (1, 8):  # in this order: what is spread is looked at from then on
        own, other = counting(devices)
        for _ in range(20):
            own(), other()
        columns = zip(*(map(on_thread, (own, other)) for _ in range(50 if quick else 400)))
        found.append([statistics.median(column) for column in columns])
    rows = [
        [f"{n} devices" if n > 1 else "1 device", *map(common.microseconds, (a, b, a - b))]
        for n, (a, b) in zip((1, 8), found, strict=True)
    ]
    (one, plain), (eight, spread) = found
    rows.append(["ratio", *(f"{q:.2f}" for q in (eight / one, spread / plain))])
    rows[-1].append(f"{(eight - spread) / (one - plain):.2f}")
    header = ["", "calque.jit, µs", "jax.jit, µs", "difference, µs"]
    common.table(f"A thread's time in a call with {COUNT} arrays", header, rows)


def counting(devices: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Calls of both that replace many small arrays, by calque.jit and by jax.jit."""
    one = torch.ones(8, device="jax")
    state = [torch.zeros(8, device="jax") for _ in range(COUNT)]
    if devices > 1:
        sh.mesh(dp=devices)
        one = sh.shard(one, P("dp"))
        state = [sh.shard(tensor, P("dp")) for tensor in state]
    ours = calque.jit(lambda x: [tensor.add_(x) for tensor in state] and x + 1)
    theirs = jax.jit(lambda arrays, x: ([a + x for a in arrays], x + 1), donate_argnums=0)
    array = calque.to_jax(one)
    held = [jax.device_put([calque.to_jax(t) + 0 for t in state], array.sharding)]

    def call() -> Any:
        held[0], result = theirs(held[0], array)
        return result

    return lambda: calque.to_jax(ours(one)), call


def on_thread(call: Callable[[], Any]) -> float:
    """The processor time of this thread in a call, whose result is then waited for."""
    began = time.thread_time()
    result = call()
    took = time.thread_time() - began
    result.block_until_ready()
    return took


def main() -> None:
    quick = common.quick(__doc__)
    host_part(quick)
    eager(quick)
    rows, programs = [], []
    for name, (axes, plan, depth) in CASES.items():
        ours, theirs, own, other = pair(axes, plan, depth)
        times = alternated(ours, theirs, 5 if quick else 40)
        best = [min(column) for column in zip(*times, strict=True)]
        ratio = statistics.median(p / q for p, q in times)
        rows.append(
            [name, *map(common.milliseconds, best), f"{best[0] / best[1]:.2f}", f"{ratio:.2f}"]
        )
        for who, program in (("calque", own), ("JAX", other)):
            found = program.memory_analysis()
            temporary = f"{found.temp_size_in_bytes / 1e6:.2f}"
            programs.append([f"{name}, {who}", temporary, collectives(program)])
    header = ["step", "calque, ms", "JAX, ms", "ratio of minima", "median of ratios of pairs"]
    common.table("Training step, GPT with AdamW", header, rows)
    common.table("The programs", ["", "temporaries, MB a device", "collectives"], programs)


if __name__ == "__main__":
    main()
