"""The benchmarks compare like with like: every model's JAX twin computes the same losses."""

import pytest

from benchmarks.models import CASES, Case
from benchmarks.train_step import agree, candidates


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_losses_agree(case: Case) -> None:
    agree(candidates(case, "AdamW", inductor=False))
