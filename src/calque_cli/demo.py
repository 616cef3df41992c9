"""`calque demo`: one training program in three ways, side by side."""

import time
from typing import Any

import click

from calque_cli.output import as_json, emit, table

_WAYS = ("PyTorch on the CPU", "the device, eagerly", "the device, calque.jit")


@click.command("demo")
@click.option("--steps", type=click.IntRange(min=2), default=60, help="Training steps.")
@as_json
def command(steps: int, json_: bool) -> None:
    """Train a small network on two spirals: on the CPU, on the device, and jitted.

    Nothing is downloaded. The weights start out equal, so the losses are comparable.
    """
    rows = [_trained(way, steps) for way in _WAYS]
    if json_:
        emit(rows)
        return
    cells = [("way", "first loss", "last loss", "accuracy", "first step", "a step")]
    cells += [
        (
            row["way"],
            f"{row['losses'][0]:.4f}",
            f"{row['losses'][-1]:.4f}",
            f"{row['accuracy']:.0%}",
            f"{row['first']:.2f} s",
            f"{row['seconds'] * 1e3:.2f} ms",
        )
        for row in rows
    ]
    click.echo(table(cells))


def _spirals(count: int = 500) -> tuple[Any, Any]:
    """Returns the points of two arms, float32[2 * count, 2], and the arm of each."""
    import torch

    generator = torch.Generator().manual_seed(0)
    turn = torch.linspace(0.3, 1, count).sqrt() * 7
    arms = [
        torch.stack([turn * (turn + shift).cos(), turn * (turn + shift).sin()], 1) / 7
        for shift in (0, torch.pi)
    ]
    points = torch.cat(arms) + 0.02 * torch.randn(2 * count, 2, generator=generator)
    return points, torch.arange(2).repeat_interleave(count)


def _trained(way: str, steps: int) -> dict[str, Any]:
    import torch

    import calque

    torch.manual_seed(0)
    points, labels = _spirals()
    layers = [torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 2))
    if way != _WAYS[0]:
        model, points, labels = model.to("jax"), points.to("jax"), labels.to("jax")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(points: Any, labels: Any) -> Any:
        loss = torch.nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run = calque.jit(step) if way == _WAYS[2] else step
    losses, times = [], []
    for _ in range(steps):
        started = time.perf_counter()
        losses.append(run(points, labels).item())
        times.append(time.perf_counter() - started)
    right = (model(points).argmax(1) == labels).float().mean().item()
    later = sorted(times[1:])
    return {
        "way": way,
        "losses": losses,
        "accuracy": right,
        "first": times[0],
        "seconds": later[len(later) // 2],
    }
