"""Output of a verb: text for people, or one JSON value with `--json`."""

import json
import os
from typing import Any, NoReturn

import click

as_json = click.option("--json", "json_", is_flag=True, help="Print one JSON value.")


def emit(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=2, default=str))


def refuse(ctx: click.Context, what: str, error: object, json_: bool) -> NoReturn:
    """Tell why a verb has failed, and end with status 1."""
    if json_:
        emit({"error": str(error)})
    else:
        click.echo(f"{coloured(what, 'red')} {error}", err=True)
    ctx.exit(1)


def coloured(text: str, colour: str) -> str:
    """The text in a colour; click leaves colours out where it prints to no terminal."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour)


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows with their columns under each other."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
