"""Train a small residual CNN on scikit-learn's handwritten digits, three ways.

1. PyTorch on the CPU.
2. The same program on the device "jax", operator by operator.
3. The same program with its training step under `@calque.jit`: one XLA program.

The weights start out equal. Two devices draw different dropout masks from one seed, so the losses
are compared over a few steps with dropout off; the training proper has dropout on.

    python examples/digits.py [--epochs 20] [--output demo_output]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

import calque

matplotlib.use("Agg")
from matplotlib import pyplot as plt

BATCH = 128
COMPARED_STEPS = 10
Step = Callable[[Tensor, Tensor], Tensor]


class Block(nn.Module):
    """Two convolutions with BatchNorm and a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) to the same shape."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


class DigitsNet(nn.Module):
    """8x8 grey images to ten logits."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.block1 = Block(width)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.block2 = Block(2 * width)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 1, 8, 8) to (batch, 10)."""
        x = F.relu(self.norm(self.stem(x)))
        x = self.block2(F.relu(self.down(self.block1(x))))
        return self.head(self.dropout(x.mean(dim=(2, 3))))


@dataclass
class Run:
    """What one way of training gave."""

    name: str
    losses: list[float] = field(default_factory=list)
    compared: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    accuracy: float | None = None

    @property
    def median_ms(self) -> float:
        """The median time of a step; the first one, which may compile, is left out."""
        return statistics.median(self.step_ms[1:])


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, test images and labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train, test = train_test_split(
        range(len(labels)), test_size=0.2, random_state=0, stratify=digits.target
    )
    return images[train], labels[train], images[test], labels[test]


def make_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """An ordinary PyTorch training step."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def train(
    run: Run, device: str, jit: bool, epochs: int, dropout: bool, limit: int | None = None
) -> None:
    """Train from the same initial weights; `limit` ends the run after so many steps."""
    x_train, y_train, x_test, y_test = (t.to(device) for t in data())
    torch.manual_seed(0)
    model = DigitsNet()
    if not dropout:
        model.dropout.p = 0.0
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps_per_epoch = len(x_train) // BATCH
    total = epochs * steps_per_epoch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total)
    step = make_step(model, optimizer)
    if jit:
        step = calque.jit(step)
    shuffle = torch.Generator().manual_seed(0)
    losses = run.losses if dropout else run.compared

    with tqdm(total=min(total, limit or total), desc=run.name, leave=False, disable=None) as bar:
        for _ in range(epochs):
            order = torch.randperm(len(x_train), generator=shuffle)[: steps_per_epoch * BATCH]
            order = order.to(device)
            batches = zip(x_train[order].split(BATCH), y_train[order].split(BATCH), strict=True)
            for x, y in batches:
                start = time.perf_counter()
                losses.append(step(x, y).item())
                schedule.step()
                if dropout:
                    run.step_ms.append(1000 * (time.perf_counter() - start))
                bar.update()
                if len(losses) == limit:
                    return

    model.eval()
    with torch.no_grad():
        run.accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()


def report(runs: list[Run]) -> None:
    """Print one row for each run."""
    reference = runs[0]
    print(
        f"\n{'':22}{'steps':>6}{'test accuracy':>15}{'loss difference':>17}"
        f"{'ms per step':>13}{'relative':>10}"
    )
    for run in runs:
        accuracy = "-" if run.accuracy is None else f"{run.accuracy:.1%}"
        difference = max(abs(a - b) for a, b in zip(run.compared, reference.compared, strict=True))
        print(
            f"{run.name:22}{len(run.losses):6}{accuracy:>15}{difference:17.1e}"
            f"{run.median_ms:13.2f}{run.median_ms / reference.median_ms:10.2f}"
        )
    print(
        f"\nloss difference: the largest to torch on the CPU over the first {COMPARED_STEPS} steps,"
        " dropout off.\nms per step: the median, without the first step;"
        f" under calque.jit the first took {runs[-1].step_ms[0] / 1000:.1f} s."
    )


def plot(runs: list[Run], path: Path) -> None:
    """Write the loss curves."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for run in runs:
        axes.plot(run.losses, label=run.name, linewidth=1)
    axes.set(xlabel="step", ylabel="training loss (dropout on)", yscale="log")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"loss curves: {path}")


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("demo_output"))
    options = parser.parse_args()
    torch.set_num_threads(1)

    runs = [Run("torch, CPU"), Run("calque, eager"), Run("calque.jit")]
    settings = [("cpu", False, None), ("jax", False, 22), ("jax", True, None)]
    for run, (device, jit, limit) in zip(runs, settings, strict=True):
        train(run, device, jit, options.epochs, dropout=False, limit=COMPARED_STEPS)
        train(run, device, jit, options.epochs, dropout=True, limit=limit)
    report(runs)
    plot(runs, options.output / "digits.png")


if __name__ == "__main__":
    main()
