"""The subcommands of `calque`, each loaded when it is called."""

import difflib
import importlib
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import click

from calque_cli import output

VERBS = {
    "demo": "Train a small network on the CPU, on the device and jitted, side by side.",
    "doctor": "Check versions and devices, and try every way into XLA once.",
    "explain": "Explain whether and how a program can be captured, and at what cost.",
    "trace": "Print the graph of a program.",
    "record": "Run a program once, and print what it did.",
    "show": "Draw the graph of a program: in the terminal, or as a page with --html.",
    "ops": "List PyTorch operators: how the device implements them, and whether results agree.",
    "run": "Run a script, written for CUDA or torch.accelerator, on the device.",
    "bench": "Time a program: eager on the CPU, eager on the device, jitted.",
    "federated": "Inspect a federated computation, or train on clients with different data.",
    "launch": "Run a program in several connected processes.",
    "completion": "Print the script that completes commands in bash, zsh or fish.",
}
_HOME = __name__.rpartition(".")[0]


class _Subcommands(click.Group):
    """Lists the subcommands by name, and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        return importlib.import_module(f"{_HOME}.{cmd_name}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS)
            hint = f"Did you mean {' or '.join(near)}?" if near else "See calque --help."
            ctx.fail(f"there is no command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


def _version(ctx: click.Context, parameter: Any, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"calque {metadata.version('calque')}")
        ctx.exit()


@click.command(cls=_Subcommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_version,
    help="Print the version.",
)
def command() -> None:
    """PyTorch programs on XLA."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    try:
        command.main(args=None if arguments is None else list(arguments), prog_name="calque")
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception as error:  # raised by the user's program
        as_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
        return output.print_error(error, as_json=as_json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
