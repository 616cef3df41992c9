"""Memory that nothing has written yet, and numbers that are not there."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import pytest
import torch


@contextmanager
def capture_compilations() -> Iterator[list[str]]:
    """Collects what JAX logs of compilations."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    logger = logging.getLogger("jax")
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int16, torch.bool])
def test_uninitialized_memory_is_filled_with_deterministic_algorithms(dtype):
    def made(device):
        like = torch.ones(2, 3, device=device).to(dtype)
        return [
            torch.empty(2, 3, dtype=dtype, device=device),
            torch.empty_like(like),
            torch.empty_strided((2, 3), (1, 2), dtype=dtype, device=device),
            like.clone().resize_(3, 3),
            torch.zeros_like(like),
        ]

    torch.use_deterministic_algorithms(True)
    try:
        expected, found = made("cpu"), made("jax")
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other.cpu(), one, equal_nan=True)
    assert not torch.empty(3, device="jax").any()


def test_a_tensor_without_elements_has_no_number():
    with pytest.raises(RuntimeError, match="Empty tensor not supported"):
        torch.ops.aten._local_scalar_dense(torch.empty(0, device="jax"))


@pytest.mark.parametrize("make", [torch.empty_like, torch.zeros_like])
def test_the_first_allocations_of_a_kind_compile_nothing(make):
    x = torch.ones(3, 4, 87, device="jax")[:, :2].permute(2, 0, 1)
    expected = make(torch.ones(3, 4, 87)[:, :2].permute(2, 0, 1))
    with jax.log_compiles(), capture_compilations() as compiled:
        found = [make(x), make(x)]
    assert not compiled
    found.append(make(x))  # the third call runs a program
    for one in found:
        assert one.stride() == expected.stride()
        assert one.device == x.device
        assert not one.any()
        one.add_(1)  # each has its own memory
    assert found[0].sum().item() == x.numel()


def test_zeros_like_elsewhere_and_of_other_dtypes():
    x = torch.ones(2, 3, device="jax")
    on_cpu = torch.zeros_like(x, device="cpu", dtype=torch.int8)
    assert on_cpu.device.type == "cpu"
    assert not on_cpu.any()
    assert torch.zeros_like(x, dtype=torch.complex64).dtype == torch.complex64
    assert torch.zeros_like(torch.ones(2, 3), device="jax").device == x.device
    with pytest.raises((RuntimeError, NotImplementedError), match="sparse"):
        torch.zeros_like(x, layout=torch.sparse_coo)
