"""Sizes that cannot be counted or do not fit: errors where XLA would end the process."""

import json
import signal
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
import torch.nn.functional as F

import calque
from calque.device.runtime import sizes
from tests import new_process

HUGE = 2**40
MANY = 2**61

OVERFLOWING: dict[str, Callable[[str], Any]] = {
    "empty": lambda d: torch.empty(HUGE, HUGE, device=d),
    "empty in bytes": lambda d: torch.empty(MANY, device=d),
    "empty strided": lambda d: torch.empty_strided((2, 2), (MANY, 1), device=d),
    "empty but for its strides": lambda d: torch.empty(0, HUGE, HUGE, device=d),
    "zeros": lambda d: torch.zeros(HUGE, HUGE, device=d),
    "new zeros": lambda d: torch.ones(1, device=d).new_zeros(HUGE, HUGE),
    "full": lambda d: torch.full((HUGE, HUGE), 2.0, device=d),
    "randn": lambda d: torch.randn(HUGE, HUGE, device=d),
    "randint": lambda d: torch.randint(0, 3, (HUGE, HUGE), device=d),
    "randperm": lambda d: torch.randperm(MANY, device=d),
    "normal": lambda d: torch.normal(0.0, 1.0, (HUGE, HUGE), device=d),
    "arange": lambda d: torch.arange(MANY, device=d),
    "arange of floats": lambda d: torch.arange(0, 1e30, device=d),
    "linspace": lambda d: torch.linspace(0, 1, MANY, device=d),
    "eye": lambda d: torch.eye(HUGE, device=d),
    "window": lambda d: torch.hann_window(MANY, device=d),
    "repeat": lambda d: torch.ones(3, device=d).repeat(HUGE, HUGE),
    "repeat beyond an integer": lambda d: torch.ones(3, device=d).repeat(2**62),
    "tile": lambda d: torch.ones(3, device=d).tile(HUGE, HUGE),
    "expand": lambda d: torch.ones(1, device=d).expand(HUGE, HUGE).contiguous(),
    "expand, then wider": lambda d: torch.ones(1, device=d).expand(2**60).double(),
    "one_hot": lambda d: F.one_hot(torch.tensor([0, 1], device=d), 2**62),
    "cartesian_prod": lambda d: torch.cartesian_prod(*[torch.arange(1024, device=d)] * 7),
    "linear layer": lambda d: torch.nn.Linear(HUGE, HUGE, device=d),
    "resize_": lambda d: torch.ones(3, device=d).resize_(HUGE, HUGE),
    "pad": lambda d: F.pad(torch.ones(3, 3, device=d), (HUGE, HUGE, HUGE, HUGE)),
    "interpolate": lambda d: F.interpolate(torch.ones(1, 1, 3, 3, device=d), (HUGE, HUGE)),
    "interpolate smoothly": lambda d: F.interpolate(
        torch.ones(1, 1, 3, 3, 3, device=d), (2**30, 2**30, 2**30), mode="trilinear"
    ),
    "adaptive pooling": lambda d: F.adaptive_avg_pool2d(
        torch.ones(1, 1, 3, 3, device=d), (HUGE, HUGE)
    ),
    "broadcast": lambda d: (
        torch.ones(1, device=d).expand(HUGE, 1) + torch.ones(HUGE // HUGE, device=d).expand(1, HUGE)
    ),
    "outer": lambda d: torch.outer(*[torch.ones(1, device=d).expand(HUGE)] * 2),
    "kron": lambda d: torch.kron(*[torch.ones(1, device=d).expand(2**33)] * 2),
    "cat": lambda d: torch.cat([torch.ones(1, device=d).expand(2**59)] * 8),
    "stack": lambda d: torch.stack([torch.ones(1, device=d).expand(2**59)] * 8),
    "roll": lambda d: torch.ones(1, device=d).expand(MANY).roll(1),
    "index": lambda d: torch.zeros(3, device=d)[torch.zeros(1, device=d).long().expand(MANY)],
    "repeat_interleave": lambda d: torch.ones(3, device=d).repeat_interleave(MANY),
    "counted repeats": lambda d: torch.repeat_interleave(torch.tensor([MANY, MANY], device=d)),
    "bincount": lambda d: torch.bincount(torch.tensor([MANY], device=d)),
    "diag_embed": lambda d: torch.diag_embed(torch.ones(2, device=d), offset=HUGE),
    "fft": lambda d: torch.fft.fft(torch.ones(3, device=d), n=MANY),
    "convolution": lambda d: F.conv1d(
        torch.ones(1, 1, 3, device=d), torch.ones(1, 1, 3, device=d), padding=MANY
    ),
    "recurrent layer": lambda d: torch.nn.LSTM(2**31, 2**31, device=d),
    "storage": lambda d: torch.UntypedStorage(2**63, device=d),
}
"""What raises on the CPU before it asks for memory."""

TOO_LARGE: dict[str, Callable[[str], Any]] = {
    "empty": lambda d: torch.empty(HUGE, device=d),
    "ones": lambda d: torch.ones(HUGE, device=d),
    "randn": lambda d: torch.randn(HUGE, device=d),
    "arange": lambda d: torch.arange(HUGE, device=d),
    "tril_indices": lambda d: torch.tril_indices(2**20, 2**20, device=d),
    "interpolate": lambda d: F.interpolate(torch.ones(1, 1, 3, device=d), HUGE),
    "one_hot": lambda d: F.one_hot(torch.tensor([0, 1], device=d), HUGE),
    "clone": lambda d: torch.ones(1, device=d).expand(HUGE).clone(),
    "windows": lambda d: torch.ones(2**20, device=d).unfold(0, 2**19, 1).clone(),
    "matmul": lambda d: torch.ones(2**20, 1, device=d) @ torch.ones(1, 2**20, device=d),
    "resize_": lambda d: torch.ones(3, device=d).resize_(HUGE),
    "storage": lambda d: torch.UntypedStorage(2**62, device=d),
    "storage, resized": lambda d: torch.UntypedStorage(4, device=d).resize_(2**62),
}
"""What fails on the CPU for want of memory."""


JITTED = frozenset(("arange", "cat", "empty", "linear layer", "matmul", "outer", "randn", "repeat"))
"""What is tried in a jitted function, too."""


def kind_of(call: Callable[[], Any]) -> str:
    try:
        return f"gave {call()!r:.60}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"


def outcomes() -> list[tuple[str, str, str]]:
    """The name of each call, what it does on the CPU and on the device, in each way of running."""
    found = []
    ways = {
        "eagerly": lambda case: case("jax"),
        "jitted": lambda case: calque.jit(lambda: case("jax"))(),
    }
    for table in (OVERFLOWING, TOO_LARGE):
        for name, case in table.items():
            # The CPU kernel may return memory that it never touches.
            host = (
                kind_of(lambda case=case: case("cpu")) if table is OVERFLOWING else "RuntimeError"
            )
            for way, run in ways.items():
                if way == "jitted" and name not in JITTED:
                    continue
                found.append((f"{name}, {way}", host, kind_of(lambda c=case, r=run: r(c))))
    found.append(("after all that", "gave 3.0", kind_of(torch.ones(3, device="jax").sum().item)))
    return found


def test_sizes_that_overflow_or_do_not_fit_raise_and_the_process_lives() -> None:
    program = "import json; from tests.device.test_sizes import *; print(json.dumps(outcomes()))"
    done = new_process.run(program)
    assert done.returncode == 0, done.stderr[-3000:]
    wrong = []
    for name, host, device in json.loads(done.stdout.splitlines()[-1]):
        kinds = {"RuntimeError": ("RuntimeError", "OutOfMemoryError", "TraceError")}
        expected = kinds.get(host.partition(":")[0], (host.partition(":")[0],))
        if not device.startswith(expected):
            wrong.append(f"{name}: {device}, not {host}")
    assert not wrong, "\n".join(wrong)


def test_a_want_of_memory_is_pytorchs_error_and_names_the_line() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="test_sizes.py") as found:
        torch.zeros(HUGE, device="jax")
    assert "jax out of memory. Tried to allocate 4.00 TiB" in str(found.value)


