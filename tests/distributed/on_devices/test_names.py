"""Scripts with PyTorch's distributed names run over a mesh of type "jax"."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import _functional_collectives, tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import calque
from calque import sharding
from calque.sharding import P


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.size = dim // heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            w(x).view(batch, length, -1, self.size).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=True)
        return self.wo(y.transpose(1, 2).contiguous().view(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(dim, 4 * dim, bias=False)
        self.w2 = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(dim, 4), FeedForward(dim)
        self.attention_norm, self.ffn_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x), mask)
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    def __init__(self, words: int = 64, dim: int = 32) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(words, dim)
        self.layers = nn.ModuleList(Block(dim) for _ in range(1))
        self.norm, self.output = nn.LayerNorm(dim), nn.Linear(dim, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, None)
        return self.output(self.norm(h)).float()


def parallelized(model: Transformer, tp_mesh: DeviceMesh) -> nn.Module:
    """The plan of PyTorch's tensor-parallel tutorial, with sequence parallel."""
    model = parallelize_module(
        model,
        tp_mesh,
        {
            "tok_embeddings": RowwiseParallel(
                input_layouts=Replicate(),
                output_layouts=Shard(1),
            ),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(
                input_layouts=Shard(1),
                output_layouts=Replicate(),
            ),
        },
    )
    for layer in model.layers:
        plan = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None),
                desired_input_layouts=(Replicate(), None),
            ),
            "attention.wq": ColwiseParallel(use_local_output=False),
            "attention.wk": ColwiseParallel(use_local_output=False),
            "attention.wv": ColwiseParallel(use_local_output=False),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(
                input_layouts=(Shard(1),),
                desired_input_layouts=(Replicate(),),
            ),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            "feed_forward.w3": ColwiseParallel(),
        }
        parallelize_module(module=layer, device_mesh=tp_mesh, parallelize_plan=plan)
    return model


def losses(model: nn.Module, device: str, jit: bool) -> tuple[list[float], torch.optim.Optimizer]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run = calque.jit(step) if jit else step
    random = torch.Generator().manual_seed(1)
    found = []
    for _ in range(3):
        x, y = (torch.randint(0, 64, (8, 16), generator=random).to(device) for _ in range(2))
        found.append(run(x, y).item())
    return found, optimizer


