"""Output of a subcommand: text, or one JSON value with `--json`."""

import json
import os
import sys
import traceback
from typing import Any, NoReturn

import click

_HOME = os.path.dirname(os.path.abspath(__file__)) + os.sep
as_json = click.option("--json", "json_", is_flag=True, help="Print one JSON value.")


def emit(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=2, default=str))


def refuse(ctx: click.Context, what: str, error: object, json_: bool) -> NoReturn:
    """Print why a subcommand failed, and exit with status 1."""
    if json_:
        emit({"error": str(error)})
    else:
        click.echo(f"{coloured(what, 'red')} {error}", err=True)
    ctx.exit(1)


def print_error(error: Exception, as_json: bool) -> int:
    """Print an exception of the user's program, with the program's frames only.

    Returns:
        The exit status.
    """
    if as_json:
        emit({"error": f"{type(error).__name__}: {error}"})
        return 1
    steps = list(traceback.walk_tb(error.__traceback__))
    own = [i for i, (frame, _) in enumerate(steps) if frame.f_code.co_filename.startswith(_HOME)]
    step = error.__traceback__
    for _ in range(own[-1] + 1 if own else 0):
        step = step and step.tb_next
    sys.excepthook(type(error), error.with_traceback(step), step)
    return 1


def coloured(text: str, colour: str) -> str:
    """Returns the text in a colour; click removes colours if the output is not a terminal."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour)


def table(rows: list[tuple[str, ...]]) -> str:
    """Returns rows with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
