"""Calls made before take a shorter way, with the same results."""

import jax
import jax.numpy as jnp
import pytest
import torch

import calque
from calque.device.kernels import argument_slots

REPEATED = range(6)


def test_rows_share_an_executable() -> None:
    x = torch.randn(40, 3, device="jax")
    torch.sin(x[0])
    before = set(argument_slots._VIEWED)
    for row in range(40):
        assert torch.equal(torch.sin(x[row]).cpu(), torch.sin(x).cpu()[row])
    assert set(argument_slots._VIEWED) <= before


def test_expanded_tensors_keep_their_strides() -> None:
    x = torch.randn(3, 1)
    for _ in REPEATED:
        ours = x.to("jax").expand(3, 4).neg()
        assert torch.equal(ours.cpu(), x.expand(3, 4).neg())
        assert ours.stride() == x.expand(3, 4).neg().stride()


def test_numbers_and_dtypes_are_told_apart() -> None:
    whole = torch.arange(4)
    for _ in REPEATED:
        for value in (True, 1, 1.0, 0.0, -0.0, 2):
            ours = whole.to("jax") * value
            assert ours.dtype == (whole * value).dtype
            assert torch.equal(ours.cpu(), whole * value)
        for flag in (True, False):
            assert whole.to("jax").float().sum(0, flag).shape == whole.float().sum(0, flag).shape
    minus = torch.ones(2, device="jax") * -0.0
    assert torch.signbit(minus).all()


def test_the_default_dtype_counts() -> None:
    whole = torch.arange(3, device="jax")
    for _ in REPEATED:
        assert whole.exp().dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        for _ in REPEATED:
            assert whole.exp().dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_writes_are_seen() -> None:
    x, y = torch.zeros(3, device="jax"), torch.zeros(3)
    for step in REPEATED:
        x[step % 3] += step
        y[step % 3] += step
        assert torch.equal(torch.neg(x).cpu(), torch.neg(y))
        assert torch.equal(torch.neg(x[1:]).cpu(), torch.neg(y[1:]))


def test_tracers_of_the_users_own_jit_are_not_mixed_up() -> None:
    x = torch.ones(5, device="jax")
    double = jax.jit(lambda a: calque.to_jax(torch.tan(calque.to_torch(a))))
    for _ in REPEATED:
        assert jnp.array_equal(double(jnp.ones(5)), calque.to_jax(torch.tan(x)))


def test_deleted_arrays_are_named() -> None:
    x = torch.ones(7, device="jax")
    for _ in REPEATED:
        torch.tan(x)
    calque.to_jax(x).delete()
    with pytest.raises(RuntimeError, match="has been deleted"):
        torch.tan(x)


def test_jax_debug_nans_is_heard() -> None:
    x = torch.full((9,), -1.0, device="jax")
    for _ in REPEATED:
        torch.log(x)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        torch.log(x)


def test_the_precision_of_products_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(16, 16, device="jax")
    for _ in REPEATED:
        x @ x
    with jax.log_compiles(True):
        x @ x
        assert "aten_mm" not in caplog.text
        with jax.default_matmul_precision("highest"):
            x @ x
    assert "aten_mm" in caplog.text
