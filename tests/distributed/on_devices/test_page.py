"""What `docs/distributed.md` shows runs on eight devices as well."""

from pathlib import Path

import pytest

from tests.test_docs import ROOT, program


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "distributed.md"
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {"__name__": "__main__"}
    exec(compile(program(page), str(page), "exec"), found)
    assert found["sharding"].memory(found["model"], found["optimizer"]).share < 0.2
