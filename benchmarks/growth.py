"""How a training step grows: with its parameters, its batch, its width and its layers.

    python -m benchmarks.growth                 # tables, and docs/assets/growth.svg
    python -m benchmarks.growth --quick         # the small half of each row, without a picture
    python -m benchmarks.growth --rows width depth --picture /tmp/growth.svg

Each row has calque.jit, hand-written JAX, torch eager and inductor, which start from equal
weights, and whose first losses must agree. The picture has both axes logarithmic: a slope of one is
a step that takes twice as long for twice as much.
"""

from benchmarks import one_core  # noqa: F401  (first)

# isort: split
from benchmarks import common
from benchmarks.models import GPT, MLP, Case, text
from benchmarks.train_step import COLUMNS, agree, candidates

# isort: split
import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch._dynamo

PICTURE = Path(__file__).parents[1] / "docs" / "assets" / "growth.svg"
STYLES = ("o-", "s--", "^:", "d-.")


@dataclass(frozen=True)
class Growth:
    """A row of ever larger steps.

    Attributes:
        label: what grows.
        optimizer: the optimizer of the steps.
        sizes: how large it is in each.
        case: the model and batch of a size.
        compiled: the largest size for inductor, which takes minutes to compile more.
    """

    label: str
    optimizer: str
    sizes: tuple[int, ...]
    case: Callable[[int], Case]
    compiled: int


def _chain(parameters: int) -> Case:
    widths = (16,) * (parameters // 2 + 1)
    data = torch.randn(8, 16), torch.randint(10, (8,))
    return Case(f"{parameters} parameters", "mlp", lambda: MLP(widths), lambda: data)


def _batch(size: int) -> Case:
    return Case(f"batch of {size}", "gpt", lambda: GPT(depth=2), lambda: text(size))


def _width(size: int) -> Case:
    return Case(f"width {size}", "gpt", lambda: GPT(width=size, depth=2), lambda: text(2))


def _depth(size: int) -> Case:
    return Case(f"{size} layers", "gpt", lambda: GPT(depth=size), lambda: text(2))


ROWS = {
    "parameters": Growth(
        "parameters, linear layers of 16", "SGD", (10, 30, 100, 300, 1_000, 5_000), _chain, 300
    ),
    "batch": Growth("batch of a GPT of 2 layers", "AdamW", (1, 2, 4, 8, 16, 32), _batch, 32),
    "width": Growth("width of a GPT of 2 layers", "AdamW", (32, 64, 128, 256, 512), _width, 512),
    "depth": Growth("layers of a GPT of width 128", "AdamW", (1, 3, 6, 12, 24, 48), _depth, 12),
}


def measure(
    growth: Growth, sizes: Sequence[int], rounds: tuple[int, int], clock: Callable[[], float]
) -> list[common.Times]:
    """The time of a step of each way to train, for each size."""
    found = []
    for size in sizes:
        torch._dynamo.reset()
        inductor = rounds[0] > 1 and size <= growth.compiled
        steps = candidates(growth.case(size), growth.optimizer, inductor)
        agree(steps)
        found.append(common.interleave(steps, *rounds, clock=clock))
        print(f"{growth.label}: {size} done", flush=True)
    return found


def show(growth: Growth, sizes: Sequence[int], times: Sequence[common.Times]) -> None:
    """Print the table of a row."""
    rows = []
    for size, one in zip(sizes, times, strict=True):
        ours = one["calque.jit"]
        spoken = [common.milliseconds(one[n]) if n in one else "-" for n in COLUMNS]
        ratios = [f"{ours / one[n]:.2f}" if n in one else "-" for n in COLUMNS[1:]]
        rows.append([f"{size:,}", *spoken, *ratios])
    header = [growth.label, *(f"{n}, ms" for n in COLUMNS), *(f"/ {n}" for n in COLUMNS[1:])]
    common.table(f"A step with {growth.optimizer}", header, rows)


def draw(measured: dict[str, tuple[Sequence[int], list[common.Times]]], picture: Path) -> None:
    """Draw the rows, each in its own axes."""
    import matplotlib as mpl
    import matplotlib.ticker
    from matplotlib import pyplot as plt

    mpl.use("svg")
    mpl.rcParams["svg.fonttype"] = "none"  # text, not the outlines of its letters
    figure, axes = plt.subplots(1, len(measured), figsize=(3.2 * len(measured), 3.2), squeeze=False)
    for axis, (name, (sizes, times)) in zip(axes[0], measured.items(), strict=True):
        for column, style in zip(COLUMNS, STYLES, strict=True):
            known = [(n, 1e3 * t[column]) for n, t in zip(sizes, times, strict=True) if column in t]
            if known:
                axis.plot(*zip(*known, strict=True), style, label=column, markersize=4)
        axis.set(xscale="log", yscale="log", title=ROWS[name].label, xlabel=name)
        axis.title.set_fontsize(9)
        axis.set_xticks(sizes, [f"{n:,}" for n in sizes], fontsize=8)
        axis.minorticks_off()
        axis.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("ms a step")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None})
    print(f"\n{picture}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, and draw the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small steps, one round")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--picture", type=Path, help="where the picture goes")
    parser.add_argument("--cpu-time", action="store_true", help="for a machine that is busy")
    given = parser.parse_args(arguments)
    clock = time.process_time if given.cpu_time else time.perf_counter
    measured = {}
    for name in given.rows:
        growth = ROWS[name]
        sizes = growth.sizes[:2] if given.quick else growth.sizes
        times = measure(growth, sizes, (1, 2) if given.quick else (9, 5), clock)
        measured[name] = sizes, times
        show(growth, sizes, times)
    picture = given.picture or (None if given.quick else PICTURE)
    if picture is not None:
        draw(measured, picture)


if __name__ == "__main__":
    main()
