"""`calque record module:name`."""

import click

from calque_cli.output import as_json, emit, refuse
from calque_cli.program import loaded, program_options
from calque_cli.trace import node_of


@click.command("record")
@program_options
@click.option(
    "--level",
    type=click.Choice(["module", "function", "aten"]),
    default="function",
    help="Layers, functions of torch, or operators.",
)
@as_json
@click.pass_context
def command(
    ctx: click.Context,
    program: str,
    inputs: tuple[str, ...],
    example: str | None,
    level: str,
    json_: bool,
) -> None:
    """Run a program once on example inputs, and print what it did."""
    fn, args = loaded(program, inputs, example)
    import calque

    try:
        recording = calque.record(fn, *args)
        graph = recording.graph(level=level)  # pyright: ignore[reportArgumentType]
    except calque.TraceError as error:
        refuse(ctx, "not recorded:", error, json_)
    if json_:
        emit([node_of(node) for node in graph.graph.nodes])
    else:
        click.echo(str(calque.show(recording, level=level)))  # pyright: ignore[reportArgumentType]
