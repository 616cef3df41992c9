"""Training steps of the benchmarks' larger models, compiled, give the losses of their JAX twins."""

import pytest
import torch._dynamo

from benchmarks.compile import steps
from benchmarks.models import COMPILED, Case
from benchmarks.train_step import agree

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(600)]


@pytest.mark.parametrize("case", COMPILED, ids=lambda case: case.name)
def test_losses_agree(case: Case) -> None:
    torch._dynamo.reset()
    agree(steps(case, inductor=False))
