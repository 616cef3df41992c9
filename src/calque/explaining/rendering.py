"""A report as text, and as a table for notebooks."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calque.explaining.report import Report

_SHOWN = 12
_NAMES = 6
_MARKS = {True: "yes", False: "no", None: "not tried"}


def sections(report: Report) -> list[tuple[str, list[str]]]:
    """Each part of a report: its heading and its lines."""
    found: list[tuple[str, list[str]]] = [("captured by", _entry_points(report))]
    if report.operators:
        found.append(("operators", _operators(report)))
    if report.host_reads is not None:
        found.append(("values read by Python", _limited(report.host_reads) or ["none"]))
    lifted = [f"{len(names)} x {kind}{_named(names)}" for kind, names in report.lifted.items()]
    if lifted:
        lifted.append(f"{report.written} tensors written; {report.donated} buffers reused")
        found.append(("inputs", lifted))
    if report.guards:
        found.append(("compared before each call", report.guards))
    if report.traces:
        found.append(
            ("traces", _limited([f"{i}. {why}" for i, why in enumerate(report.traces, 1)]))
        )
    if report.flops is not None or report.memory:
        found.append(("one run, by XLA", _costs(report)))
    if report.differences is not None:
        agree = ["none: they agree within the tolerances of torch.testing"]
        found.append(("CPU and device disagree", _limited(report.differences, 3) or agree))
    if report.notes:
        found.append(("not looked at", report.notes))
    return found


def as_text(report: Report) -> str:
    """Returns the report for a terminal."""
    lines = [report.name]
    for heading, rows in sections(report):
        lines.append(f"  {heading}:")
        lines += [f"    {line}" for row in rows for line in row.splitlines()]
    return "\n".join(lines)


def as_html(report: Report) -> str:
    """Returns the report for a notebook."""
    rows = []
    for heading, lines in sections(report):
        shown = "<br>".join(html.escape(line).replace("\n", "<br>") for line in lines)
        rows.append(
            f'<tr><th style="text-align:left;vertical-align:top">{html.escape(heading)}</th>'
            f'<td style="text-align:left"><code>{shown}</code></td></tr>'
        )
    name = html.escape(report.name)
    return f"<table><caption>{name}</caption>{''.join(rows)}</table>"


def _entry_points(report: Report) -> list[str]:
    return [
        f"{one.name}: {_MARKS[one.captured]}{f' — {one.reason}' if one.reason else ''}"
        for one in report.entry_points
    ]


def _operators(report: Report) -> list[str]:
    total = sum(one.count for one in report.operators)
    kinds = {"rule": "rules", "decomposition": "decompositions", "fallback": "the CPU"}
    counts = {kind: sum(o.count for o in report.operators if o.served == kind) for kind in kinds}
    by = ", ".join(f"{count} by {kinds[kind]}" for kind, count in counts.items() if count)
    rows = [f"{total} calls of {len(report.operators)} operators: {by}"]
    other = [one for one in report.operators if one.served != "rule"]
    rows += [f"{one.name} x {one.count}: {one.served}" for one in other]
    often = [one for one in report.operators if one.served == "rule"][:_SHOWN]
    return rows + [", ".join(f"{one.name} x {one.count}" for one in often)] if often else rows


def _costs(report: Report) -> list[str]:
    rows = [] if report.flops is None else [f"{report.flops:,.0f} floating-point operations"]
    return rows + [f"{count:,} bytes of {kind}" for kind, count in report.memory.items()]


def _limited(rows: list[str], most: int = _SHOWN) -> list[str]:
    more = len(rows) - most
    return rows if more <= 0 else [*rows[:most], f"... and {more} more"]


def _named(names: list[str]) -> str:
    known = [name for name in names if name]
    if not known:
        return ""
    return f" ({', '.join(known[:_NAMES])}{', ...' if len(known) > _NAMES else ''})"
