"""`calque explain module:name`."""

import click

from calque_cli.output import as_json, emit
from calque_cli.program import loaded, program_options


@click.command("explain")
@program_options
@click.option("--no-compare", is_flag=True, help="Do not compare the CPU with the device.")
@as_json
@click.pass_context
def command(
    ctx: click.Context,
    program: str,
    inputs: tuple[str, ...],
    example: str | None,
    no_compare: bool,
    json_: bool,
) -> None:
    """Explain how a program runs on XLA.

    Shows which entry points accept it or why not, how its operators run, where Python reads values,
    what is compared before each call, memory and operations according to XLA, and where CPU and
    device disagree. Exits with status 1 if no entry point accepts it.
    """
    fn, args = loaded(program, inputs, example)
    import calque

    report = calque.explain(fn, *args, compare=not no_compare)
    if json_:
        emit(report.to_dict())
    else:
        click.echo(str(report))
    ctx.exit(0 if report.captured else 1)
