"""`calque doctor`: shows versions and devices, and tries each entry point to XLA once."""

import platform
from collections.abc import Callable
from importlib import metadata
from typing import Any

import click

from calque_cli.output import as_json, coloured, emit

_PACKAGES = ("calque", "torch", "jax", "jaxlib", "numpy")


@click.command("doctor")
@as_json
@click.pass_context
def command(ctx: click.Context, json_: bool) -> None:
    """Show versions and devices, and try every way into XLA once.

    Exits with status 1 if one of them fails.
    """
    found = {"versions": _versions(), "devices": _devices(), "checks": _checks()}
    failed = [row for row in found["checks"] if row["status"] == "failed"]
    if json_:
        emit(found)
    else:
        click.echo("  ".join(f"{name} {version}" for name, version in found["versions"].items()))
        click.echo(f"devices: {', '.join(found['devices'])}")
        for row in found["checks"]:
            mark = coloured(
                row["status"], {"ok": "green", "failed": "red"}.get(row["status"], "yellow")
            )
            click.echo(f"{mark}  {row['name']}{': ' + row['why'] if row['why'] else ''}")
    ctx.exit(1 if failed else 0)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "missing"
    return versions


def _devices() -> list[str]:
    try:
        import jax

        return [f"{device.device_kind} ({device})" for device in jax.devices()]
    except Exception as error:
        return [f"none: {error}"]


def _checks() -> list[dict[str, str]]:
    rows = []
    for name, check in _CHECKS.items():
        status, why = "ok", ""
        try:
            check()
        except ImportError as error:
            status, why = ("failed" if name == "import calque" else "skipped"), str(error)
        except Exception as error:
            status, why = "failed", f"{type(error).__name__}: {error}".splitlines()[0]
        rows.append({"name": name, "status": status, "why": why})
        if name == "import calque" and status == "failed":
            break
    return rows


def _import() -> None:
    import calque  # noqa: F401


def _model() -> tuple[Any, Any, Any]:
    """Returns a small network on the device, its input, and its result on the CPU."""
    import torch

    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), torch.randn(5, 4)
    expected = model(x).detach()
    return model.to("jax"), x.to("jax"), expected


def _agrees(run: Callable[[Any, Any], Any]) -> None:
    import torch

    model, x, expected = _model()
    result = run(model, x)
    if not isinstance(result, torch.Tensor):
        import numpy

        result = torch.from_numpy(numpy.array(result))
    torch.testing.assert_close(result.detach().cpu(), expected)


def _training() -> None:
    import torch

    import calque

    model, x, _ = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    @calque.jit
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(x).item() for _ in range(5)]
    if not losses[-1] < losses[0]:
        raise RuntimeError(f"the loss of a jitted training step does not decrease: {losses}")


def _jitted(model: Any, x: Any) -> Any:
    import calque

    return calque.jit(model)(x)


def _compiled(model: Any, x: Any) -> Any:
    import torch

    return torch.compile(model, backend="calque")(x)


def _traced(model: Any, x: Any) -> Any:
    import calque

    return calque.trace(model, x)(x)


def _recorded(model: Any, x: Any) -> Any:
    import calque

    return calque.record(model, x).graph()(x)


def _functional(model: Any, x: Any) -> Any:
    import calque

    apply, params = calque.functional(model)
    return apply(params, calque.to_jax(x))


def _exported(model: Any, x: Any) -> Any:
    import calque

    program = calque.export(model, (x,))
    return calque.load_exported(program.serialize(), model.state_dict())(x)


def _dlpack() -> None:
    import numpy
    import torch

    import calque  # noqa: F401

    x = torch.arange(6.0, device="jax").reshape(2, 3)
    numpy.testing.assert_array_equal(numpy.from_dlpack(x), x.cpu().numpy())


def _wide() -> None:
    import torch

    import calque  # noqa: F401

    big = torch.tensor(2**40 + 1, device="jax")
    fine = torch.tensor(1.0, dtype=torch.float64, device="jax") + 1e-12
    if big.item() != 2**40 + 1 or fine.item() == 1.0:
        raise RuntimeError("int64 or float64 lose digits on the device")


_CHECKS: dict[str, Callable[[], None]] = {
    "import calque": _import,
    "eager operators": lambda: _agrees(lambda model, x: model(x)),
    "int64 and float64": _wide,
    "DLPack": _dlpack,
    "calque.jit": lambda: _agrees(_jitted),
    "calque.jit of a training step": _training,
    "torch.compile(backend='calque')": lambda: _agrees(_compiled),
    "calque.trace": lambda: _agrees(_traced),
    "calque.record": lambda: _agrees(_recorded),
    "calque.functional": lambda: _agrees(_functional),
    "calque.export": lambda: _agrees(_exported),
}
