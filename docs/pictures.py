"""Draws the pictures of the site that show what calque computed: `python docs/pictures.py`.

`assets/digits.svg` has the training losses of `examples/digits.py`, run in three ways,
`assets/placements.svg` what each of eight devices holds of a matrix, and
`assets/federated_digits.svg` the curves of `examples/federated_digits.py`.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import digits  # pyright: ignore[reportMissingImports]
import federated_digits  # pyright: ignore[reportMissingImports]
import matplotlib
import torch
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

from calque import sharding
from calque.federated import learning
from calque.sharding import P

ASSETS = Path(__file__).with_name("assets")
SIZE = 8
PLACEMENTS = [
    ("P()\nmesh(dp=8)", {"dp": 8}, P()),
    ('P("dp")\nmesh(dp=8)', {"dp": 8}, P("dp")),
    ('P("dp", "tp")\nmesh(dp=4, tp=2)', {"dp": 4, "tp": 2}, P("dp", "tp")),
    ('P(None, "tp")\nmesh(dp=4, tp=2)', {"dp": 4, "tp": 2}, P(None, "tp")),
]


def losses() -> None:
    """Train for six epochs in each way, and draw the losses."""
    runs = [digits.Run(name) for name in ("torch, CPU", "calque, eager", "calque.jit")]
    ways = [("cpu", False, None), ("jax", False, 44), ("jax", True, None)]
    styles = [
        {"color": "tab:gray", "linewidth": 3.2, "alpha": 0.45},
        {"color": "tab:orange", "linewidth": 1.4, "linestyle": "--"},
        {"color": "tab:blue", "linewidth": 1.2},
    ]
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for run, (device, jit, limit), style in zip(runs, ways, styles, strict=True):
        digits.train(run, device, jit, epochs=6, dropout=True, limit=limit)
        axes.plot(range(1, len(run.losses) + 1), run.losses, label=run.name, **style)
    axes.set(xlabel="step", ylabel="training loss", yscale="log")
    axes.grid(alpha=0.25)
    axes.legend()
    figure.savefig(ASSETS / "digits.svg", metadata={"Date": None})


def placements() -> None:
    """Draw which part of a matrix each device holds."""
    figure, rows = plt.subplots(1, len(PLACEMENTS), figsize=(9, 2.9), layout="constrained")
    for axes, (title, sizes, spec) in zip(rows, PLACEMENTS, strict=True):
        matrix = torch.zeros(SIZE, SIZE, device="jax")
        sharding.shard(matrix, spec, mesh=sharding.mesh(**sizes))
        held: dict[tuple[int, int, int, int], list[int]] = {}
        for part in sharding.local(matrix):
            (top, bottom, _), (left, right, _) = (s.indices(SIZE) for s in part.index)
            held.setdefault((left, top, right - left, bottom - top), []).append(part.device.id)
        for place, ((left, top, width, height), devices) in enumerate(held.items()):
            color = plt.get_cmap("Pastel1")(place % 9)
            axes.add_patch(Rectangle((left, top), width, height, facecolor=color, edgecolor="0.3"))
            text = ", ".join(map(str, devices)) if len(devices) < SIZE else "0 to 7"
            middle = left + width / 2, top + height / 2
            axes.text(*middle, text, ha="center", va="center", fontsize=9)
        axes.set(xlim=(0, SIZE), ylim=(SIZE, 0), aspect="equal", xticks=[], yticks=[])
        axes.set_title(title, fontsize=9, family="monospace")
    figure.savefig(ASSETS / "placements.svg", metadata={"Date": None})


def federated() -> None:
    """Train by three algorithms over a hundred clients, and draw the accuracies."""
    curves = federated_digits.curves(rounds=100, concentration=0.1)
    learning.plot_curves(curves, ASSETS / "federated_digits.svg")


if __name__ == "__main__":
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "calque"
    torch.set_num_threads(1)
    placements()
    losses()
    federated()
