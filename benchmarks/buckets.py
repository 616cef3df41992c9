"""A GPT trained on lengths of 20 to 512 in random order: programs compiled, and time in all.

    python -m benchmarks.buckets [--steps 500]

Each way trains on the same batches, in a process of its own, because each would profit from what
another has compiled. The time is the CPU time of the process and of the compilers that it
starts, on one core, so that a busy machine does not count. The losses must agree.
"""

from benchmarks import one_core  # noqa: F401  (first)

# isort: split
from benchmarks import common

# isort: split
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.models import GPT

SHORTEST, LONGEST, BATCH = 20, 512, 4
IGNORED = -100
"""The target that a loss leaves out, where a batch is padded by hand."""
Pad = Callable[[int], int]


def power(length: int) -> int:
    """The power of two that a length fits in."""
    return 1 << (length - 1).bit_length()


WAYS: dict[str, tuple[str, dict[str, Any], Pad | None]] = {
    "buckets, powers of two": ("calque", {"dynamic": True, "options": {"buckets": "pow2"}}, None),
    "exact sizes": ("calque", {"dynamic": True, "options": {"max_programs": 1000}}, None),
    "padded by hand to 512": ("calque", {}, lambda _: LONGEST),
    "padded by hand to powers of two": ("calque", {"dynamic": False}, power),
    "inductor, dynamic=True": ("inductor", {"dynamic": True}, None),
}
"""The backend, what `torch.compile` is given, and the length that the program pads to, if any."""


def batches(steps: int, pad: Pad | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens and targets of random lengths, padded by hand where there is a rule."""
    lengths = random.Random(0)
    for step in range(steps):
        length = lengths.randint(SHORTEST, LONGEST)
        tokens = torch.randint(256, (BATCH, length + 1), generator=torch.manual_seed(step))
        more = 0 if pad is None else pad(length) - length
        yield F.pad(tokens[:, :-1], (0, more)), F.pad(tokens[:, 1:], (0, more), value=IGNORED)


def train(way: str, steps: int) -> dict[str, float]:
    """Train one way: the programs compiled, the seconds in all, and the last loss."""
    backend, options, pad = WAYS[way]
    compiled = _count_programs(backend)
    device = "jax" if backend == "calque" else "cpu"
    torch.manual_seed(0)
    model = GPT(depth=2, length=LONGEST).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of = torch.compile(
        lambda tokens, targets: F.cross_entropy(model(tokens), targets.flatten()),
        backend=backend,
        **options,
    )
    loss, started = float("nan"), _cpu_seconds()
    for tokens, targets in batches(steps, pad):
        value = loss_of(tokens.to(device), targets.to(device))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = value.item()
    return {"programs": compiled(), "seconds": _cpu_seconds() - started, "loss": loss}


def _count_programs(backend: str) -> Callable[[], int]:
    """Counts forwards and backwards that XLA compiles, or inductor."""
    if backend == "inductor":
        return lambda: 2 * int(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    from calque.dynamo.buckets import bucketed_graph
    from calque.dynamo.graphs import graph
    from calque.program import direct_call

    count = [0]

    def counted(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return direct_call.compile_checked(*args, **kwargs)

    graph.compile_checked = bucketed_graph.compile_checked = counted
    return lambda: count[0]


def _cpu_seconds() -> float:
    """The time of the process and of the compilers that it started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _trained(way: str, steps: int) -> dict[str, float]:
    """What `train` gives in a process of its own, which finds nothing compiled."""
    command = [sys.executable, "-m", "benchmarks.buckets", "--steps", str(steps), "--way", way]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "CALQUE_CACHE_DIR": "off",
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # in this process, whose time is measured
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{way}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def report(steps: int) -> None:
    """Print the table."""
    found = {way: _trained(way, steps) for way in WAYS}
    first, *others = found.values()
    for one in others:
        assert abs(one["loss"] - first["loss"]) < 1e-3 * first["loss"], found
    rows = [
        [
            way,
            f"{one['programs']:.0f}",
            f"{one['seconds']:.0f}",
            f"{one['seconds'] / first['seconds']:.2f}",
        ]
        for way, one in found.items()
    ]
    title = f"{steps} steps of a GPT, lengths {SHORTEST} to {LONGEST}, {BATCH} rows"
    common.table(title, ["way", "programs", "CPU seconds in all", "/ buckets"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--quick", action="store_true", help="60 steps")
    parser.add_argument("--way", choices=WAYS, help="one way, as JSON")
    chosen = parser.parse_args()
    if chosen.way is None:
        report(60 if chosen.quick else chosen.steps)
    else:
        print(json.dumps(train(chosen.way, chosen.steps)))
