"""`calque bench module:name`: ratios, measured in one process."""

import copy
import time
from collections.abc import Callable
from typing import Any

import click

from calque.upstream.torch_internals import tree_leaves
from calque_cli.output import as_json, emit, table
from calque_cli.program import loaded, program_options


@click.command("bench")
@program_options
@click.option("--seconds", type=float, default=1.0, help="How long to time each way.")
@as_json
def command(
    program: str, inputs: tuple[str, ...], example: str | None, seconds: float, json_: bool
) -> None:
    """Time a program: eager on the CPU, eager on the device, jitted.

    The ways take turns in one process, and every call is waited for; the ratio is to eager PyTorch
    on the CPU.
    """
    fn, args = loaded(program, inputs, example)
    rows = _measured(fn, args, seconds)
    if json_:
        emit(rows)
        return
    cells = [("way", "first call", "a call", "ratio to the CPU")]
    cells += [
        (r["way"], f"{r['first']:.3f} s", f"{r['seconds'] * 1e6:,.0f} µs", f"{r['ratio']:.2f}")
        for r in rows
    ]
    click.echo(table(cells))


def _measured(fn: Any, args: tuple[Any, ...], seconds: float) -> list[dict[str, Any]]:
    import torch

    import calque
    from calque.upstream.torch_internals import pytree

    def on(device: str) -> tuple[Any, tuple[Any, ...]]:
        moved = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().to(device), args)
        is_module = isinstance(fn, torch.nn.Module)
        return (copy.deepcopy(fn).to(device) if is_module else fn), moved

    ways: dict[str, Callable[[], Any]] = {}
    model, given = on("cpu")
    ways["PyTorch, eager on the CPU"] = lambda: model(*given)
    device_model, device_given = on("jax")
    ways["calque, eager on the device"] = lambda: device_model(*device_given)
    jitted = calque.jit(on("jax")[0])
    ways["calque.jit"] = lambda: jitted(*device_given)
    first = {way: _timed(run) for way, run in ways.items()}
    for run in ways.values():
        _timed(run)
    times: dict[str, list[float]] = {way: [] for way in ways}
    end = time.perf_counter() + seconds * len(ways)
    while time.perf_counter() < end:
        for way, run in ways.items():
            times[way].append(_timed(run))
    median = {way: sorted(found)[len(found) // 2] for way, found in times.items()}
    base = next(iter(median.values()))
    return [
        {"way": way, "first": first[way], "seconds": median[way], "ratio": median[way] / base}
        for way in ways
    ]


def _timed(run: Callable[[], Any]) -> float:
    import torch

    started = time.perf_counter()
    result = run()
    for leaf in tree_leaves(result):
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "jax":
            torch.jax.synchronize()
            break
    return time.perf_counter() - started
