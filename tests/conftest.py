"""Every test runs on the CPU, with PyTorch in one thread.

`make test` takes the tests without the mark `conformance`. `@pytest.mark.sampled(n)` lets a test
with many cases run n of them there, drawn by `CALQUE_SEED`; the others have the mark. A share of
all that would run is drawn with `CALQUE_SHARE`.
"""

import contextlib
import ctypes
import gc
import logging
import os
import random

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before the first import of JAX
# Every test compiles its own programs; none are reused from or stored for other runs.
os.environ.setdefault("CALQUE_CACHE_DIR", "off")

from collections import defaultdict
from collections.abc import Iterator
from itertools import count

import hypothesis
import jax
import pytest
import torch
from jax.extend.backend import get_backend

import calque  # noqa: F401  (registers the device)
from tests.shared_context import renew_context, share_contexts

torch.set_num_threads(1)
# pytest captures loggers that do not propagate, and PyTorch formats all graphs for a listener.
logging.getLogger("torch.__trace").propagate = True
gc.set_threshold(20_000, 10, 10)  # a collection over JAX's and PyTorch's objects takes 0.1 s
hypothesis.settings.register_profile("calque", deadline=None)  # tests may be slow
hypothesis.settings.load_profile("calque")

# Each program takes two megabytes, less with shared contexts, and JAX keeps some more.
_MOST_PROGRAMS, _MOST_EXECUTABLES = 100, 300
if os.environ.get("CALQUE_SHARED_CONTEXT"):
    share_contexts()
    # Otherwise JAX computes a cache key for each program.
    jax.config.update("jax_enable_compilation_cache", False)
    _MOST_PROGRAMS, _MOST_EXECUTABLES = 400, 900
torch.jax.set_max_programs(_MOST_PROGRAMS)
_run = count(1)
# The share of the tests in `make conformance`.
_SAMPLE = float(os.environ.get("CALQUE_SAMPLE", "1"))

_SHARE = float(os.environ.get("CALQUE_SHARE", "1"))
_SEED = os.environ.get("CALQUE_SEED", "0")


def pytest_configure(config: pytest.Config) -> None:
    text = "sampled(n): make test runs n cases of the test, drawn by CALQUE_SEED"
    config.addinivalue_line("markers", text)


@pytest.hookimpl(tryfirst=True)  # before pytest reads the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled"):
            cases[item.nodeid.split("[")[0]].append(item)
    left_out = set[pytest.Item]()
    for name, found in cases.items():
        chosen = random.Random(_SEED + name)
        chosen.shuffle(found)
        (share,) = found[0].get_closest_marker("sampled").args
        for item in found[share:]:
            item.add_marker(pytest.mark.conformance)
        left_out.update(item for item in found[share:] if chosen.random() >= _SAMPLE)
    if _SHARE < 1:
        draws = {one: random.Random(_SEED + one.nodeid).random() for one in items}
        left_out.update(one for one, drawn in draws.items() if drawn >= _SHARE)
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def _bounded_memory() -> Iterator[None]:
    yield
    if next(_run) % 20 == 0:
        renew_context()
    if len(get_backend().live_executables()) > _MOST_EXECUTABLES:
        jax.clear_caches()
        _trim()


@pytest.fixture
def few_objects() -> Iterator[None]:
    """The garbage collector looks at what the test makes alone; all there is takes a second.

    Nor does it know who holds an object, where that is older than the test (`gc.get_referrers`).
    """
    gc.freeze()
    yield
    gc.unfreeze()


def _trim() -> None:
    """Give freed memory back to the system, where the C library can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@pytest.fixture(autouse=True)
def _seed() -> None:
    # Like `torch.manual_seed`, which formats the stack for missing devices and so is slow.
    torch.default_generator.manual_seed(0)
    torch.jax.manual_seed_all(0)
