"""The GPT of `gpt.py` over a mesh of devices: batch and weights in parts, the step as it is.

Each device keeps its part of the weights, of their gradients and of Adam's moments (FSDP), and the
linear layers of a block are split over the second axis (tensor parallelism). On a computer with one
CPU, let it act as eight devices:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/sharded_gpt.py [--steps 20]
"""

import argparse
import sys
from pathlib import Path

import jax
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calque
from calque import sharding
from calque.sharding import P, along

sys.path.insert(0, str(Path(__file__).parent))
from gpt import GPT, Size, manual

PLAN = {
    "*.qkv.weight": P(None, "dp"),
    "*.up.weight": P("tp", "dp"),
    "*.up.bias": P("tp"),
    "*.down.weight": P("dp", "tp"),
    "*": along("dp"),
}


def make_step(model: nn.Module, optimizer: torch.optim.Optimizer):
    @calque.jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    text = manual()
    size = Size(letters=len(text.letters), context=32, width=64)
    torch.manual_seed(0)
    batches = [text.batch(8, size.context) for _ in range(steps)]

    def trained(plan: dict | None) -> list[float]:
        torch.manual_seed(1)
        model = GPT(size).to("jax")
        if plan is not None:
            sharding.shard_module(model, plan)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        step = make_step(model, optimizer)
        parts = sharding.loader(batches, P("dp")) if plan is not None else batches
        losses = [step(x.to("jax"), y.to("jax")) for x, y in parts]
        if plan is not None:
            print(sharding.placement(model.get_parameter("blocks.0.up.weight")))
            print(sharding.memory(model, optimizer))
        return [loss.item() for loss in losses]

    alone = trained(None)
    tp = 2 if jax.device_count() % 2 == 0 else 1
    sharding.mesh(dp=-1, tp=tp)
    together = trained(PLAN)
    off = max(abs(a - b) for a, b in zip(alone, together))
    print(f"loss {together[0]:.2f} -> {together[-1]:.2f}; from one device's by at most {off:.0e}")
    assert off < 1e-3


if __name__ == "__main__":
    main()
