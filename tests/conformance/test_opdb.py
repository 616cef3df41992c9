"""Every operator of PyTorch's own database, against CPU PyTorch.

`CALQUE_SAMPLE` (a fraction) and `CALQUE_SEED` choose a part of the entries.
"""

import os
import random

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

from tests.conformance.checks import supports
from tests.conformance.known_gaps import KNOWN_GAPS
from tests.conformance.opdb import run_one

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(300)]

RUNS = (
    (torch.float32, "eager"),
    (torch.int64, "eager"),
    (torch.bool, "eager"),
    (torch.float32, "grad"),
)
SAMPLE = float(os.environ.get("CALQUE_SAMPLE", "1"))
SEED = os.environ.get("CALQUE_SEED", "0")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


ENTRIES = [
    pytest.param(op, dtype, mode, id=f"{op.formatted_name}-{dtype_name(dtype)}-{mode}")
    for op in op_db
    for dtype, mode in RUNS
    if supports(op, dtype, mode)
]


def sampled() -> list:
    if SAMPLE >= 1:
        return ENTRIES
    chosen = random.Random(SEED).sample(range(len(ENTRIES)), round(SAMPLE * len(ENTRIES)))
    return [ENTRIES[i] for i in sorted(chosen)]


@pytest.mark.parametrize(("op", "dtype", "mode"), sampled())
def test_agrees_with_the_cpu(op: OpInfo, dtype: torch.dtype, mode: str) -> None:
    reason = KNOWN_GAPS.get((op.formatted_name, dtype_name(dtype), mode))
    error = run_one(op, dtype, mode)
    if reason is not None:
        assert error is not None, f"passes now: take it out of known_gaps.py ({reason})"
        pytest.xfail(reason)
    if error is not None:
        raise error


@pytest.mark.skipif(SAMPLE < 1, reason="needs every entry")
def test_known_gaps_name_existing_entries() -> None:
    ids = {entry.id for entry in ENTRIES}
    unknown = [key for key in KNOWN_GAPS if "-".join(key) not in ids]
    assert not unknown
