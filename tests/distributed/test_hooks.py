"""Until a mesh of type "jax" is asked for, `torch.distributed` is PyTorch's own."""

from tests import new_process

PROGRAM = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.tensor as tensor
import torch.distributed.tensor.parallel.style as style
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

before = vars(tensor).copy(), vars(torch.Tensor).copy(), vars(style.ColwiseParallel).copy()
wrapped = DistributedDataParallel.__init__
import calque
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = dist.init_device_mesh("cpu", (1,))
assert type(mesh) is dist.device_mesh.DeviceMesh
assert mesh.get_group() is not None
assert "calque.distributed.dispatch_patches" not in sys.modules
assert before[0] == vars(tensor)
assert before[2] == vars(style.ColwiseParallel)
assert DistributedDataParallel.__init__ is wrapped
assert not hasattr(torch.Tensor, "placements")
model = fully_shard(torch.nn.Linear(2, 2), mesh=mesh)
assert type(model.weight.data) is tensor.DTensor
"""


def test_meshes_of_the_cpu_bring_nothing_of_ours() -> None:
    done = new_process.run(PROGRAM)
    assert done.returncode == 0, done.stderr[-3000:]


GROUP = """
import torch
import torch.distributed as dist
import calque
dist.init_process_group("calque", store=dist.HashStore(), rank=0, world_size=1)
for device in ("cpu", "jax"):
    x = torch.arange(3.0, device=device)
    dist.all_reduce(x)
    assert x.tolist() == [0, 1, 2]
dist.destroy_process_group()
"""


def test_a_group_of_processes_is_made_and_reduces_on_both_devices() -> None:
    new_process.check(GROUP)
