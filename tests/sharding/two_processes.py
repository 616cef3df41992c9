"""What `test_processes.py` runs in two processes with four devices each."""

import os
import tempfile
from collections.abc import Callable

import jax
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

import calque
from calque import sharding
from calque.sharding import P

sharding.initialize()
RANK = jax.process_index()
mesh = sharding.mesh(dp=-1)


def refused(call: Callable[[], object], *said: str, kind: type = RuntimeError) -> None:
    with pytest.raises(kind) as raised:
        call()
    for one in said:
        assert one in str(raised.value)


def values_on_the_host() -> None:
    x = sharding.shard(torch.arange(16.0).reshape(8, 2), P("dp"))
    assert x.sum().item() == 120
    assert sharding.gather(x).cpu().tolist() == [[2.0 * i, 2.0 * i + 1] for i in range(8)]
    shown = repr(x)
    assert "shape=(8, 2)" in shown, shown
    assert f"process {RANK} of 2" in shown, shown
    for call in (x.cpu, x.tolist, x.nonzero, lambda: x[x > 3], lambda: torch.save(x, os.devnull)):
        refused(call, "calque.sharding.gather", f"process {RANK} of 2")
    replicated = sharding.shard(torch.arange(3.0), P())
    if RANK == 0:  # one process alone can read and print a replicated tensor
        assert replicated.tolist() == [0, 1, 2]
        assert repr(replicated) == "tensor([0., 1., 2.], device='jax:0')"
        torch.save({"weight": replicated}, os.devnull)


def disagreement() -> None:
    x = sharding.shard(torch.zeros(8), P("dp"))
    refused(lambda: sharding.shard(torch.full((8,), RANK), P()), "not the same in all processes")
    refused(lambda: x + torch.full((8,), float(RANK)).to("jax"), "process 1 differs from")


def disagreement_in_programs() -> None:
    x = sharding.shard(torch.zeros(8), P("dp"))
    refused(lambda: x.copy_(torch.full((8,), float(RANK))), "process 1 differs from")
    assert x.sum().item() == 0
    torch.manual_seed(RANK)
    step = calque.jit(lambda x: F.dropout(x + 1))
    refused(lambda: step(x), "seed")
    torch.manual_seed(3)
    step(x)
    rate = 0.1 * (RANK + 1)  # a constant of the compiled program
    refused(lambda: calque.jit(lambda: x.copy_((x * rate).sum()))(), "process 1 differs", "rate")
    refused(lambda: x.roll(RANK + 1, 0), "do not run the same program")
    assert x.sum().item() == 0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.norm(self.up(x))))


