"""`calque completion bash`."""

import click
from click.shell_completion import get_completion_class

from calque_cli.output import as_json, emit


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@as_json
def command(shell: str, json_: bool) -> None:
    """Print the script that completes `calque` in a shell.

    In bash: eval "$(calque completion bash)".
    """
    from calque_cli.main import command as calque

    made = get_completion_class(shell)
    assert made is not None
    script = made(calque, {}, "calque", "_CALQUE_COMPLETE").source()
    if json_:
        emit({"shell": shell, "script": script})
    else:
        click.echo(script)
