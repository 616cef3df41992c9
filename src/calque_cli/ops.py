"""`calque ops`: which operators the device supports, and how."""

import dataclasses
import difflib
import fnmatch
from collections import Counter
from typing import Any

import click

from calque_cli.output import as_json, emit, table

_COLUMNS = ("eager", "jit", "grad")
_PREFIXES = ("aten::", "torch.", "aten.", "nn.functional.", "F.", "Tensor.", "nn_functional_")
_REASONS = 10
"""The maximum number of operators for which the reasons of differences are printed."""


@click.command("ops")
@click.argument("patterns", nargs=-1, metavar="[NAME]...")
@click.option("--served", type=click.Choice(["rule", "decomposition", "CPU"]), help="Only these.")
@click.option("--gaps", is_flag=True, help="List only operators with a known difference.")
@as_json
@click.pass_context
def command(
    ctx: click.Context, patterns: tuple[str, ...], served: str | None, gaps: bool, json_: bool
) -> None:
    """List operators of PyTorch's database, and how the device runs them.

    NAME is the name of an operator in any form (relu, F.relu, torch.linalg.svd), or a pattern such
    as 'linalg_*'. The columns tell whether it agrees with CPU PyTorch: yes, partly, no, or empty if
    that does not apply. Exits with status 1 if nothing matches.
    """
    from calque.coverage import statuses

    everything = statuses()
    chosen = [
        status
        for status in everything
        if (not patterns or any(_matches(status.name, pattern) for pattern in patterns))
        and served in (None, status.served)
        and (status.failed or not gaps)
    ]
    if not chosen:
        if json_:
            emit([])
        click.echo(_nothing(patterns, [status.name for status in everything]), err=True)
        ctx.exit(1)
    if json_:
        emit([dataclasses.asdict(status) for status in chosen])
    else:
        click.echo(_text(chosen))


def _plain(name: str) -> str:
    """Returns a name as in the database, without its module."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.replace(".", "_")


def _matches(name: str, pattern: str) -> bool:
    wanted = _plain(pattern)
    return any(fnmatch.fnmatchcase(n, wanted) for n in (name, _plain(name)))


def _nothing(patterns: tuple[str, ...], names: list[str]) -> str:
    known = {_plain(name): name for name in names}
    missing = [one for one in patterns if not any(_matches(name, one) for name in names)]
    if patterns and not missing:
        return f"no operator that matches {' '.join(patterns)} is of the kind asked for"
    near = [
        known[found]
        for pattern in missing
        for found in difflib.get_close_matches(_plain(pattern), known, 5, 0.6)
    ]
    said = f"no operator matches {' '.join(patterns)}" if patterns else "no operator matches"
    return f"{said}; near: {', '.join(dict.fromkeys(near))}" if near else said


def _text(chosen: list[Any]) -> str:
    from calque.coverage import MODES

    rows = [("operator", "family", "served by", *_COLUMNS)]
    rows += [(s.name, s.family, s.served, *(s.summary(mode) for mode in _COLUMNS)) for s in chosen]
    lines = [table(rows)]
    if len(chosen) <= _REASONS:
        for status in chosen:
            lines += [
                f"{status.name}, {MODES[mode]}, {dtype}: {reason}"
                for mode, reasons in status.failed.items()
                for dtype, reason in reasons.items()
            ]
    counts = Counter(status.served for status in chosen)
    served = ", ".join(f"{count} by {name}" for name, count in counts.most_common())
    return "\n".join([*lines, "", f"{len(chosen)} operator{'s' * (len(chosen) != 1)}: {served}"])
