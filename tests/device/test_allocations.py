"""Memory that nothing has written yet, and numbers that are not there."""

import pytest
import torch


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
