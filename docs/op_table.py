"""A mkdocs hook: fills the table of operators in ops.md from the table itself."""

from collections import defaultdict
from typing import Any

from calque.ops.registry import RULES

MARK = "<!-- op table -->"


def table() -> str:
    """The operators of each family, as a Markdown table."""
    families: dict[str, list[str]] = defaultdict(list)
    for name, rule in sorted(RULES.items()):
        families[rule.family].append(name.removeprefix("aten::"))
    rows = [
        f"| `{family}` | {len(names)} | {', '.join(f'`{name}`' for name in names)} |"
        for family, names in sorted(families.items())
    ]
    return "\n".join(["| family | rules | operators |", "|---|---:|---|", *rows])


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return markdown.replace(MARK, table())
