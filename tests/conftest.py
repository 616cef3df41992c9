"""Every test runs on the CPU, with PyTorch in one thread."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before the first import of JAX

import pytest
import torch

import calque  # noqa: F401  (registers the device)

torch.set_num_threads(1)
torch.jax.set_max_programs(300)  # two or three megabytes each


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