def trained(device: str, jit: bool) -> list[float]:
    torch.manual_seed(1)
    model = Net()
    batches = [(torch.randn(16, 16), torch.randint(0, 8, (16,))) for _ in range(4)]
    model.to(device)
    if device == "jax":
        for parameter in model.parameters():
            sharding.shard(parameter, sharding.along("dp"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run = calque.jit(step) if jit else step
    losses = []
    for x, y in batches:
        if device == "jax":
            x, y = sharding.shard(x, P("dp")), sharding.shard(y, P("dp"))
        losses.append(run(x, y))
    if device == "jax":
        assert sharding.placement(model.up.weight).spec == P("dp")
        moments = optimizer.state[model.up.weight]["exp_avg"]
        assert sharding.placement(moments).local_shape == (4, 16)
    return [loss.item() for loss in losses]


def training() -> None:
    expected = trained("cpu", False)
    for jit in (True, False):
        np.testing.assert_allclose(trained("jax", jit), expected, rtol=0, atol=5e-7)


def batches() -> None:
    def brought(rows: int, **axes: int) -> torch.Tensor:
        mine = torch.arange(rows * 4.0).reshape(rows, 4) + 100 * RANK
        (found,) = sharding.loader([mine], P("dp"), sharding.mesh(**axes))
        return sharding.gather(found).cpu()

    here = torch.arange(32.0).reshape(8, 4)
    # The last needs rows of the other process.
    for axes in ({"dp": 8}, {"dp": 2, "tp": 4}, {"tp": 2, "dp": 4}):
        assert torch.equal(brought(8, **axes), torch.cat([here, here + 100]))
    refused(lambda: brought(8 + 4 * RANK, dp=8), "different shapes", "(12, 4)")
    sharding.mesh(dp=8)


def bad_labels() -> None:
    logits = sharding.shard(torch.zeros(8, 4), P("dp"))
    labels = sharding.shard(torch.tensor([0, 1, 2, 9, 0, 1, 2, 9]), P("dp"))
    refused(lambda: F.cross_entropy(logits, labels), "9", kind=IndexError)


def state_that_joins() -> None:
    weights = [torch.ones(i + 1).to("jax") for i in range(12)]
    x = sharding.shard(torch.ones(8), P("dp"))
    total = calque.jit(lambda: sum((weight.sum() for weight in weights), x.sum()))
    assert total().item() == 8 + 78  # every process moves them in the same order


def flood() -> None:
    step = calque.jit(lambda x: (x + x.sum()) / 9)
    x = sharding.shard(torch.arange(8.0), P("dp"))
    for _ in range(50):
        x = step(x)
    assert abs(x.sum().item() - 28) < 1e-4


def collectives() -> None:
    if not dist.is_initialized():
        dist.init_process_group("calque")
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (RANK, 2, "calque")
    for device in ("cpu", "jax"):
        own = torch.tensor([1.0, 2.0], device=device) * (RANK + 1)
        summed, largest = own.clone(), own.clone()
        dist.all_reduce(summed)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        assert summed.tolist() == [3, 6]
        assert largest.tolist() == [2, 4]
        parts = [torch.zeros(2, device=device) for _ in range(2)]
        dist.all_gather(parts, own)
        assert [part.tolist() for part in parts] == [[1, 2], [2, 4]]
        sent = own.clone()
        dist.broadcast(sent, src=1)
        assert sent.tolist() == [2, 4]
        part = torch.zeros(1, device=device)
        dist.reduce_scatter_tensor(part, own)
        assert part.tolist() == [[3], [6]][RANK]
        whole = torch.zeros(4, device=device)
        dist.all_gather_into_tensor(whole, own)
        assert whole.tolist() == [1, 2, 2, 4]
        swapped = torch.zeros(2, device=device)
        dist.all_to_all_single(swapped, own)
        assert swapped.tolist() == [[1, 2], [2, 4]][RANK]
        dist.all_to_all(parts, [own, own + 10])
        assert [part.tolist() for part in parts] == [
            [[1, 2], [2, 4]],
            [[11, 12], [12, 14]],
        ][RANK]
    said = [None, None]
    dist.all_gather_object(said, f"I am {RANK}")
    assert said == ["I am 0", "I am 1"]
    dist.barrier()
    x = sharding.shard(torch.arange(8.0), P("dp"))
    refused(lambda: dist.all_reduce(x), "global already")
    refused(lambda: calque.jit(lambda y: dist.all_reduce(y))(own), "tensors are global")
    refused(lambda: functional.all_reduce(own, "sum", dist.group.WORLD), "torch.distributed itself")
    torch.jax.set_device(RANK)
    refused(lambda: torch.jax.set_device(5), "only index 0")
    sampler = DistributedSampler(list(range(8)), shuffle=False)
    assert list(sampler) == list(range(RANK, 8, 2))


def checkpoints() -> None:
    torch.manual_seed(RANK)
    refused(lambda: sharding.shard_module(Net().to("jax"), {}), "'up.weight'")
    torch.manual_seed(1)
    model = Net().to("jax")
    sharding.shard_module(model, {"*": sharding.along("dp")})
    box: list[str | None] = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(box, src=0)
    dcp.save(model.state_dict(), checkpoint_id=box[0])
    other = Net().to("jax")
    sharding.mesh(a=2, b=4)
    sharding.shard_module(other, {"*": sharding.along("b")})
    dcp.load(other.state_dict(), checkpoint_id=box[0])
    plain = Net().state_dict()
    dcp.load(plain, checkpoint_id=box[0])
    for name, value in model.state_dict().items():
        whole = sharding.gather(value).cpu()
        assert torch.equal(whole, sharding.gather(other.state_dict()[name]).cpu())
        assert torch.equal(whole, plain[name])


def state_dicts() -> None:
    torch.manual_seed(1)
    model = fully_shard(Net().to("jax"), mesh=init_device_mesh("jax", (8,)))
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    found = get_model_state_dict(model, options=options)
    torch.manual_seed(1)
    first = Net().state_dict() if RANK == 0 else {}
    assert found.keys() == first.keys()
    assert all(torch.equal(found[name], first[name]) for name in found)
    changed = {name: value + 1 for name, value in first.items()}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, changed, options=options)
    now = sharding.gather(model.up.weight).cpu()
    assert RANK or torch.equal(now, first["up.weight"] + 1)
    assert sharding.placement(model.up.weight).is_split


def names() -> None:
    torch.manual_seed(1)
    mesh = init_device_mesh("jax", (2, 4), mesh_dim_names=("dp", "tp"))
    assert mesh.get_local_rank("dp") == RANK
    assert mesh.get_coordinate() == (RANK, 0)
    assert mesh["tp"].mesh.tolist() == [4 * RANK + i for i in range(4)]
    model = fully_shard(Net().to("jax"), mesh=mesh["dp"])
    assert sharding.placement(model.up.weight).local_shape == (16, 16)
    batch = torch.randn(8, 4)
    spread = sharding.shard(batch, P(("dp", "tp")), mesh._jax_mesh)
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(4).to("jax"))
    expected = nn.BatchNorm1d(4)(batch)
    for run in (norm, calque.jit(norm)):
        torch.testing.assert_close(sharding.gather(run(spread)).cpu(), expected.detach())
    wrapped = DistributedDataParallel(Net().to("jax"))
    refused(lambda: wrapped(torch.randn(4, 16).to("jax")), "calque.sharding.loader")


def main() -> None:
    import sys
    import traceback

    for check in (
        values_on_the_host,
        disagreement,
        disagreement_in_programs,
        bad_labels,
        state_that_joins,
        flood,
        batches,
        training,
        collectives,
        checkpoints,
        state_dicts,
        names,
    ):
        if sys.argv[1:] and check.__name__ not in sys.argv[1:]:
            continue
        try:
            check()
        except Exception:
            os.write(2, f"process {RANK}: {traceback.format_exc()}\n".encode())
            raise
        os.write(1, f"{check.__name__} in {RANK}\n".encode())


if __name__ == "__main__":
    main()
