"""The spread step in torchax, in the environment that `benchmarks.sharding_peers` makes for it.

    python -m benchmarks.torchax_step CASE ROUNDS

CASE is JSON: the axes of the mesh, the depth of the model, and how each parameter is spread. The
module is made functional by torchax, its step by `torchax.train.make_train_step`, and jitted with
donated state, as its examples do. It prints JSON: best times, ratio, collectives and temporaries.
"""

from benchmarks import spread  # isort: skip  (first: it makes the devices)

import importlib
import json
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch.nn import functional as F

from benchmarks import handwritten

TOLERANCE = 2e-3


class Torchax:
    """The step by torchax, its state placed as that by hand."""

    def __init__(self, depth: int, specs: dict[str, PartitionSpec], mesh: Mesh) -> None:
        interop: Any = importlib.import_module("torchax.interop")
        train: Any = importlib.import_module("torchax.train")
        module = interop.JittableModule(spread.model(depth))

        def forward(weights: Any, buffers: Any, args: Any) -> Any:
            return module.functional_call("forward", weights, buffers, *args)

        optimizer = handwritten.OPTIMIZERS["AdamW"]
        step = interop.jax_view(train.make_train_step(forward, F.cross_entropy, optimizer))
        self.weights = {
            name: jax.device_put(
                handwritten.array(p), NamedSharding(mesh, specs.get(name, PartitionSpec()))
            )
            for name, p in module.params.items()
        }
        moments = optimizer.init(self.weights)
        whole = NamedSharding(mesh, PartitionSpec())
        self.moments = jax.tree.map(lambda a: a if a.ndim else jax.device_put(a, whole), moments)
        places = jax.tree.map(lambda array: array.sharding, (self.weights, self.moments))
        self.step = jax.jit(step, donate_argnums=(0, 2), out_shardings=(None, *places))

    def arguments(self, x: Any, y: Any) -> tuple[Any, ...]:
        return self.weights, {}, self.moments, (x,), y

    def __call__(self, x: Any, y: Any) -> Any:
        loss, self.weights, self.moments = self.step(*self.arguments(x, y))
        return loss


def main() -> None:
    case = json.loads(sys.argv[1])
    axes, depth = case["axes"], case["depth"]
    devices = np.array(jax.devices()).reshape(tuple(axes.values()))
    mesh = Mesh(devices, tuple(axes))
    specs = {name: PartitionSpec(*spec) for name, spec in case["specs"].items()}
    x, y = spread.spread_batch(mesh)
    theirs = Torchax(depth, specs, mesh)
    by_hand = spread.Placed(spread.model(depth), specs, mesh)
    compiled = theirs.step.lower(*theirs.arguments(x, y)).compile()
    for _ in range(4):
        a, b = float(theirs(x, y)), float(by_hand(x, y))
        if abs(a - b) > TOLERANCE:
            raise AssertionError(f"the losses differ: {a} and {b}")
    rounds = int(sys.argv[2])
    times = spread.alternated(lambda: float(theirs(x, y)), lambda: float(by_hand(x, y)), rounds)
    best = [min(column) for column in zip(*times, strict=True)]
    found = {"best": best, "ratio": spread.median_ratio(times)}
    found |= {"collectives": spread.collectives(compiled)}
    print(json.dumps(found | {"temporaries": spread.temporaries(compiled)}))


if __name__ == "__main__":
    main()
