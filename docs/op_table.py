"""A mkdocs hook: fills the tables of operators in ops.md from what is known about them."""

from collections import Counter, defaultdict
from typing import Any

from calque.coverage import Status, statuses
from calque.ops.table.registry import RULES


def rules() -> str:
    """The rules of each family, as a Markdown table."""
    families: dict[str, list[str]] = defaultdict(list)
    for name, rule in sorted(RULES.items()):
        families[rule.family].append(name.removeprefix("aten::"))
    rows = [
        f"| `{family}` | {len(names)} | {', '.join(f'`{name}`' for name in names)} |"
        for family, names in sorted(families.items())
    ]
    return "\n".join(["| family | rules | operators |", "|---|---:|---|", *rows])


def counts() -> str:
    """How many operators are served how."""
    served = Counter(status.served for status in statuses())
    rows = [f"| {name} | {count} |" for name, count in served.most_common()]
    return "\n".join(["| served by | operators |", "|---|---:|", *rows])


def operators() -> str:
    """Every operator of PyTorch's database, as a Markdown table."""
    head = "| operator | family | served by | eager | jit | gradient | differences |"
    return "\n".join([head, "|---|---|---|---|---|---|---|", *map(_row, statuses())])


def _row(status: Status) -> str:
    cells = [status.summary(mode) for mode in ("eager", "jit", "grad")]
    reasons = {reason for one in status.failed.values() for reason in one.values()}
    by = status.served
    if status.through:
        by += f" ({', '.join(f'`{name}`' for name in status.through)})"
    cells = [f"`{status.name}`", status.family, by, *cells, "; ".join(sorted(reasons))]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


TABLES = {"rules": rules, "counts": counts, "operators": operators}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    for name, table in TABLES.items():
        mark = f"<!-- table of {name} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, table())
    return markdown
