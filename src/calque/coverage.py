"""The conformance suite's results for each operator of PyTorch's database (`coverage.json`)."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

MODES = {
    "eager": "values",
    "jit": "values inside calque.jit",
    "grad": "gradients",
    "grad2": "second gradients",
    "strided": "arguments with gaps in memory",
    "inplace": "the in-place form",
    "out": "the out= form",
    "layout": "views and strides",
    "errors": "errors for bad arguments",
}
"""The ways in which an operator is compared with PyTorch on the CPU."""


@dataclass(frozen=True)
class Status:
    """The suite's results for one operator.

    Attributes:
        name: its name in PyTorch's operator database.
        family: the file of the op table with its rule; empty for PyTorch's composite operators.
        served: "rule", "decomposition" (by PyTorch, into operators that have rules) or "CPU".
        through: the ATen operators that needed a decomposition or the CPU.
        passed: for each mode, the dtypes in which it agrees with the CPU.
        failed: for each mode, the dtypes in which it does not agree, with the reason.
    """

    name: str
    family: str
    served: str
    through: list[str]
    passed: dict[str, list[str]]
    failed: dict[str, dict[str, str]]

    def summary(self, mode: str) -> str:
        """Returns `yes`, `no`, `partly`, or an empty string if the mode does not apply."""
        passed, failed = self.passed.get(mode), self.failed.get(mode)
        if not failed:
            return "yes" if passed else ""
        return "partly" if passed else "no"


@cache
def statuses() -> list[Status]:
    """Returns all operators, sorted by name."""
    found = json.loads(files("calque").joinpath("coverage.json").read_text())
    return [_status(name, row) for name, row in sorted(unpacked(found).items())]


def _status(name: str, row: dict[str, Any]) -> Status:
    served = "CPU" if row["cpu"] else "decomposition" if row["decomposed"] else "rule"
    through = sorted({*row["cpu"], *row["decomposed"]})
    return Status(name, row["family"], served, through, row["passed"], row.get("failed", {}))


def packed(operators: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the results in the form of the file, which stores shared values once.

    >>> file = packed({"abs": {"family": "arithmetic", "passed": {"eager": ["bool", "int32"]}}})
    >>> file["dtypes"], file["passed"], file["operators"]["abs"]
    (['bool int32'], [{'eager': 0}], {'family': 'arithmetic', 'passed': 0})
    """
    dtypes: dict[str, int] = {}
    passed: dict[tuple[tuple[str, int], ...], int] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name, row in sorted(operators.items()):
        modes = ((m, dtypes.setdefault(" ".join(d), len(dtypes))) for m, d in row["passed"].items())
        place = passed.setdefault(tuple(sorted(modes)), len(passed))
        rows[name] = {k: v for k, v in row.items() if v} | {"passed": place}
    return {"dtypes": [*dtypes], "passed": [*map(dict, passed)], "operators": rows}


def unpacked(file: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the results from the form that `packed` returns."""
    dtypes = [each.split() for each in file["dtypes"]]
    passed = [{mode: dtypes[at] for mode, at in modes.items()} for modes in file["passed"]]
    blank = {"family": "", "decomposed": [], "cpu": []}
    rows = file["operators"].items()
    return {name: blank | row | {"passed": passed[row["passed"]]} for name, row in rows}
