"""Every operator of PyTorch's own database, against CPU PyTorch.

`CALQUE_SAMPLE` (a fraction) and `CALQUE_SEED` choose a part of the entries, `CALQUE_LIMIT` the most
samples of each; `CALQUE_COVERAGE` names a file to which the results are written (`coverage.py`).
"""

import os
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch.testing._internal.opinfo.core import OpInfo

from tests.conformance.checks import supports
from tests.conformance.coverage import family_of, served
from tests.conformance.known_gaps import KNOWN_GAPS
from tests.conformance.opdb import OPERATORS, run_one

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(300)]


class Run(NamedTuple):
    """A way of calling every operator: at most `limit` samples of each, or all."""

    mode: str
    dtype: torch.dtype
    limit: int = 0


RUNS = (
    Run("eager", torch.float32, 20),
    Run("eager", torch.int64, 15),
    Run("eager", torch.bool, 15),
    Run("eager", torch.float64, 3),
    Run("eager", torch.bfloat16, 3),
    Run("eager", torch.int32, 3),
    Run("eager", torch.complex64, 3),
    Run("jit", torch.float32, 3),
    Run("jit", torch.int64, 2),
    Run("jit", torch.bool, 1),
    Run("grad", torch.float32, 12),
    Run("grad", torch.complex64, 3),
    Run("grad2", torch.float64, 1),
    Run("strided", torch.float32, 3),
    Run("inplace", torch.float32, 3),
    Run("inplace", torch.int64, 3),
    Run("out", torch.float32, 3),
    Run("layout", torch.float32, 5),
    Run("errors", torch.float32),
)
SAMPLE = float(os.environ.get("CALQUE_SAMPLE", "1"))
SEED = os.environ.get("CALQUE_SEED", "0")
LIMIT = int(os.environ.get("CALQUE_LIMIT", "0"))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


ENTRIES = [
    pytest.param(op, run, id=f"{op.formatted_name}-{dtype_name(run.dtype)}-{run.mode}")
    for op in OPERATORS
    for run in RUNS
    if supports(op, run.dtype, run.mode)
]


def sampled() -> list:
    if SAMPLE >= 1:
        return ENTRIES
    chosen = random.Random(SEED).sample(range(len(ENTRIES)), round(SAMPLE * len(ENTRIES)))
    return [ENTRIES[i] for i in sorted(chosen)]


@pytest.mark.parametrize(("op", "run"), sampled())
def test_agrees_with_the_cpu(
    op: OpInfo, run: Run, record_property: Callable[[str, object], None]
) -> None:
    key = (op.formatted_name, dtype_name(run.dtype), run.mode)
    with served() as by:
        error = run_one(op, run.dtype, run.mode, LIMIT or run.limit)
    reason = KNOWN_GAPS.get(key)
    failed = None if error is None else reason or f"{type(error).__name__}: {error}"
    record_property("operator", [*key, family_of(op), *by, failed])
    if reason is not None:
        assert error is not None or LIMIT, f"passes now: take it out of known_gaps.py ({reason})"
        pytest.xfail(reason)
    if error is not None:
        raise error


@pytest.mark.skipif(SAMPLE < 1, reason="needs every entry")
def test_known_gaps_name_existing_entries() -> None:
    ids = {entry.id for entry in ENTRIES}
    unknown = [key for key in KNOWN_GAPS if "-".join(key) not in ids]
    assert not unknown
