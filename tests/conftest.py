"""Every test runs on the CPU, with PyTorch in one thread."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before the first import of JAX

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
