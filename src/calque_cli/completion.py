"""`calque completion bash`."""

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that completes `calque` in a shell.

    In bash: eval "$(calque completion bash)".
    """
    from calque_cli.main import command as calque

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(calque, {}, "calque", "_CALQUE_COMPLETE").source())
