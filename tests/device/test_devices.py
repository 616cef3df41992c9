"""Which devices may meet in an operator, and what the device answers about itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import calque


def here() -> torch.Tensor:
    return torch.arange(6.0, device="jax").reshape(2, 3)


def there() -> torch.Tensor:
    return torch.ones(2, 3)


MIXED: dict[str, Callable[[], Any]] = {
    "add": lambda: here() + there(),
    "reflected add": lambda: there() + here(),
    "add in place": lambda: here().add_(there()),
    "add in place on the CPU": lambda: there().add_(here()),
    "add of a device scalar in place on the CPU": lambda: there().add_(here()[0, 0]),
    "out": lambda: torch.add(here(), 1, out=there()),
    "out on the device": lambda: torch.add(there(), 1, out=here()),
    "where": lambda: torch.where(here() > 1, there(), here()),
    "cat": lambda: torch.cat([here(), there()]),
    "reflected cat": lambda: torch.cat([there(), here()]),
    "stack": lambda: torch.stack([here(), there()]),
    "mm": lambda: here() @ there().t(),
    "reflected mm": lambda: there() @ here().t(),
    "linear": lambda: F.linear(here(), there()),
    "module on the device": lambda: nn.Linear(3, 3).to("jax")(there()),
    "module on the CPU": lambda: nn.Linear(3, 3)(here()),
    "index_select": lambda: here().index_select(0, torch.tensor([0])),
    "gather": lambda: here().gather(0, torch.zeros(1, 3, dtype=torch.int64)),
    "scatter_": lambda: here().scatter_(0, torch.zeros(1, 3, dtype=torch.int64), 1.0),
    "CPU tensor at a device index": lambda: there()[torch.tensor([0], device="jax")],
    "embedding": lambda: F.embedding(torch.tensor([0]), here()),
    "mse_loss": lambda: F.mse_loss(here(), there()),
    "cross_entropy": lambda: F.cross_entropy(here(), torch.tensor([0, 1])),
    "lerp": lambda: torch.lerp(here(), there(), 0.5),
    "addcmul": lambda: torch.addcmul(here(), there(), here()),
    "equal": lambda: torch.equal(here(), there()),
    "allclose": lambda: torch.allclose(here(), there()),
    "foreach": lambda: torch._foreach_add([here()], [there()]),
    "gradient": lambda: here().requires_grad_().backward(there()),
    "grad": lambda: setattr(nn.Parameter(here()), "grad", there()),
    "dot": lambda: torch.dot(there()[0], here()[0]),
}


@pytest.mark.parametrize("name", MIXED)
def test_tensors_of_two_devices_do_not_meet(name: str) -> None:
    with pytest.raises(RuntimeError):
        MIXED[name]()


ALLOWED: dict[str, Callable[[], torch.Tensor]] = {
    "0-d add": lambda: here() + torch.tensor(2.0),
    "reflected 0-d add": lambda: torch.tensor(2.0) + here(),
    "0-d mul_": lambda: here().mul_(torch.tensor(2.0)),
    "0-d where": lambda: torch.where(here() > 1, torch.tensor(0.0), here()),
    "0-d exponent": lambda: here() ** torch.tensor(2.0),
    "0-d fill_": lambda: here().fill_(torch.tensor(3.0)),
    "0-d masked_fill": lambda: here().masked_fill(here() > 1, torch.tensor(0.0)),
    "CPU indices": lambda: here()[torch.tensor([0])],
    "copy_": lambda: here().copy_(there()),
    "assignment": lambda: (x := here()).__setitem__(0, torch.ones(3)) or x,
    "type_as": lambda: there().type_as(here()),
    "to another": lambda: there().to(here()),
    "new_tensor": lambda: here().new_tensor([1.0]),
    "tensor": lambda: torch.tensor(here()[0].tolist(), device="jax"),
    "as_tensor": lambda: torch.as_tensor(np.ones(2), device="jax"),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_these_devices_may_meet(name: str) -> None:
    assert ALLOWED[name]().device.type == "jax"


def test_copies_go_both_ways() -> None:
    assert there().copy_(here()).tolist() == here().tolist()
    x = torch.zeros(2, 3)
    x[:] = here()
    assert x.tolist() == here().tolist()
    assert here().to("cpu", non_blocking=True).tolist() == here().tolist()
    assert here().to("meta").is_meta
    assert here().to("cpu", torch.float16).dtype == torch.float16


def test_a_device_of_another_index_raises() -> None:
    for make in (
        lambda: torch.zeros(3, device="jax:1"),
        lambda: torch.rand(3, device="jax:1"),
        lambda: torch.ones(3).to("jax:1"),
        lambda: here().to("jax:1"),
        lambda: nn.Linear(2, 2).to("jax:1"),
    ):
        with pytest.raises(RuntimeError, match="jax:1"):
            make()
    assert torch.ones(3).to("jax:0").device == torch.device("jax", 0)


def test_the_default_device_can_be_ours() -> None:
    with torch.device("jax"):
        made = [torch.zeros(2), torch.tensor([1.0]), torch.arange(3), torch.randn(2), torch.eye(2)]
    assert {t.device.type for t in made} == {"jax"}


def test_the_accelerator_is_ours() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("jax")
    assert torch.accelerator.device_count() == 1
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    kept = torch.ones(1000, device="jax")
    assert torch.accelerator.memory_allocated() >= kept.nbytes
    assert isinstance(torch.accelerator.memory_stats(), dict)


def test_jitted_functions_may_synchronize_and_profile() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.profile():
            y = x + 1
        torch.accelerator.synchronize()
        return y

    jitted = calque.jit(step)
    assert [jitted(torch.ones(2, device="jax") * i).tolist() for i in range(2)] == [[1, 1], [2, 2]]


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX's own
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_loaders_feed_the_device() -> None:
    data = TensorDataset(torch.arange(8.0))
    for options in ({"num_workers": 2}, {"pin_memory": True}, {}):
        batches = [(x.to("jax") * 2).sum().item() for (x,) in DataLoader(data, 2, **options)]
        assert batches == [2, 10, 18, 26]


def test_host_values_are_read_as_on_any_device() -> None:
    assert int(torch.tensor(3, device="jax")) == 3
    assert float(torch.tensor(2.5, device="jax")) == 2.5
    assert not torch.tensor(0, device="jax")
    assert [1, 2, 3][torch.tensor(1, device="jax")] == 2
    assert f"{torch.tensor(3.14159, device='jax'):.2f}" == "3.14"
    assert list(range(9))[: torch.tensor(2, device="jax")] == [0, 1]
    assert torch.tensor(1j, device="jax").item() == 1j
    with pytest.raises(RuntimeError, match="6 elements"):
        here().item()
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(here() > 1)
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        here().numpy()
    assert here().numpy(force=True).tolist() == here().tolist()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.5, float("nan"), -2.25]),
        torch.arange(10_000),
        torch.empty(0, 3),
        torch.tensor(3.5),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2).to(torch.float8_e5m2),
        torch.ones(2, 3, dtype=torch.int8),
    ],
    ids=lambda t: str(t.dtype),
)
def test_tensors_print_as_on_the_cpu(tensor: torch.Tensor) -> None:
    shown = repr(tensor.to("jax"))
    assert "device='jax:0'" in shown
    plain = shown.replace(", device='jax:0'", "")
    assert "".join(plain.split()) == "".join(repr(tensor).split())
