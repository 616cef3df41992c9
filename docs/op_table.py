"""A mkdocs hook: the tables of operators, from what is known about them.

Fills the marks in ops.md, and makes a page for each group of PyTorch's operators.
"""

from collections import Counter, defaultdict
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from calque.coverage import Status, statuses
from calque.ops.table.registry import RULES

NAMESPACES = {
    "nn_functional_": ("nn-functional", "torch.nn.functional"),
    "linalg_": ("linalg", "torch.linalg"),
    "fft_": ("fft", "torch.fft"),
    "special_": ("special", "torch.special"),
    "signal_": ("signal", "torch.signal"),
    "masked_": ("masked", "torch.masked, and masked operators"),
    "_foreach_": ("foreach", "torch._foreach: operators on lists of tensors"),
}
"""The page and the heading of operators whose names in PyTorch's database begin so."""

LETTERS = {"a-c": "a to c", "d-k": "d to k", "l-n": "l to n", "o-s": "o to s", "t-z": "t to z"}
"""The pages of all other operators, by their first letter."""

HEAD = (
    "| operator | family | served by | eager | jit | gradient | differences |",
    "|---|---|---|---|---|---|---|",
)


def rules() -> str:
    """The rules of each family, in a block that opens at a click."""
    families: dict[str, list[str]] = defaultdict(list)
    for name, rule in sorted(RULES.items()):
        families[rule.family].append(name.removeprefix("aten::"))
    blocks = [
        f'??? abstract "{family}: {len(names)}"\n\n    {", ".join(f"`{name}`" for name in names)}'
        for family, names in sorted(families.items())
    ]
    return "\n\n".join(blocks)


def counts() -> str:
    """How many operators are served how."""
    served = Counter(status.served for status in statuses())
    rows = [f"| {name} | {count} |" for name, count in served.most_common()]
    return "\n".join(["| served by | operators |", "|---|---:|", *rows])


def groups() -> dict[str, tuple[str, list[Status]]]:
    """The heading and the operators of each page, by the page's name."""
    headings = dict(NAMESPACES.values()) | {
        name: f"Operators from {said}" for name, said in LETTERS.items()
    }
    found: dict[str, list[Status]] = {name: [] for name in headings}
    for status in statuses():
        found[page_of(status.name)].append(status)
    return {name: (headings[name], found[name]) for name in headings}


def page_of(name: str) -> str:
    """The page of an operator, by its name in PyTorch's database.

    >>> page_of("linalg_cholesky"), page_of("__radd__"), page_of("where")
    ('linalg', 'o-s', 't-z')
    """
    for prefix, (page, _) in NAMESPACES.items():
        if name.startswith(prefix):
            return page
    letter = name.lstrip("_")[0].lower()
    return next(page for page in LETTERS if page[0] <= letter <= page[-1])


def listing() -> str:
    """The pages of operators, as a Markdown table."""
    rows = [
        f"| [{heading}](operators/{name}.md) | {len(found)} | {_right(found)} |"
        for name, (heading, found) in groups().items()
    ]
    return "\n".join(
        ["| page | operators | without a known difference |", "|---|---:|---:|", *rows]
    )


def _right(found: list[Status]) -> int:
    return sum(not any(status.failed.values()) for status in found)


def _page(heading: str, found: list[Status]) -> str:
    head = (
        f"---\nhide: [toc]\n---\n\n# {heading}\n\n"
        "Names are those of PyTorch's operator database, in which `linalg_` and the like stand for "
        "the module. [What the columns mean](../ops.md).\n"
    )
    return "\n".join([head, *HEAD, *map(_row, found)])


def _row(status: Status) -> str:
    cells = [status.summary(mode) for mode in ("eager", "jit", "grad")]
    reasons = {reason for one in status.failed.values() for reason in one.values()}
    by = status.served
    if status.through:
        by += f" ({', '.join(f'`{name}`' for name in status.through)})"
    cells = [f"`{status.name}`", status.family, by, *cells, "; ".join(sorted(reasons))]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


TABLES = {"rules": rules, "counts": counts, "pages of operators": listing}


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Called by mkdocs: adds the pages of operators."""
    for name, (heading, found) in groups().items():
        content = _page(heading, found)
        files.append(File.generated(config, f"operators/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    for name, table in TABLES.items():
        mark = f"<!-- table of {name} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, table())
    return markdown
