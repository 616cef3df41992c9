"""`calque run script.py`: a script as it is, on the device."""

import runpy
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import click

from calque_cli.output import emit


@click.command("run", context_settings={"ignore_unknown_options": True})
@click.option(
    "--cpu-too",
    is_flag=True,
    help="Tensors and modules made without a device are made on the jax device.",
)
@click.option(
    "--json",
    "json_",
    is_flag=True,
    help="Print one JSON value at the end; what the script prints goes to standard error.",
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context, cpu_too: bool, json_: bool, script: str, arguments: tuple[str, ...]
) -> None:
    """Run a script, written for CUDA or torch.accelerator, on the jax device.

    What the script asks of "cuda" it gets of "jax": torch.cuda.is_available() is true, and
    tensors, modules, autocast and generators for "cuda" are the device's. torch.accelerator is
    the jax device by itself. A script for the CPU runs there, but with --cpu-too.
    """
    import calque  # noqa: F401
    from calque_cli.as_cuda import standing_in

    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    with standing_in(default=cpu_too):
        if not json_:
            runpy.run_path(script, run_name="__main__")
            return
        started = time.perf_counter()
        status = _status_of(script)
    emit({"script": script, "status": status, "seconds": time.perf_counter() - started})
    ctx.exit(status)


def _status_of(script: str) -> int:
    """Runs a script, and returns its exit status; what it prints goes to standard error."""
    with redirect_stdout(sys.stderr):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            if not isinstance(end.code, int | None):
                print(end.code)
                return 1
            return end.code or 0
        except Exception:
            sys.excepthook(*sys.exc_info())
            return 1
    return 0


command.allow_interspersed_args = False  # what follows the script is the script's
