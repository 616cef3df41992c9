"""Pictures of placements, which show the part that each device holds."""

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import Any

from jax.sharding import Sharding

Box = tuple[tuple[int, int], ...]


def boxes(sharding: Sharding, shape: tuple[int, ...]) -> dict[Box, list[int]]:
    """Returns the start and end of each part in each dimension, and the devices that hold it."""
    found: dict[Box, list[int]] = defaultdict(list)
    for device, index in sharding.devices_indices_map(shape).items():
        slices = index if index is not None else ()
        box = tuple(s.indices(n)[:2] for s, n in zip(slices, shape, strict=True))
        found[box].append(device.id)
    return {box: sorted(found[box]) for box in sorted(found)}


def table(sharding: Sharding, shape: tuple[int, ...]) -> list[list[str]] | None:
    """Returns the parts as a table with headings; None if more than two dimensions are split."""
    parts = boxes(sharding, shape)
    spans = [sorted({box[i] for box in parts}) for i in range(len(shape))]
    split = [i for i, own in enumerate(spans) if len(own) > 1]
    if len(split) > 2:
        return None
    down = split[0] if split else None
    across = split[1] if len(split) > 1 else None
    columns = [None] if across is None else spans[across]
    rows = [None] if down is None else spans[down]
    held = {
        (box[down] if down is not None else None, box[across] if across is not None else None): ids
        for box, ids in parts.items()
    }
    head = [_corner(down, across), *(_span(column) for column in columns)]
    return [head, *([_span(row), *(_ids(held[row, c]) for c in columns)] for row in rows)]


def _corner(down: int | None, across: int | None) -> str:
    if down is None:
        return ""
    return f"dim {down}" if across is None else f"dim {down} \\ dim {across}"


def _span(span: Any) -> str:
    return "all" if span is None else f"{span[0]}:{span[1]}"


def _ids(ids: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for one in ids:
        if runs and one == runs[-1][-1] + 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    said = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return ",".join(said)


def text(sharding: Sharding, shape: tuple[int, ...]) -> str:
    """Returns a picture for a terminal."""
    rows = table(sharding, shape)
    if rows is None:
        parts = boxes(sharding, shape)
        return "\n".join(
            f"[{', '.join(f'{a}:{b}' for a, b in box)}]  device {_ids(ids)}"
            for box, ids in parts.items()
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "+".join("-" * (width + 2) for width in widths)
    lines = ["|".join(f" {c.center(w)} " for c, w in zip(r, widths, strict=True)) for r in rows]
    return "\n".join([lines[0], *(part for line in lines[1:] for part in (rule, line))])


_COLOURS = ("#cfe3f7", "#fbe0c4", "#d5efd0", "#f6d0d8", "#e4d9f4", "#f7f0c2", "#cdeeee", "#e8ddd0")


def html(sharding: Sharding, shape: tuple[int, ...]) -> str:
    """Returns a picture for a notebook."""
    rows = table(sharding, shape)
    if rows is None:
        return f"<pre>{escape(text(sharding, shape))}</pre>"
    lines = []
    for i, row in enumerate(rows):
        cells = [
            f"<th>{escape(cell)}</th>"
            if not i or not j
            else f"<td style='background:{_colour(cell)};color:#000;text-align:center;"
            f"padding:8px'>device {escape(cell)}</td>"
            for j, cell in enumerate(row)
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _colour(ids: str) -> str:
    first = ids.replace("-", ",").split(",")[0]
    return _COLOURS[int(first) % len(_COLOURS)]
