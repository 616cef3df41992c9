"""Every test runs on the CPU, with PyTorch in one thread."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before the first import of JAX
# Every test compiles what it runs: nothing is taken from an earlier run, nothing left to the next.
os.environ.setdefault("CALQUE_CACHE_DIR", "off")

from collections.abc import Iterator

import hypothesis
import jax
import pytest
import torch
from jax.extend.backend import get_backend

import calque  # noqa: F401  (registers the device)

torch.set_num_threads(1)
hypothesis.settings.register_profile("calque", deadline=None)  # speed is no law
hypothesis.settings.load_profile("calque")
torch.jax.set_max_programs(300)  # two megabytes each; and JAX keeps some of its own

_MOST_EXECUTABLES = 500


@pytest.fixture(scope="module", autouse=True)
def _bounded_memory() -> Iterator[None]:
    yield
    if len(get_backend().live_executables()) > _MOST_EXECUTABLES:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
