"""Importing PyTorch's operator database takes seconds: only when the suite is asked for."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.option.markexpr == "not conformance" else None
