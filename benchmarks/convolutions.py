"""Networks of convolutions: calque.jit against PyTorch on the CPU, channels_last, in one process.

    python -m benchmarks.convolutions                 # small images, ResNet-18 and MobileNetV2
    python -m benchmarks.convolutions --models resnet50 convnext_tiny --sizes 224 --batches 1 8
    python -m benchmarks.convolutions --all --inductor

The ratio of each row is ours to PyTorch's eager mode: below 1, calque is faster. The models are
those of timm, but for ResNet-18, of which there is one without it.
"""

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calque
from tests.conformance.torchvision_stub import torchvision_stubbed

from .common import interleave, milliseconds, table

MODELS = ("resnet18", "resnet50", "mobilenetv2_100", "convnext_tiny", "efficientnet_b0")


class Residual(nn.Module):
    """Two convolutions around which the input goes, too."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x), inplace=True)


def resnet18() -> nn.Module:
    """ResNet-18 for 1000 classes."""
    widths = (64, 64, 128, 256, 512)
    blocks = [
        Residual(before if first else width, width, 2 if first and width > 64 else 1)
        for before, width in pairwise(widths)
        for first in (True, False)
    ]
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 1000),
    )


def build(name: str) -> nn.Module:
    """A model by its name; the same weights at every call."""
    torch.manual_seed(0)
    if name == "resnet18":
        return resnet18()
    with torchvision_stubbed():
        import timm  # pyright: ignore[reportMissingImports]

        return timm.create_model(name)


def training(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """A step of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def candidates(
    name: str, size: int, batch: int, train: bool, inductor: bool
) -> dict[str, Callable[[], object]]:
    """A call of each candidate; each ends when its result is there."""
    model = build(name).train(train)
    x, y = torch.randn(batch, 3, size, size), torch.randint(1000, (batch,))
    found: dict[str, Callable[[], object]] = {}

    def add(label: str, own: nn.Module, wrap: Callable, x: Tensor, y: Tensor) -> None:
        if train:
            step = wrap(training(own))
            found[label] = lambda: step(x, y).item()
        else:
            forward = wrap(own)

            def run() -> float:
                with torch.no_grad():
                    return forward(x)[0, 0].item()

            found[label] = run

    theirs = copy.deepcopy(model)
    theirs.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    images = x.contiguous(memory_format=torch.channels_last)
    add("calque", copy.deepcopy(model).to("jax"), calque.jit, x.to("jax"), y.to("jax"))
    add("eager", theirs, lambda f: f, images, y)
    if inductor:
        add("inductor", copy.deepcopy(theirs), torch.compile, images, y)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one model, one round")
    parser.add_argument("--all", action="store_true", help="all models, sizes and batches")
    parser.add_argument("--models", nargs="+", default=["resnet18", "mobilenetv2_100"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[64], help="pixels")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--steps", nargs="+", choices=["forward", "training"])
    parser.add_argument("--inductor", action="store_true", help="torch.compile as well")
    parser.add_argument("--cpu-time", action="store_true", help="for a machine that is busy")
    parser.add_argument("--keep", action="store_true", help="freed memory stays in the process")
    given = parser.parse_args(arguments)
    if given.keep:
        calque.keep_host_memory()
    if given.all:
        given.models, given.sizes, given.batches = MODELS, [64, 224], [1, 8]
    if given.quick:
        given.models, given.batches = ["resnet18"], [1]
    rows = []
    clock = time.process_time if given.cpu_time else time.perf_counter
    for name in given.models:
        for size in given.sizes:
            for batch in given.batches:
                for kind in given.steps or ("forward", "training"):
                    calls = candidates(name, size, batch, kind == "training", given.inductor)
                    rounds = (1, 1) if given.quick else (5, 2)
                    times = interleave(calls, *rounds, clock=clock)
                    ours, eager = times["calque"], times["eager"]
                    row = [f"{name}, {kind}", f"{size}", f"{batch}", milliseconds(ours)]
                    row += [milliseconds(eager), f"{ours / eager:.2f}"]
                    if given.inductor:
                        row += [f"{ours / times['inductor']:.2f}"]
                    rows.append(row)
                    print(*row, flush=True) if not given.quick else None
    header = ["model", "pixels", "batch", "calque ms", "eager ms", "/ eager"]
    table("Convolutions on the CPU", [*header, *["/ inductor"] * given.inductor], rows)


if __name__ == "__main__":
    main()
