"""Few samples of named operators of PyTorch's database, against CPU PyTorch."""

from collections.abc import Iterable

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.conformance.checks import supports
from tests.conformance.opdb import run_one

SAMPLES = 3

GONE = frozenset(("cholesky",))
"""Operators that PyTorch 2.13 has, and a later release has not."""


def cases(names: Iterable[str]) -> list[object]:
    """A pytest parameter for each operator, dtype and mode that PyTorch supports on the CPU."""
    wanted = set(names)
    found = []
    for op in op_db:
        if op.name not in wanted:
            continue
        for dtype, mode in (
            (torch.float32, "eager"),
            (torch.int64, "eager"),
            (torch.float32, "grad"),
        ):
            if supports(op, dtype, mode):
                label = f"{op.formatted_name}-{str(dtype).removeprefix('torch.')}-{mode}"
                found.append(pytest.param(op, dtype, mode, id=label))
    missing = wanted - {op.name for op in op_db} - GONE
    assert not missing, f"PyTorch's database has no operators {sorted(missing)}"
    return found


def compare_with_cpu(op: object, dtype: torch.dtype, mode: str) -> None:
    """Compare the first samples of an operator."""
    error = run_one(op, dtype, mode, SAMPLES)
    if error is not None:
        raise error
