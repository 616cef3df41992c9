"""`calque show module:name`."""

from pathlib import Path

import click

from calque_cli.output import emit
from calque_cli.program import loaded, program_options


@click.command("show")
@program_options
@click.option("--html", type=click.Path(dir_okay=False), help="Write an HTML page to this file.")
@click.option("--depth", type=click.IntRange(min=1), help="How many levels of modules to show.")
@click.option(
    "--level", type=click.Choice(["module", "function", "aten"]), help="Level of the graph."
)
@click.option("--json", "json_", is_flag=True, help="Print the graph as JSON (model-explorer's).")
def command(
    program: str,
    inputs: tuple[str, ...],
    example: str | None,
    html: str | None,
    depth: int | None,
    level: str | None,
    json_: bool,
) -> None:
    """Draw the graph of a program, recorded while it runs once."""
    if html is not None and not Path(html).absolute().parent.is_dir():
        raise click.UsageError(f"there is no folder {Path(html).parent}")
    fn, args = loaded(program, inputs, example)
    import calque

    view = calque.show(fn, *args, depth=depth, level=level)  # pyright: ignore[reportArgumentType]
    if html is not None:
        view.save(html)
        emit({"page": html}) if json_ else click.echo(html)
    elif json_:
        click.echo(view.model_explorer())
    else:
        click.echo(str(view))
