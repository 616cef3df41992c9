"""`calque launch program.py`."""

import sys
import time

import click

from calque_cli.output import emit
from calque_cli.starting import Job, start


@click.command("launch", context_settings={"ignore_unknown_options": True})
@click.option("-n", "--processes", type=int, default=1, help="Processes on this machine.")
@click.option("--devices", type=int, help="CPU devices of each process.")
@click.option(
    "--nodes", type=int, default=1, help="Number of machines, each with as many processes."
)
@click.option("--node", type=int, default=0, help="The number of this machine, from 0.")
@click.option("--coordinator", help="host:port, a free port of the first machine.")
@click.option(
    "--json",
    "json_",
    is_flag=True,
    help="Print one JSON value at the end; what the program prints goes to standard error.",
)
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    processes: int,
    devices: int | None,
    nodes: int,
    node: int,
    coordinator: str | None,
    json_: bool,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a program in several connected processes.

    JAX sees the devices of all of them. If one fails, it is named, and the others are ended.
    """
    try:
        job = Job([program, *arguments], processes, devices, nodes, node, coordinator)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not json_:
        ctx.exit(start(job))
    started = time.perf_counter()
    status = start(job, sys.stderr.fileno())
    seconds = time.perf_counter() - started
    emit({"program": program, "processes": processes, "status": status, "seconds": seconds})
    ctx.exit(status)


command.allow_interspersed_args = False  # later options belong to the program
