"""Storages of the device: bytes without a pointer, and never a crash."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn

import calque  # noqa: F401
from tests import new_process


def arange() -> torch.Tensor:
    return torch.arange(6, dtype=torch.float32).reshape(2, 3).to("jax")


def host() -> torch.UntypedStorage:
    return torch.arange(6, dtype=torch.float32).untyped_storage()


def test_a_storage_knows_its_size_before_the_first_view() -> None:
    storage = arange().untyped_storage()
    assert (storage.nbytes(), storage.size(), len(storage)) == (24, 24, 24)


def test_the_bytes_of_a_storage_are_those_of_the_cpu() -> None:
    storage = arange().untyped_storage()
    assert bytes(storage) == bytes(host())
    assert storage.tolist() == host().tolist()
    assert [storage[i] for i in (6, 7, -1)] == [128, 63, host()[-1]]
    assert repr(storage).endswith("[torch.storage.UntypedStorage(device=jax:0) of size 24]")


def test_the_bytes_are_in_the_order_of_the_memory() -> None:
    cpu = torch.arange(6.0).reshape(2, 3).t()
    assert bytes(cpu.to("jax").untyped_storage()) == bytes(cpu.untyped_storage())


def test_storages_copy_between_devices() -> None:
    tensor = arange()
    assert bytes(tensor.untyped_storage().cpu()) == bytes(host())
    tensor.untyped_storage().copy_(torch.ones(6).untyped_storage())
    assert tensor.tolist() == [[1, 1, 1], [1, 1, 1]]
    target = torch.zeros(6)
    target.untyped_storage().copy_(arange().untyped_storage())
    assert target.tolist() == [0, 1, 2, 3, 4, 5]
    moved = host().to(device="jax")
    assert moved.device.type == "jax"
    assert bytes(moved) == bytes(host())
    with pytest.raises(RuntimeError, match="size does not match"):
        tensor.untyped_storage().copy_(torch.UntypedStorage(3))


def test_a_clone_is_independent() -> None:
    tensor = arange()
    clones = [
        tensor.untyped_storage().clone(),
        copy.copy(tensor.untyped_storage()),
        copy.deepcopy(tensor.untyped_storage()),
    ]
    tensor.zero_()
    for clone in clones:
        assert bytes(clone) == bytes(host())


def test_a_storage_can_be_made_and_given_to_a_tensor() -> None:
    storage = torch.UntypedStorage(8, device="jax")
    tensor = torch.empty(0, device="jax").set_(storage)
    assert tensor.tolist() == [0.0, 0.0]
    tensor.fill_(1)
    assert bytes(storage) == bytes(torch.ones(2).untyped_storage())


def test_writes_to_a_storage_reach_its_tensors() -> None:
    tensor = arange()
    tensor.untyped_storage()[7] = 64
    assert tensor[0, 1].item() != 1
    tensor.untyped_storage().fill_(0)
    assert tensor.sum().item() == 0
    assert tensor.untyped_storage()[5] == 0


def test_a_resized_storage_keeps_what_fits_and_guards_what_does_not() -> None:
    tensor = arange()
    storage = tensor.untyped_storage()
    storage.resize_(8)
    assert storage.nbytes() == 8
    with pytest.raises(RuntimeError, match="out of bounds"):
        tensor + 1
    storage.resize_(24)
    assert tensor.tolist() == [[0, 1, 0], [0, 0, 0]]


def test_typed_storages_work() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = arange().storage()
        assert list(storage) == [0, 1, 2, 3, 4, 5]
        storage[1] = 9
        assert (storage[1], len(storage)) == (9, 6)
        assert storage.cpu().tolist() == [0, 9, 2, 3, 4, 5]


def test_storages_have_an_identity() -> None:
    a, b = arange(), arange()
    assert a.untyped_storage().data_ptr() == a[1].untyped_storage().data_ptr()
    assert a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()


def test_a_cell_lives_as_long_as_its_storage() -> None:
    tensor = arange()
    storage = tensor.untyped_storage()
    del tensor
    assert bytes(storage) == bytes(host())


def test_other_devices_keep_their_storages() -> None:
    storage = torch.arange(3).untyped_storage()
    assert len(storage[0:8]) == 8
    assert storage.data_ptr() == storage.cpu().data_ptr() != 0
    assert len(torch.UntypedStorage(5)) == 5
    assert torch.ones(2).share_memory_().is_shared()
    assert torch.empty(2, device="meta").untyped_storage().nbytes() == 8


REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "share_memory_": lambda t: t.share_memory_(),
    "share a storage": lambda t: t.untyped_storage().share_memory_(),
    "file descriptor": lambda t: t.untyped_storage()._share_fd_cpu_(),
    "file name": lambda t: t.untyped_storage()._share_filename_cpu_(),
    "cuda handle": lambda t: t.untyped_storage()._share_cuda_(),
    "byteswap": lambda t: t.untyped_storage().byteswap(torch.float32),
    "swap of pointers": lambda t: t.untyped_storage()._swap_data_ptr_(torch.UntypedStorage(4)),
    "slice": lambda t: t.untyped_storage()[0:4],
    "apply_": lambda t: t.apply_(lambda x: x),
    "map_": lambda t: t.map_(t, lambda x, y: x),
    "numpy": lambda t: t.numpy(),
    "array": lambda t: t.__array__(),
    "cuda array interface": lambda t: t.__cuda_array_interface__,
    "buffer": lambda t: memoryview(t),
    "pin a storage": lambda t: t.untyped_storage().pin_memory(),
    "pin a tensor": lambda t: t.pin_memory(),
    "storage of another device": lambda t: torch.ones(3).set_(t),
    "set_ across devices": lambda t: t.set_(torch.ones(3)),
    "data across devices": lambda t: setattr(t, "data", torch.ones(3)),
    "a storage from a null pointer": lambda t: repr(
        torch._C._construct_storage_from_data_pointer(0, torch.device("jax"), 10)
    ),
    "item of an out-of-range byte": lambda t: t.untyped_storage()[99],
    "quantize": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
}
CRASHES = """
import torch, sys
sys.path.insert(0, {path!r})
from tests.device.test_storage import REFUSED, arange
for name, attempt in REFUSED.items():
    for viewed in (False, True):
        tensor = arange()
        if viewed:
            tensor[0]
        try:
            attempt(tensor)
        except (RuntimeError, TypeError, AttributeError, IndexError):
            continue
        print("no error:", name)
