"""States on disk, where orbax is installed; tests/faults has processes that are killed."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

from calque.federated import learning

pytest.importorskip("orbax.checkpoint")


def test_without_a_checkpoint_it_begins_at_the_beginning(tmp_path: Path) -> None:
    initial = learning.fed_avg(torch.nn.Linear(2, 2)).initialize()
    with learning.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest(initial) is initial
        checkpoints.save(initial)
        again = checkpoints.latest(initial)
    assert jax.tree.structure(again) == jax.tree.structure(initial)


def test_a_state_of_another_model_is_refused(tmp_path: Path) -> None:
    with learning.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(learning.fed_avg(torch.nn.Linear(2, 2)).initialize())
        with pytest.raises(ValueError, match="belongs to another model or algorithm"):
            checkpoints.latest(learning.fed_avg(torch.nn.Linear(2, 3)).initialize())


@pytest.mark.parametrize("numbers", [{"keep": 0}, {"every": 0}, {"every": 1.5}])
def test_numbers_that_would_keep_nothing_are_refused(tmp_path: Path, numbers: Any) -> None:
    with pytest.raises(ValueError, match="must be integers of at least 1"):
        learning.Checkpoints(tmp_path, **numbers)


def test_what_is_no_state_is_not_saved(tmp_path: Path) -> None:
    checkpoints = learning.Checkpoints(tmp_path)
    with checkpoints, pytest.raises(TypeError, match="expected a state, not int"):
        checkpoints.save(3)  # type: ignore[arg-type]


def test_a_state_of_another_run_is_not_dropped_in_silence(tmp_path: Path) -> None:
    process = learning.fed_avg(torch.nn.Linear(2, 2))
    old, new = process.initialize(0), process.initialize(1)
    with learning.Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(old)
        checkpoints.save(old)
        with pytest.raises(ValueError, match="holds round 0 of another run"):
            checkpoints.save(new)
        found = checkpoints.latest(process.initialize())
    for one, other in zip(jax.tree.leaves(found.parameters), jax.tree.leaves(old.parameters)):
        assert (one == other).all()


def test_damaged_files_are_named(tmp_path: Path) -> None:
    process = learning.fed_avg(torch.nn.Linear(2, 2))
    first = process.initialize(0)
    with learning.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(first)
        checkpoints.save(dataclasses.replace(first, round=first.round + 1))
        checkpoints.require_run({"seed": "0"})
        for text in ("", "[]", '{"seed": "0', "[" * 100_000):
            (tmp_path / "run.json").write_text(text)
            with pytest.raises(ValueError, match=r"run\.json, .* is damaged"):
                checkpoints.require_run({"seed": "0"})
    for content in (b"null", b"{}", b""):
        (tmp_path / "1" / "default" / "_METADATA").write_bytes(content)
        checkpoints = learning.Checkpoints(tmp_path)
        with checkpoints, pytest.raises(ValueError, match="round 1 cannot be read.*/1 are damaged"):
            checkpoints.latest(first)
    shutil.rmtree(tmp_path / "1")
    with learning.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest(first).round == 0