def transformer(device: str) -> Transformer:
    torch.manual_seed(0)
    return Transformer().to(device)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(64, 32), nn.Linear(32, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(F.gelu(self.embedding(tokens)))


def words(device: str) -> Words:
    torch.manual_seed(0)
    return Words().to(device)


@pytest.mark.conformance
def test_the_tutorial_of_tensor_parallelism_with_fsdp() -> None:
    mesh_2d = init_device_mesh("jax", (4, 2), mesh_dim_names=("dp", "tp"))
    tp_mesh, dp_mesh = mesh_2d["tp"], mesh_2d["dp"]
    model = parallelized(transformer("jax"), tp_mesh)
    sharded_model = fully_shard(model, mesh=dp_mesh)
    found, optimizer = losses(sharded_model, "jax", True)
    expected = losses(transformer("cpu"), "cpu", False)[0]
    assert found == pytest.approx(expected, rel=0, abs=5e-7)
    weight = model.layers[0].attention.wq.weight
    for held in (weight, optimizer.state[weight]["exp_avg"]):
        assert sharding.placement(held).spec == P("tp", "dp")
    assert weight.placements == (Shard(1), Shard(0))
    kept = sharding.memory(model, optimizer)
    assert kept.share < 1 / 8 + 0.01


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(8,), (2, 4)])
def test_fully_shard_splits_weights_gradients_and_moments(shape: tuple[int, ...]) -> None:
    mesh = init_device_mesh("jax", shape, mesh_dim_names=("replicate", "dp")[-len(shape) :])
    model = words("jax")
    fully_shard(model.output, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert isinstance(model, FSDPModule)
    assert isinstance(model, Words)
    found, optimizer = losses(model, "jax", True)
    assert found == pytest.approx(losses(words("cpu"), "cpu", False)[0], rel=0, abs=5e-7)
    weight = model.output.weight
    assert sharding.placement(weight).local_shape == (64 // shape[-1], 32)
    moment = optimizer.state[weight]["exp_avg_sq"]
    assert sharding.placement(moment).local_shape == (64 // shape[-1], 32)
    model.set_requires_gradient_sync(False)
    model(torch.zeros(8, 16, dtype=torch.int64, device="jax")).sum().backward()
    assert sharding.placement(weight.grad).local_shape == (64 // shape[-1], 32)
    copied = copy.deepcopy(model)
    assert sharding.placement(copied.output.weight) == sharding.placement(weight)


def test_parameters_that_a_mesh_does_not_divide_stay_whole_with_a_warning() -> None:
    mesh = init_device_mesh("jax", (8,))
    model = nn.Sequential(nn.Linear(7, 9, bias=False), nn.Linear(9, 16)).to("jax")
    expected = model(torch.ones(8, 7, device="jax")).tolist()
    with pytest.warns(UserWarning, match=r"0\.weight \(9, 7\)"):
        fully_shard(model, mesh=mesh)
    assert not sharding.placement(model[0].weight).is_split
    assert sharding.placement(model[1].weight).local_shape == (2, 9)
    assert model(torch.ones(8, 7, device="jax")).cpu().allclose(torch.tensor(expected))


def test_a_style_that_a_mesh_does_not_divide_names_the_layer() -> None:
    mesh = init_device_mesh("jax", (8,))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 9)).to("jax")
    with pytest.raises(ValueError, match=r"weight of Linear\(in_features=8, out_features=9"):
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": ColwiseParallel()})
    with pytest.raises(ValueError, match=r"1\.weight of Sequential.*evenly"):
        fully_shard(model, mesh=mesh, shard_placement_fn=lambda parameter: Shard(0))


def test_what_fully_shard_cannot_do_is_refused() -> None:
    mesh = init_device_mesh("jax", (8,))
    with pytest.raises(NotImplementedError, match="autocast"):
        fully_shard(
            nn.Linear(8, 8).to("jax"),
            mesh=mesh,
            mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16),
        )
    layer = fully_shard(nn.Linear(8, 8).to("jax"), mesh=mesh)
    with pytest.raises(NotImplementedError, match="scale the loss"):
        layer.set_gradient_divide_factor(2.0)


def test_the_frames_of_an_error_can_be_looked_at() -> None:
    mesh = init_device_mesh("jax", (8,))
    with pytest.raises(ValueError, match="evenly") as raised:
        distribute_tensor(torch.ones(3), mesh, [Shard(0)])
    with pytest.raises(NotImplementedError) as refused:
        fully_shard(nn.Linear(8, 8).to("jax"), mesh=mesh, offload_policy=CPUOffloadPolicy())
    names = {step.frame.code.name for one in (raised, refused) for step in one.traceback}
    assert {"route", "fully_shard"} <= names
    for step in (*raised.traceback, *refused.traceback):
        assert isinstance(dict(step.frame.f_locals), dict)


def test_distributed_data_parallel_replicates_weights() -> None:
    init_device_mesh("jax", (8,), mesh_dim_names=("data",))
    model = DistributedDataParallel(words("jax"))
    found, optimizer = losses(model, "jax", True)
    assert found == pytest.approx(losses(words("cpu"), "cpu", False)[0], rel=0, abs=5e-7)
    assert isinstance(model, DistributedDataParallel)
    assert next(name for name, _ in model.named_parameters()) == "module.embedding.weight"
    weight = model.module.output.weight
    assert sharding.placement(optimizer.state[weight]["exp_avg"]).spec == P()
    out = model(torch.zeros(8, 16, dtype=torch.int64, device="jax"))
    assert sharding.placement(out.clone()).local_shape[0] == 1


def test_models_of_the_cpu_move_and_shared_weights_stay_shared() -> None:
    mesh = init_device_mesh("jax", (8,))
    model = nn.ModuleDict({"in": nn.Embedding(16, 8), "out": nn.Linear(8, 16, bias=False)})
    model["out"].weight = model["in"].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    fully_shard(model, mesh=mesh)
    assert model["out"].weight is model["in"].weight is optimizer.param_groups[0]["params"][0]
    assert sharding.placement(model["in"].weight).local_shape == (2, 8)
    with pytest.raises((ValueError, AssertionError), match="already"):
        fully_shard(model, mesh=mesh)


def test_torch_compile_takes_parallel_models_as_one_graph() -> None:
    mesh = init_device_mesh("jax", (4, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to("jax")
    x = torch.ones(4, 8, device="jax")
    expected = model(x).detach().cpu()
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    found = torch.compile(model, backend="calque", fullgraph=True)(x)
    assert torch.allclose(found.cpu(), expected, atol=1e-6)
    found.sum().backward()
    assert sharding.placement(model[0].weight.grad).spec == P("tp", "dp")


def test_tensors_are_distributed_as_plain_ones() -> None:
    mesh = init_device_mesh("jax", (4, 2), mesh_dim_names=("dp", "tp"))
    host = torch.arange(64.0).reshape(8, 8).requires_grad_()
    x = distribute_tensor(host, mesh, [Shard(0), Shard(1)])
    assert type(x) is torch.Tensor
    assert x.requires_grad
    assert x.device_mesh is mesh
    assert sharding.placement(x).local_shape == (2, 4)
    assert x.full_tensor().tolist() == host.tolist()
    moved = x.redistribute(placements=[Replicate(), Shard(0)])
    assert moved.placements == (Replicate(), Shard(0))
    moved.sum().backward()
    assert x.grad.tolist() == torch.ones(8, 8).tolist()
    with pytest.raises(RuntimeError, match="tensors are global here"):
        x.to_local()
    whole = distribute_tensor(host, mesh, [Replicate(), Replicate()])
    assert whole.to_local() is whole
    with pytest.raises(NotImplementedError, match="Partial"):
        distribute_tensor(host, mesh, [Partial(), Replicate()])
    with pytest.raises(NotImplementedError, match="no local ones"):
        DTensor.from_local(host, mesh, [Replicate(), Replicate()])
    module = distribute_module(nn.Linear(8, 8), mesh)
    assert module.weight.placements == (Replicate(), Replicate())


@pytest.mark.parametrize(
    ("make", "like"),
    [
        (lambda *a, **k: tensor.zeros(*a, **k), torch.zeros),
        (lambda *a, **k: tensor.ones(*a, dtype=torch.int64, **k), torch.ones),
        (lambda *a, **k: tensor.full(*a, 2.0, **k), lambda *a, **k: torch.full(*a, 2.0, **k)),
        (lambda *a, **k: tensor.randn(*a, requires_grad=True, **k), torch.randn),
        (lambda *a, **k: tensor.rand(*a, **k), torch.rand),
    ],
)
def test_tensors_are_made_where_they_lie(make: Any, like: Any) -> None:
    mesh = init_device_mesh("jax", (4, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(3)
    made = make((8, 6), device_mesh=mesh, placements=[Shard(0), Shard(1)])
    torch.manual_seed(3)
    expected = like((8, 6), device="jax")
    assert type(made) is torch.Tensor
    assert made.placements == (Shard(0), Shard(1))
    assert sharding.placement(made).local_shape == (2, 3)
    assert made.tolist() == expected.tolist()
    with pytest.raises(ValueError, match="evenly"):
        make((3, 6), device_mesh=mesh, placements=[Shard(0), Shard(1)])


def test_what_needs_a_group_for_each_device_is_refused() -> None:
    mesh = init_device_mesh("jax", (8,))
    x = torch.ones(8, 4, device="jax")
    with pytest.raises(RuntimeError, match="counts devices"):
        _functional_collectives.all_reduce(x, "sum", mesh)
    with pytest.raises(NotImplementedError, match="fully_shard"):
        FullyShardedDataParallel(nn.Linear(8, 8).to("jax"), device_mesh=mesh)


def test_outputs_are_prepared() -> None:
    mesh = init_device_mesh("jax", (8,), mesh_dim_names=("tp",))
    style = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0))
    layer = parallelize_module(nn.Linear(4, 4).to("jax"), mesh, style)
    assert sharding.placement(layer(torch.ones(8, 4, device="jax"))).local_shape == (1, 4)
    with pytest.raises(ValueError, match="one dimension"):
        parallelize_module(nn.Linear(4, 4).to("jax"), init_device_mesh("jax", (4, 2)), style)


def test_a_mesh_counts_devices() -> None:
    mesh = init_device_mesh("jax", (4, 2), mesh_dim_names=("dp", "tp"))
    assert (mesh.size(), mesh["tp"].size(), mesh.shape, mesh.ndim) == (8, 2, (4, 2), 2)
    assert mesh.get_coordinate() == (0, 0)
    assert mesh["tp"].mesh.tolist() == [0, 1]
    with pytest.warns(UserWarning, match="4 places along dp"):
        assert mesh.get_local_rank("dp") == 0
    with pytest.raises(RuntimeError, match="counts devices"):
        mesh.get_group("tp")
    with pytest.raises(ValueError, match="does not fit the 8 available devices"):
        init_device_mesh("jax", (3,))
    both = mesh["dp", "tp"]._flatten("all")
    x = distribute_tensor(torch.zeros(16), both, [Shard(0)])
    assert sharding.placement(x).local_shape == (2,)


@pytest.fixture
def gloo(tmp_path) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_meshes_of_the_cpu_are_untouched(gloo: None) -> None:
    init_device_mesh("jax", (8,))
    mesh = init_device_mesh("cpu", (1,))
    assert type(mesh) is DeviceMesh
    x = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    assert isinstance(x, DTensor)
    assert x.to_local().tolist() == [1, 1, 1, 1]
    layer = parallelize_module(nn.Linear(4, 4), mesh, ColwiseParallel())
    assert isinstance(layer.weight, DTensor)
    assert layer(torch.ones(2, 4)).shape == (2, 4)
    model = fully_shard(nn.Linear(4, 4), mesh=mesh)
    assert isinstance(model.weight, DTensor)
    assert not hasattr(torch.ones(3), "placements")
    wrapped = DistributedDataParallel(nn.Linear(4, 4))
    assert type(wrapped) is DistributedDataParallel
    wrapped(torch.ones(2, 4)).sum().backward()
