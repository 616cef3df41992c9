"""Warnings of calque point at the user's line."""

import functools
import os
import warnings
from pathlib import Path

import pytest
import torch

import calque
from calque.errors.warning import warn, warn_of_function
from tests import new_process


def test_a_warning_is_at_the_line_that_asked_and_said_once_there() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            warn("something")
    assert [(w.filename, str(w.message)) for w in caught] == [(__file__, "something")]
    assert "warn(" in Path(__file__).read_text().splitlines()[caught[0].lineno - 1]


def test_a_warning_of_a_function_is_where_it_begins() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x

    with pytest.warns(UserWarning, match="step does too much") as caught:
        warn_of_function(step, "does too much", UserWarning)
    assert caught[0].lineno == step.__code__.co_firstlineno
    with pytest.warns(UserWarning, match="partial"):
        warn_of_function(functools.partial(step), "is none", UserWarning)


def test_a_module_is_shown_by_its_forward() -> None:
    with pytest.warns(UserWarning, match="Linear") as caught:
        warn_of_function(torch.nn.Linear(1, 1), "is small", UserWarning)
    assert caught[0].filename == torch.nn.Linear.forward.__code__.co_filename


def test_a_cache_that_cannot_be_written_is_at_the_line_of_the_import(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    script = tmp_path / "script.py"
    script.write_text("import os\nimport calque\n")
    environment = {**os.environ, "CALQUE_CACHE_DIR": str(tmp_path / "file" / "below")}
    done = new_process.run(script, env=environment)
    assert done.returncode == 0
    assert f"{script}:2: CacheWarning" in done.stderr
    assert calque.CacheWarning.__name__ in done.stderr
