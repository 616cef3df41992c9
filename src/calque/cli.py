"""The command line: `calque ops`, `calque launch` (or `python -m calque ops`)."""

import argparse
import dataclasses
import fnmatch
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from calque.coverage import MODES, Status, statuses
from calque.launching import Job, start

_COLUMNS = ("eager", "jit", "grad")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; gives the exit status."""
    parser = argparse.ArgumentParser(prog="calque", description="PyTorch programs on XLA.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    _add_ops(verbs)
    _add_launch(verbs)
    options = parser.parse_args(arguments)
    return options.run(options)


def _add_ops(verbs: Any) -> None:
    ops = verbs.add_parser(
        "ops",
        help="which operators the device serves, and how",
        description="Operators of PyTorch's database: how the device serves them, and whether they "
        "agree with CPU PyTorch (yes, partly, no; empty where it does not apply).",
    )
    ops.add_argument("pattern", nargs="*", help="names or patterns, as 'linalg_*'; all if none")
    ops.add_argument("--served", choices=("rule", "decomposition", "CPU"))
    ops.add_argument("--gaps", action="store_true", help="only those with a known difference")
    ops.add_argument("--json", action="store_true", help="everything that is known, as JSON")
    ops.set_defaults(run=_ops)


def _add_launch(verbs: Any) -> None:
    launch = verbs.add_parser(
        "launch",
        help="run a program in several processes",
        description="Run a program in several processes that have joined each other: JAX has the "
        "devices of all. When one fails, it is named, and the others are ended.",
    )
    launch.add_argument("-n", "--processes", type=int, default=1, help="on this machine")
    launch.add_argument("--devices", type=int, help="CPU devices of each process")
    launch.add_argument("--nodes", type=int, default=1, help="machines that run as many processes")
    launch.add_argument("--node", type=int, default=0, help="the number of this machine, from 0")
    launch.add_argument("--coordinator", help="host:port, a free port of the first machine")
    launch.add_argument("program", help="the path of a Python program")
    launch.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    launch.set_defaults(run=_launch)


def _launch(options: argparse.Namespace) -> int:
    try:
        job = Job(
            [options.program, *options.arguments],
            options.processes,
            options.devices,
            options.nodes,
            options.node,
            options.coordinator,
        )
    except ValueError as error:
        print(f"calque launch: {error}", file=sys.stderr)
        return 2
    return start(job)


def _ops(options: argparse.Namespace) -> int:
    chosen = [
        status
        for status in statuses()
        if (not options.pattern or any(fnmatch.fnmatch(status.name, p) for p in options.pattern))
        and options.served in (None, status.served)
        and (status.failed or not options.gaps)
    ]
    if not chosen:
        print("no operator matches", file=sys.stderr)
        return 1
    print(_as_json(chosen) if options.json else _as_text(chosen))
    return 0


def _as_json(chosen: list[Status]) -> str:
    return json.dumps([dataclasses.asdict(status) for status in chosen], indent=2)


def _as_text(chosen: list[Status]) -> str:
    rows = [("operator", "family", "served by", *_COLUMNS)]
    rows += [(s.name, s.family, s.served, *(s.summary(mode) for mode in _COLUMNS)) for s in chosen]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if len(chosen) <= 10:
        for status in chosen:
            lines += [
                f"{status.name}, {MODES[mode]}, {dtype}: {reason}"
                for mode, reasons in status.failed.items()
                for dtype, reason in reasons.items()
            ]
    counts = Counter(status.served for status in chosen)
    served = ", ".join(f"{count} by {name}" for name, count in counts.most_common())
    return "\n".join([*lines, "", f"{len(chosen)} operators: {served}"])