print("alive")
"""


def test_what_needs_a_pointer_raises_and_never_crashes(pytestconfig: pytest.Config) -> None:
    program = CRASHES.format(path=str(pytestconfig.rootpath))
    done = new_process.run(program, filter="ignore")
    assert done.stdout.split("\n") == ["alive", ""], done.stdout + done.stderr[-2000:]


def test_what_shares_no_memory_lies_elsewhere() -> None:
    x, y = torch.ones(4, 2, device="jax"), torch.ones(4, 2, device="jax")
    assert x.data_ptr() != y.data_ptr() and x.data_ptr() == x.t().data_ptr()
    assert x[1].data_ptr() - x.data_ptr() == 8 == x.view(8)[2:].data_ptr() - x.data_ptr()
    assert x.data_ptr() == x.untyped_storage().data_ptr() and x[4:].data_ptr() == 0
    assert torch.empty(0, device="jax").data_ptr() == 0 == torch.ones(2, device="meta").data_ptr()
    before = x.data_ptr()
    assert x.add_(1).data_ptr() == before
    with torch.device("jax"):  # a mode, which calls the factory again
        assert x.data_ptr() == before


def test_safetensors_save_and_load_modules_with_shared_weights(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to("jax")
    module[1].weight = module[0].weight
    save_model(module, str(tmp_path / "saved"))
    fresh = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to("jax")
    fresh[1].weight = fresh[0].weight
    assert load_model(fresh, str(tmp_path / "saved")) == (set(), [])
    x = torch.ones(2, 3, device="jax")
    assert fresh(x).equal(module(x))


def test_a_lazy_clone_is_a_clone() -> None:
    x = torch.ones(2, 3, device="jax").t().detach().requires_grad_()
    y = torch._lazy_clone(x)
    y.sum().backward()
    with torch.no_grad():
        y.add_(1)
    assert y.stride() == x.stride() and (y == 2).all() and (x == 1).all()
    assert x.grad is not None and (x.grad == 1).all()
