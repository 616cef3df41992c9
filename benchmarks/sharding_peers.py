"""The spread training step of `benchmarks.sharding` in torchax, against hand-written JAX.

    python -m benchmarks.sharding_peers [--quick]

torchax has an environment of its own, with the newest PyTorch that it can be imported with; it is
measured there, in turn with the hand-written step. Where it cannot be installed, this says so.
"""

from benchmarks import spread  # isort: skip  (first: it makes the devices)

import json
import subprocess
from typing import Any

import calque
from benchmarks import common, peers
from benchmarks.sharding import CASES
from calque import sharding as sh


def case(name: str) -> dict[str, Any]:
    """What the other process needs to know; where the plan puts each parameter is in it."""
    axes, plan, depth = CASES[name]
    module = sh.shard_module(spread.model(depth).to("jax"), plan, sh.mesh(**axes))
    arrays = {n: calque.to_jax(p.detach()) for n, p in module.named_parameters()}
    specs = {n: list(array.sharding.spec) for n, array in arrays.items()}
    return {"axes": axes, "depth": depth, "specs": specs}


def main() -> None:
    quick = common.quick(__doc__)
    try:
        python = peers.environment("torchax", "torch<2.12", "optax")
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"torchax is left out, for it cannot be installed: {error}")
        return
    rows = []
    for name in CASES:
        arguments = json.dumps(case(name)), "5" if quick else "40"
        # This repository's package would occupy the device slot that torchax needs.
        alone = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        printed = peers.run(python, "benchmarks.torchax_step", *arguments, **alone)
        found = json.loads(printed)
        times = map(common.milliseconds, found["best"])
        rows.append([name, *times, f"{found['ratio']:.2f}", found["temporaries"]])
        rows[-1].append(found["collectives"])
    header = ["torchax", "ms", "JAX, ms", "median of ratios of pairs", "temporaries, MB a device"]
    common.table("Training step, GPT with AdamW", [*header, "collectives"], rows)


if __name__ == "__main__":
    main()
