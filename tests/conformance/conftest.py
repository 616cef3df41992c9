"""Importing PyTorch's operator database takes seconds: only when the suite is asked for."""

import os
from itertools import count
from pathlib import Path

import jax
import pytest

_run = count(1)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.option.markexpr == "not conformance" else None


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CALQUE_COVERAGE"):
        from tests.conformance.coverage import plugin

        found = plugin()
        if found is not None:
            config.pluginmanager.register(found)


def pytest_runtest_teardown() -> None:
    """Forget the executables of many operators from time to time: they are gigabytes in the end."""
    if next(_run) % 500 == 0:
        jax.clear_caches()
