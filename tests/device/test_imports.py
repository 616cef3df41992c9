"""Modules that are changed once somebody imports them."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from calque.device.runtime.imports import when_imported


def test_a_module_is_handed_over_after_its_import_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "told_later.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[tuple[str, int]] = []
    when_imported("told_later", lambda module: seen.append((module.__name__, module.value)))
    assert seen == []
    importlib.import_module("told_later")
    assert seen == [("told_later", 3)]
    del sys.modules["told_later"]
    importlib.import_module("told_later")
    assert seen == [("told_later", 3)]


def test_an_import_that_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "told_at_last.py"
    source.write_text("raise ValueError\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[ModuleType] = []
    when_imported("told_at_last", seen.append)
    with pytest.raises(ValueError):
        importlib.import_module("told_at_last")
    assert seen == []
    source.write_text("value = 'long enough to be another file'\n")
    assert importlib.import_module("told_at_last") is seen[0]


def test_a_module_that_is_loaded_is_handed_over_at_once() -> None:
    seen: list[ModuleType] = []
    when_imported("sys", seen.append)
    assert seen == [sys]
