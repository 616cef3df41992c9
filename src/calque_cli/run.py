"""`calque run script.py`: runs an unchanged script on the device."""

import runpy
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from types import TracebackType

import click

from calque_cli.output import emit


@click.command("run", context_settings={"ignore_unknown_options": True})
@click.option(
    "--cpu-too",
    is_flag=True,
    help="Create tensors and modules without an explicit device on the jax device.",
)
@click.option(
    "--json",
    "json_",
    is_flag=True,
    help="Print one JSON value at the end; what the script prints goes to standard error.",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    cpu_too: bool,
    json_: bool,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a script, written for CUDA or torch.accelerator, on the jax device.

    "cuda" means the jax device: torch.cuda.is_available() is true, and tensors, modules, autocast
    and generators for "cuda" use the device. torch.accelerator always is the jax device. A script
    for the CPU runs on the CPU unless you pass --cpu-too.
    """
    if not is_module and not Path(script).is_file():
        raise click.BadParameter(f"there is no file '{script}'", ctx, param_hint="SCRIPT")
    import calque  # noqa: F401
    from calque_cli.as_cuda import standing_in

    sys.argv = [script, *arguments]
    sys.path.insert(0, "" if is_module else str(Path(script).resolve().parent))
    with standing_in(default=cpu_too):
        if not json_:
            ctx.exit(_status_of(script, is_module))
        started = time.perf_counter()
        with redirect_stdout(sys.stderr):
            status = _status_of(script, is_module)
    emit({"script": script, "status": status, "seconds": time.perf_counter() - started})
    ctx.exit(status)


def _status_of(script: str, is_module: bool) -> int:
    """Runs a script, and returns its exit status; prints only the script's part of a traceback."""
    try:
        if is_module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except (Exception, KeyboardInterrupt) as error:
        error.__traceback__ = _from_the_script(error)
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _from_the_script(error: BaseException) -> TracebackType | None:
    """Returns the traceback without the frames of this module and of runpy."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _is_ours(file: str) -> bool:
    return file in (__file__, "<frozen runpy>", runpy.__file__)


command.allow_interspersed_args = False  # later options belong to the script
