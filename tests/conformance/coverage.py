"""Gather what the conformance suite found about each operator into one file.

`CALQUE_COVERAGE=src/calque/coverage.json make conformance` writes the file that `calque ops`
and the documentation read.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.opinfo.core import OpInfo

from calque.coverage import packed
from calque.device.kernels.fallback import DECOMPOSED, SERVED
from calque.ops.table.registry import RULES

Results = dict[str, dict[str, Any]]


@contextmanager
def served() -> Iterator[list[list[str]]]:
    """The ATen operators served in the block: by PyTorch's decompositions, by its CPU kernels."""
    counters = (DECOMPOSED, SERVED)
    before = [counter.copy() for counter in counters]
    by: list[list[str]] = []
    yield by
    by += [sorted(counter - old) for counter, old in zip(counters, before, strict=True)]


def family_of(op: OpInfo) -> str:
    """The family of the rules of an operator; empty where PyTorch composes it of others."""
    names = [f"aten::{n}" for n in (op.aten_name, f"_{op.aten_name}", f"{op.aten_name}_copy") if n]
    rules = [rule for rule in RULES.values() if rule.name.partition(".")[0] in names]
    return rules[0].family if rules else ""


class Coverage:
    """A plugin of pytest: collects the properties of the reports and writes them at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._operators: Results = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called in the main process for each phase of each test."""
        if report.when != "call":
            return
        for name, value in report.user_properties:
            if name == "operator":
                self._add(*value)

    def _add(
        self,
        name: str,
        dtype: str,
        mode: str,
        family: str,
        decomposed: list[str],
        on_cpu: list[str],
        failed: str | None,
    ) -> None:
        row = self._operators.setdefault(
            name, {"family": family, "decomposed": [], "cpu": [], "passed": {}}
        )
        for key, found in (("decomposed", decomposed), ("cpu", on_cpu)):
            row[key] = sorted({*row[key], *found})
        if failed is None:
            row["passed"].setdefault(mode, []).append(dtype)
        else:
            row.setdefault("failed", {}).setdefault(mode, {})[dtype] = failed.split("\n")[0]

    def pytest_sessionfinish(self) -> None:
        """Called when all tests have run."""
        for row in self._operators.values():
            for dtypes in row["passed"].values():
                dtypes.sort()
        version = torch.__version__.partition("+")[0]
        file = packed(self._operators) | {"torch": version}
        self._path.write_text(json.dumps(file, separators=(",", ":"), sort_keys=True) + "\n")


def plugin() -> Coverage | None:
    """The plugin, where `CALQUE_COVERAGE` asks for it and this is not a worker."""
    path = os.environ.get("CALQUE_COVERAGE")
    if not path or "PYTEST_XDIST_WORKER" in os.environ:
        return None
    return Coverage(Path(path))
