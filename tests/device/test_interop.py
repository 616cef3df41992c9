"""Tensors and jax.Arrays become each other, with and without copies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import calque
from calque.device.runtime.dtypes import TO_NUMPY


def sample(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([[0, 1, 2], [1, 2, 0]]).to(dtype)


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().view(torch.uint8).reshape(-1).tolist()


@pytest.mark.parametrize("dtype", TO_NUMPY, ids=str)
def test_every_dtype_makes_the_round_trip(dtype: torch.dtype) -> None:
    tensor = sample(dtype)
    for source in (tensor, tensor.to("jax"), tensor.t(), tensor.t().to("jax")):
        array = calque.to_jax(source)
        assert array.dtype == TO_NUMPY[dtype]
        assert array.shape == tuple(source.shape)
        for device in ("cpu", "jax"):
            back = calque.to_torch(array, device)
            assert back.device.type == device
            assert back.dtype == dtype
            assert bits(back.cpu()) == bits(source.cpu())
    assert jnp.arange(3).dtype == jnp.int32, "the user's JAX has no 64-bit types"


def test_device_tensors_give_their_array_and_keep_it_whole() -> None:
    tensor = torch.ones(3, device="jax")
    array = calque.to_jax(tensor)
    assert array is calque.to_jax(tensor)
    tensor.add_(1)
    assert array.tolist() == [1, 1, 1]
    assert calque.to_jax(tensor[1:]).tolist() == [2, 2]


def test_arrays_stay_whole_when_their_tensor_is_written() -> None:
    array = jnp.ones(3)
    tensor = calque.to_torch(array)
    assert calque.to_jax(tensor) is array
    tensor.zero_()
    assert array.tolist() == [1, 1, 1]


def test_lazy_conjugates_are_resolved() -> None:
    tensor = torch.tensor([1 + 2j], device="jax")
    assert calque.to_jax(tensor.conj()).tolist() == [1 - 2j]
    assert calque.to_jax(tensor.conj().imag).tolist() == [-2]


def test_weakly_typed_arrays_promote_as_tensors() -> None:
    tensor = calque.to_torch(jnp.asarray(2.0))
    assert (torch.ones(2, dtype=torch.bfloat16, device="jax") * tensor).dtype == torch.bfloat16
    assert (torch.ones((), dtype=torch.bfloat16, device="jax") * tensor).dtype == torch.float32


def test_a_copy_to_jax_does_not_see_later_writes() -> None:
    for size in (4, 1 << 16):
        tensor = torch.ones(size)
        arrays = [calque.to_jax(tensor), calque.to_jax(tensor.to("jax"))]
        tensor.zero_()
        assert all(float(a.sum()) == size for a in arrays)


def test_a_copy_to_the_cpu_is_writable_and_independent() -> None:
    for size in (4, 1 << 16):
        array = jnp.ones(size)
        for tensor in (calque.to_torch(array, "cpu"), calque.to_torch(array).cpu()):
            tensor.zero_()
        assert float(array.sum()) == size


@pytest.mark.parametrize("count", [3, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_memory_of_a_copy_to_the_cpu_is_pytorchs_own(dtype: torch.dtype, count: int) -> None:
    host = torch.ones(count, device="jax").to(dtype).cpu()
    assert host.data_ptr() % 64 == 0  # some PyTorch kernels crash otherwise
    assert host.resize_(2 * count)[:count].tolist() == torch.ones(count).to(dtype).tolist()


def test_memory_is_shared_when_asked_for() -> None:
    tensor = torch.ones(1 << 10)
    array = calque.to_jax(tensor, copy=False)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    back = calque.to_torch(array, "cpu", copy=False)
    assert back.data_ptr() == tensor.data_ptr()


def test_memory_that_cannot_be_shared_raises() -> None:
    tensor = torch.ones(1 << 10)
    with pytest.raises(RuntimeError, match="gaps"):
        calque.to_jax(tensor[::2], copy=False)
    with pytest.raises(RuntimeError, match="aligned"):
        calque.to_jax(tensor[1:], copy=False)


def test_64_bit_integers_are_not_narrowed() -> None:
    big = torch.tensor([2**40])
    for array in (
        calque.to_jax(big),
        calque.to_jax(big.to("jax")),
        calque.to_jax(torch.arange(2**40, 2**40 + 64), copy=False)[:1],
    ):
        assert array.dtype == np.int64
        assert calque.to_torch(array, "cpu").tolist() == [2**40]


def test_what_is_no_array_raises() -> None:
    with pytest.raises(TypeError, match="to_torch takes a"):
        calque.to_torch(np.ones(2))
    with pytest.raises(TypeError, match="PyTorch has no dtype"):
        calque.to_torch(jax.random.key(0))


def test_dlpack_exports_a_copy_of_a_device_tensor() -> None:
    tensor = torch.arange(3.0, device="jax")
    for taken in (
        torch.from_dlpack(tensor),
        torch.from_dlpack(torch.utils.dlpack.to_dlpack(tensor)),
    ):
        taken.fill_(7)
    assert tensor.tolist() == [0, 1, 2]
    assert jax.dlpack.from_dlpack(tensor).tolist() == [0, 1, 2]
    assert np.from_dlpack(tensor).tolist() == [0, 1, 2]
    assert torch.from_dlpack(tensor[1:].expand(2, 2)).tolist() == [[1, 2], [1, 2]]


def test_dlpack_refuses_what_pytorch_refuses() -> None:
    with pytest.raises(BufferError, match="require gradient"):
        torch.ones(2, device="jax", requires_grad=True).__dlpack__()
    with pytest.raises(BufferError, match="conjugate"):
        torch.ones(2, dtype=torch.complex64, device="jax").conj().__dlpack__()


def test_dlpack_of_other_devices_is_pytorchs() -> None:
    tensor = torch.ones(3)
    assert torch.from_dlpack(tensor).data_ptr() == tensor.data_ptr()


def test_tracers_pass_through() -> None:
    double = jax.jit(lambda a: calque.to_jax(calque.to_torch(a) * 2))
    assert double(jnp.ones(2)).tolist() == [2, 2]
