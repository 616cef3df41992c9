"""Importing PyTorch's operator database takes seconds: only when the suite is asked for."""

import os
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.option.markexpr == "not conformance" else None


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CALQUE_COVERAGE"):
        from tests.conformance.coverage import plugin

        found = plugin()
        if found is not None:
            config.pluginmanager.register(found)
