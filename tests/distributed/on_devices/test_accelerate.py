"""A loop with accelerate over a model that is spread: its losses are the CPU's."""

import copy
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from calque import sharding as sh

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate"),
    pytest.mark.conformance,
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from accelerate.state import AcceleratorState  # pyright: ignore[reportMissingImports]

    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "jax")
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


def loop(model: nn.Module, folder: Path | None) -> list[float]:
    """Accumulation, clipping, a scheduler; with a folder, accelerate's, and a checkpoint there."""
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(64, 16), torch.randint(0, 8, (64,)))
    batches: Any = DataLoader(data, batch_size=16)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler: Any = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    accelerator = None
    if folder is not None:
        from accelerate import Accelerator  # pyright: ignore[reportMissingImports]

        accelerator = Accelerator(gradient_accumulation_steps=2)
        model, optimizer, batches, scheduler = accelerator.prepare(
            model, optimizer, batches, scheduler
        )
    found = []
    for index, (x, y) in enumerate(batches):
        loss = F.cross_entropy(model(x), y)
        found.append(loss.item())
        if accelerator is None:
            (loss / 2).backward()
        else:
            accelerator.backward(loss)
        if index % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    if accelerator is not None:
        accelerator.save_state(str(folder))
        before = [p.detach().cpu() for p in model.parameters()]
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        accelerator.load_state(str(folder))
        for was, now in zip(before, model.parameters(), strict=True):
            assert torch.equal(was, now.cpu())
    return found


@pytest.mark.usefixtures("device")
def test_the_losses_are_those_of_the_cpu_and_checkpoints_move_nothing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8))
    model = copy.deepcopy(plain).to("jax")
    fully_shard(model, mesh=init_device_mesh("jax", (8,), mesh_dim_names=("dp",)))
    assert loop(model, tmp_path) == pytest.approx(loop(plain, None), rel=0, abs=5e-7)
    assert sh.placement(model[0].weight).local_shape == (8, 16)