def test_a_tensor_that_did_not_fit_where_it_was_to_be_resized_is_as_it_was() -> None:
    x = torch.arange(3.0, device="jax")
    for size in (HUGE,), (HUGE, HUGE):
        with pytest.raises(RuntimeError):
            x.resize_(size)
    assert x.shape == (3,) and x.tolist() == [0, 1, 2]


def test_an_error_of_jax_that_is_about_memory_is_pytorchs() -> None:
    error = sizes.as_out_of_memory(
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.")
    )
    assert isinstance(error, torch.OutOfMemoryError)
    other = ValueError("INTERNAL: something else")
    assert sizes.as_out_of_memory(other) is other


@pytest.mark.parametrize(
    "text",
    [
        "RESOURCE_EXHAUSTED: Out of memory allocating 512 bytes.",
        # The line of the computation that uses the result.
        "INTERNAL: Error dispatching computation: Out of memory allocating 512 bytes.\nmore",
    ],
)
def test_a_want_of_memory_that_is_told_late_is_told_as_pytorch_does(text):
    error = jax.errors.JaxRuntimeError(text)
    said = r"memory\. Tried to allocate 512 bytes\.$"
    with pytest.raises(torch.OutOfMemoryError, match=said), sizes.translated():
        raise error
    other = jax.errors.JaxRuntimeError("INTERNAL: something else")
    with pytest.raises(jax.errors.JaxRuntimeError, match="else"), sizes.translated():
        raise other


@pytest.mark.skipif(sizes.FATAL == 0, reason="this XLA compiles them")
def test_what_is_refused_for_the_compilers_sake_ends_a_process_of_jax_alone() -> None:
    alone = f"import jax; jax.jit(lambda: jax.lax.iota('int32', {sizes.FATAL})).lower().compile()"
    assert new_process.run(alone).returncode == -signal.SIGFPE  # otherwise the check is unnecessary
    program = f"""
import torch, calque
x = torch.ones(1, device="jax")
many = {sizes.FATAL}
try:
    calque.jit(lambda: (x.expand(many).sort().values * torch.arange(many, device="jax")).sum())()
except torch.OutOfMemoryError as error:
    assert str([many]) in str(error) and "<string>" in str(error), error
else:
    raise AssertionError("compiled")
assert calque.jit(lambda: x.expand(many).sum())().item() == many, "no kernel writes a view"
"""
    new_process.check(program)
