"""A mkdocs hook: the tables of models, from what the suite found (`models.json`).

Fills the marks in models.md, and makes a page for each package.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

MODES = ("forward", "forward-jit", "forward-compile", "train", "train-jit", "train-compile")
HEAD = (
    "| {} | forward, eager | jit | compile | training step, eager | jit | compile |",
    "|---|---|---|---|---|---|---|",
)


def findings() -> dict[str, dict[str, str]]:
    """By model and mode: "ok", with what was particular, or what went wrong."""
    return json.loads(Path(__file__).with_name("models.json").read_text())


def counts() -> str:
    """How many models of each package agree with the CPU, of how many that were tried."""
    packages: dict[str, list[dict[str, str]]] = defaultdict(list)
    for name, modes in findings().items():
        packages[name.partition("/")[0]].append(modes)
        packages["all"].append(modes)
    packages["all"] = packages.pop("all")
    rows = [
        f"| {package} | {' | '.join(_share(found, mode) for mode in MODES)} |"
        for package, found in packages.items()
    ]
    return "\n".join([HEAD[0].format("package"), HEAD[1], *rows])


def _share(found: list[dict[str, str]], mode: str) -> str:
    tried = [modes[mode] for modes in found if mode in modes]
    return f"{sum(verdict.startswith('ok') for verdict in tried)} of {len(tried)}"


def packages() -> list[str]:
    """The packages whose models were tried."""
    return list(dict.fromkeys(name.partition("/")[0] for name in findings()))


def listing() -> str:
    """Links to the pages of the packages."""
    return ", ".join(f"[{package}](zoo/{package}.md)" for package in packages())


def _page(package: str) -> str:
    """Every model of a package in every mode."""
    head = (
        f"---\nhide: [toc]\n---\n\n# Models of {package}\n\n"
        "[How they were tried, and what a cell says](../models.md).\n"
    )
    rows = [
        f"| `{name}` | {' | '.join(_spoken(modes.get(mode, '')) for mode in MODES)} |"
        for name, modes in findings().items()
        if name.startswith(f"{package}/")
    ]
    return "\n".join([head, HEAD[0].format("model"), HEAD[1], *rows])


def _spoken(verdict: str) -> str:
    if verdict.startswith("ok"):
        return "yes" + verdict.removeprefix("ok")
    return "**no**" if verdict else ""


def failures() -> str:
    """What went wrong, and why."""
    found = defaultdict(list)
    for name, modes in findings().items():
        for mode, verdict in modes.items():
            if not verdict.startswith("ok"):
                found[name, verdict.removeprefix("FAIL ").replace("|", " ")].append(mode)
    rows = [f"| `{name}` | {', '.join(modes)} | {why} |" for (name, why), modes in found.items()]
    return "\n".join(["| model | mode | what happens |", "|---|---|---|", *rows])


TABLES = {"model counts": counts, "packages": listing, "model failures": failures}


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Called by mkdocs: adds the pages of models."""
    for package in packages():
        files.append(File.generated(config, f"zoo/{package}.md", content=_page(package)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    for name, table in TABLES.items():
        mark = f"<!-- table of {name} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, table())
    return markdown
