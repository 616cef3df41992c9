"""What the documentation shows of sharded models runs on eight devices."""

from pathlib import Path

import pytest

from tests.test_docs import DOCS, ON_DEVICES, program


@pytest.mark.parametrize("name", ["distributed.md", *ON_DEVICES])
def test_the_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / name
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {"__name__": "__main__"}
    exec(compile(program(page), str(page), "exec"), found)
    if name == "distributed.md":
        assert found["sharding"].memory(found["model"], found["optimizer"]).share < 0.2
