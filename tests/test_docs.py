"""What the documentation shows runs."""

import re
from pathlib import Path

import pytest

from tests import new_process

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


ALONE = {"in-200-lines.md"}
"""Pages that run in a process of their own: it registers a device, and there is room for one."""

ON_DEVICES = {"sharding.md"}
"""Pages that run on eight devices alone, in `tests/distributed/on_devices/test_page.py`."""


def name_of(page: Path) -> str:
    """The page's path below docs/; of README.md its name."""
    return str(page.relative_to(DOCS)) if page.is_relative_to(DOCS) else page.name


def program(page: Path) -> str:
    """The page's Python blocks at their own line numbers, as one program."""
    text = page.read_text()
    lines = [""] * (text.count("\n") + 1)
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        for offset, line in enumerate(block.group(1).splitlines()):
            lines[first + offset] = line
    return "\n".join(lines)


LONG = ["one-model.md"]  # runs in the conformance suite
RUN = [
    pytest.param(p, id=name_of(p), marks=[pytest.mark.conformance] * (name_of(p) in LONG))
    for p in PAGES
    if BLOCK.search(p.read_text()) and name_of(p) not in ON_DEVICES
]


@pytest.mark.parametrize("page", RUN)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name_of(page) in ALONE:
        new_process.check(program(page), filter="error")
        return
    exec(compile(program(page), str(page), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    links = LINK.findall(BLOCK.sub("", page.read_text()))
    assert [link for link in links if not (page.parent / link).exists()] == []
