"""A process that is killed while it saves a program leaves the one before, or the new one."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import calque
from calque.convert import program_files, save
from calque.convert.saving import PROGRAM, WEIGHTS

pytest.importorskip("safetensors")


@pytest.fixture(scope="module")
def graphs() -> list[Any]:
    """Two programs that differ in their weights."""
    linear = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    return [calque.lower(calque.trace(module, torch.ones(1, 2))) for module in linear]


class Killed(BaseException):
    """Stands for the end of the process: after it, nothing can be done to a file."""


class Kill:
    """Ends a process at one of the moments at which it is about to change a file."""

    def __init__(self, moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = moment
        for owner, name in ((os, "replace"), (Path, "unlink"), (Path, "write_bytes")):
            monkeypatch.setattr(owner, name, self.around(getattr(owner, name)))
        monkeypatch.setattr(Path, "write_text", self.half(Path.write_text))

    def count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count()
            return function(*args, **kwargs)

        return call

    def half(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Path, text: str, **kwargs: Any) -> None:
            write(path, text[: len(text) // 2], **kwargs)
            self.count()
            write(path, text, **kwargs)

        return call


def saved(directory: Path) -> str:
    """The digest of the weights, which are looked at."""
    told, _ = program_files.read_files(directory)
    return told["weights_sha256"]


def test_a_program_is_replaced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graphs: list[Any]
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    save(graphs[1], tmp_path)
    new = saved(tmp_path)
    found: list[str] = []
    done = False
    while not done:
        save(graphs[0], tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == [PROGRAM, WEIGHTS]
        with monkeypatch.context() as patched:
            Kill(len(found), patched)
            try:
                save(graphs[1], tmp_path)
                done = True
            except Killed:
                pass
        found.append("new" if saved(tmp_path) == new else "old")
    assert found == sorted(found, reverse=True)
    assert found.count("old") > 3
    assert found.count("new") > 2


def test_programs_that_are_saved_at_once_do_not_mix(tmp_path: Path) -> None:
    graphs = [calque.lower(calque.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))) for _ in range(2)]
    save(graphs[0], tmp_path)
    end, errors = threading.Event(), []

    def saving(graph):
        try:
            while not end.is_set():
                save(graph, tmp_path)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=saving, args=(graph,)) for graph in graphs]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            saved(tmp_path)
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert not errors
    assert sorted(path.name for path in tmp_path.iterdir()) == [PROGRAM, WEIGHTS]
