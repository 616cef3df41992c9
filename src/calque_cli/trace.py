"""`calque trace module:name`."""

from typing import Any

import click

from calque_cli.output import as_json, emit, refuse
from calque_cli.program import loaded, program_options


@click.command("trace")
@program_options
@as_json
@click.pass_context
def command(
    ctx: click.Context, program: str, inputs: tuple[str, ...], example: str | None, json_: bool
) -> None:
    """Print the graph of a program that `calque.trace` returns.

    Exits with status 1 if it cannot be traced; the error names the line and a remedy.
    """
    fn, args = loaded(program, inputs, example)
    import calque

    try:
        graph = calque.trace(fn, *args)
    except calque.TraceError as error:
        refuse(ctx, "not traced:", error, json_)
    if json_:
        emit([node_of(node) for node in graph.graph.nodes])
    else:
        click.echo(graph.code.strip())


def node_of(node: Any) -> dict[str, Any]:
    """Returns a node of a graph, for JSON."""
    value = node.meta.get("val")
    found = {
        "name": node.name,
        "op": node.op,
        "target": getattr(node.target, "__name__", str(node.target)),
        "inputs": [one.name for one in node.all_input_nodes],
    }
    if hasattr(value, "shape"):
        found |= {"shape": list(map(str, value.shape)), "dtype": str(value.dtype)}
    if node.meta.get("origin") is not None:
        found["origin"] = str(node.meta["origin"])
    return found
