"""`calque run script.py`: a script as it is, on the device."""

import runpy
import sys
from pathlib import Path

import click


@click.command("run", context_settings={"ignore_unknown_options": True})
@click.option(
    "--cpu-too",
    is_flag=True,
    help="Tensors and modules made without a device are made on the jax device.",
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(cpu_too: bool, script: str, arguments: tuple[str, ...]) -> None:
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
        runpy.run_path(script, run_name="__main__")


command.allow_interspersed_args = False  # what follows the script is the script's
