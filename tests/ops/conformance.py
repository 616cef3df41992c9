"""Few samples of named operators of PyTorch's database, against CPU PyTorch."""

import warnings
from collections.abc import Iterable

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.conformance.opdb import check

SAMPLES = 3


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
            supported = op.supported_dtypes("cpu")
            if mode == "grad":
                supported = op.supported_backward_dtypes("cpu") if op.supports_autograd else ()
            if dtype in supported:
                label = f"{op.formatted_name}-{str(dtype).removeprefix('torch.')}-{mode}"
                found.append(pytest.param(op, dtype, mode, id=label))
    missing = wanted - {op.name for op in op_db}
    assert not missing, f"PyTorch's database has no operators {sorted(missing)}"
    return found


def compare_with_cpu(op: object, dtype: torch.dtype, mode: str) -> None:
    """Compare the first samples of an operator; PyTorch's own warnings are no matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(op, dtype, mode, SAMPLES)
