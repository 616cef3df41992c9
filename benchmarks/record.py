"""Recording a run, against the run itself and other ways to a graph.

    python -m benchmarks.record [--quick]

Times are CPU times, as multiples of a plain call of the model, in one process and one thread, on
models whose call takes 10 ms or more. The others do other things: torch.fx and torch.export look at
no data, and torch.jit.trace runs the model once to trace and again to check. torchlens takes part
where it is installed.
"""

from benchmarks import common  # first: PyTorch in one thread

# isort: split
import importlib.util
import math
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

import calque


def _conv(inner: int, outer: int, stride: int = 1) -> nn.Module:
    norm = nn.BatchNorm2d(outer)
    return nn.Sequential(nn.Conv2d(inner, outer, 3, stride, 1, bias=False), norm, nn.ReLU())


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = _conv(width, width), _conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(self.first(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norms[1](x))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_conv(3, 32), _conv(32, 64, 2), _conv(64, 128, 2)])
        self.up = nn.ModuleList([_conv(192, 64), _conv(96, 32)])

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
        for layer, other in zip(self.up, reversed(kept[:-1]), strict=True):
            x = layer(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), other], 1))
        return x


def _residuals(count: int, width: int) -> nn.Module:
    return nn.Sequential(_conv(3, width), *(Residual(width) for _ in range(count)))


def _blocks(count: int, width: int) -> nn.Module:
    return nn.Sequential(*(Block(width, 4) for _ in range(count)))


Make = Callable[[], tuple[nn.Module, Tensor]]
MODELS: dict[str, Make] = {
    "residual, 4 blocks of 64": lambda: (_residuals(4, 64), torch.randn(8, 3, 32, 32)),
    "residual, 8 blocks of 64": lambda: (_residuals(8, 64), torch.randn(4, 3, 32, 32)),
    "residual, 16 blocks of 32": lambda: (_residuals(16, 32), torch.randn(4, 3, 32, 32)),
    "transformer, 4 blocks of 256": lambda: (_blocks(4, 256), torch.randn(2, 128, 256)),
    "transformer, 8 blocks of 256": lambda: (_blocks(8, 256), torch.randn(2, 128, 256)),
    "transformer, 12 blocks of 384": lambda: (_blocks(12, 384), torch.randn(1, 128, 384)),
    "transformer, 2 blocks of 512": lambda: (_blocks(2, 512), torch.randn(4, 128, 512)),
    "U-Net": lambda: (UNet(), torch.randn(4, 3, 64, 64)),
    "MLP": lambda: (
        nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8))),
        torch.randn(128, 1024),
    ),
    "encoder of PyTorch's": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), 4),
        torch.randn(2, 128, 256),
    ),
    "VGG": lambda: (
        nn.Sequential(_conv(3, 64), _conv(64, 64, 2), _conv(64, 128), _conv(128, 128, 2)),
        torch.randn(4, 3, 96, 96),
    ),
    "LSTM": lambda: (nn.LSTM(128, 256, 2, batch_first=True), torch.randn(32, 64, 128)),
}


def ways(model: nn.Module, x: Tensor) -> dict[str, Callable[[], object]]:
    """What is timed, the plain call first."""
    found: dict[str, Callable[[], object]] = {
        "plain": lambda: model(x),
        "calque.record": lambda: calque.record(model, x),
        "with its graph": lambda: calque.record(model, x).graph(),
        "torch.fx": lambda: torch.fx.symbolic_trace(model),
        "torch.jit.trace": lambda: torch.jit.trace(model, x),
        "torch.export": lambda: torch.export.export(model, (x,)),
    }
    if importlib.util.find_spec("torchlens") is not None:
        found["torchlens"] = lambda: _torchlens(model, x)
    return found


def _torchlens(model: nn.Module, x: Tensor) -> object:
    import torchlens  # pyright: ignore[reportMissingImports]

    return torchlens.trace(model, x)


def works(way: Callable[[], object]) -> bool:
    try:
        way()
    except Exception:  # a dash in the table: the tracer cannot trace it
        return False
    return True


def ratios_of(names: list[str], chosen: Callable[[str], bool], rounds: int) -> dict[str, dict]:
    """For each model, the multiples of a plain call that the chosen ways take."""
    found: dict[str, dict] = {}
    for name in names:
        model, x = MODELS[name]()
        model.eval()
        with torch.no_grad():
            picked = {way: run for way, run in ways(model, x).items() if chosen(way)}
            able = {way: run for way, run in picked.items() if works(run)}
            times = common.interleave(able, rounds, 1, time.process_time)
        plain = times.pop("plain")
        found[name] = {"plain": plain, **{way: t / plain for way, t in times.items()}}
        print(name, {way: round(ratio, 3) for way, ratio in found[name].items()}, flush=True)
    return found


def main() -> None:
    quick = common.quick(__doc__)
    warnings.simplefilter("ignore")
    names, rounds = list(MODELS)[:: 4 if quick else 1], 3 if quick else 5
    # First the cases without graphs: each graph module is a new class, which Python has to update
    # whenever an attribute of nn.Module is replaced, here and by torch.fx.
    first = ratios_of(names, lambda way: way in ("plain", "calque.record"), rounds)
    others = ("calque.record", "torchlens")
    rest = ratios_of(names, lambda way: way not in others, rounds)
    # Last the cases that leave PyTorch's functions patched, which slows down plain calls, too.
    last = ratios_of(names, lambda way: way in ("plain", "torchlens"), rounds)
    for name in names if importlib.util.find_spec("torchlens") is not None else ():
        if "torchlens" in last[name]:
            slower = last[name]["plain"] / first[name]["plain"]
            rest[name]["torchlens"] = last[name]["torchlens"] * slower
    columns = ["calque.record", *dict.fromkeys(w for r in rest.values() for w in r if w != "plain")]
    rows, logs = [], {way: [] for way in columns}
    for name in names:
        ratios = {**rest[name], "calque.record": first[name]["calque.record"]}
        for way in columns:
            logs[way] += [math.log(ratios[way])] if way in ratios else []
        cells = (f"{ratios[way]:.2f}" if way in ratios else "-" for way in columns)
        rows.append([name, f"{first[name]['plain'] * 1000:.1f}", *cells])
    means = (f"{math.exp(sum(found) / len(found)):.2f}" for found in logs.values())
    rows.append(["geometric mean", "", *means])
    common.table("A recording, in calls", ["model", "plain, ms", *columns], rows)


if __name__ == "__main__":
    main()
