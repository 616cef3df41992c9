"""The spread training step by hand, and what steps of its kind are measured with.

Imported before JAX, for it makes eight devices of the host.
"""

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

# isort: split
from benchmarks import handwritten
from benchmarks.models import GPT

# isort: split
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

COLLECTIVES = re.compile(r" = .*? (all-gather|all-reduce|reduce-scatter|all-to-all)(?:-start)?\(")


class Placed:
    """The step by hand: its state on the mesh, its results pinned to where the state is.

    Args:
        model: on the CPU, with the weights to begin from.
        specs: how each parameter is spread, by name; the rest is on all devices.
    """

    def __init__(
        self, model: torch.nn.Module, specs: Mapping[str, PartitionSpec], mesh: Mesh
    ) -> None:
        state = handwritten.initial_state(model, "AdamW")
        whole = NamedSharding(mesh, PartitionSpec())

        def where(path: Any, leaf: Any) -> NamedSharding:
            name = next((k.key for k in reversed(path) if hasattr(k, "key")), None)
            found = specs.get(str(name))
            return whole if found is None or leaf.shape == () else NamedSharding(mesh, found)

        places = jax.tree_util.tree_map_with_path(where, state)
        self.state = jax.device_put(state, places)
        step = handwritten.make_step(handwritten.gpt, "AdamW")
        self.step = jax.jit(step, donate_argnums=0, out_shardings=(places, None))

    def __call__(self, x: Any, y: Any) -> Any:
        self.state, loss = self.step(self.state, x, y)
        return loss


def model(depth: int) -> torch.nn.Module:
    """The GPT that is trained, with the same weights each time."""
    torch.manual_seed(0)
    return GPT(depth=depth)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and what follows them, on the CPU."""
    torch.manual_seed(1)
    return torch.randint(0, 64, (16, 64)), torch.randint(0, 64, (16 * 64,))


def spread_batch(mesh: Mesh) -> tuple[jax.Array, jax.Array]:
    """The batch as arrays, over the axis "dp"."""
    x, y = (handwritten.array(tensor) for tensor in batch())
    return jax.device_put((x, y), NamedSharding(mesh, PartitionSpec("dp")))


def collectives(compiled: Any) -> str:
    """How many of each kind a program has."""
    found = Counter(COLLECTIVES.findall(compiled.as_text()))
    return ", ".join(f"{count} {kind}" for kind, count in sorted(found.items())) or "none"


def temporaries(compiled: Any) -> str:
    """What a program allocates beside its arguments and results, in MB a device."""
    return f"{compiled.memory_analysis().temp_size_in_bytes / 1e6:.2f}"


def alternated(
    ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int
) -> list[tuple[float, float]]:
    """The times of calls in turn."""
    times = []
    for index in range(rounds):
        both = [0.0, 0.0]
        for which in (index % 2, 1 - index % 2):
            began = time.perf_counter()
            (ours, theirs)[which]()
            both[which] = time.perf_counter() - began
        times.append((both[0], both[1]))
    return times


def median_ratio(times: list[tuple[float, float]]) -> float:
    """The median of the ratios of pairs."""
    return statistics.median(p / q for p, q in times)
