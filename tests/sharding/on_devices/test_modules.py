"""Plans, modules made on the mesh, constraints, batches, accounts of memory and pictures."""

from typing import Any

import jax
import pytest
import torch
from torch import nn

import calque
from calque import sharding as sh
from calque.sharding import P, along


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(self.up(x)))


def specs(module: nn.Module) -> dict[str, Any]:
    found = {name: sh.placement(t) for name, t in module.state_dict().items()}
    return {name: None if one is None else one.spec for name, one in found.items()}


def test_the_first_pattern_that_fits_counts_and_the_rest_is_whole() -> None:
    sh.mesh(dp=4, tp=2)
    plan = {"up.weight": P("tp", "dp"), "*.weight": along("dp"), "down.bias": P("tp")}
    assert specs(sh.shard_module(Net().to("jax"), plan)) == {
        "up.weight": P("tp", "dp"),
        "up.bias": P(),
        "norm.weight": P("dp"),
        "norm.bias": P(),
        "norm.running_mean": P(),
        "norm.running_var": P(),
        "norm.num_batches_tracked": P(),
        "down.weight": P("dp"),
        "down.bias": P("tp"),
    }


def test_all_that_is_wrong_with_a_plan_is_told_at_once_and_nothing_changes() -> None:
    sh.mesh(dp=8)
    model = Net().to("jax")
    with pytest.raises(ValueError, match="fit the module") as told:
        sh.shard_module(model, {"upp.*": P(), "*.num_batches_tracked": P("dp"), "*": P(None, "dp")})
    for part in ("'upp.*'", "norm.num_batches_tracked", "up.bias: ", "norm.running_mean: "):
        assert part in str(told.value)
    assert set(specs(model).values()) == {None}


def test_a_module_elsewhere_is_refused() -> None:
    sh.mesh(dp=8)
    with pytest.raises(ValueError, match=r"\.to\('jax'\)"):
        sh.shard_module(Net(), {})


def test_shared_weights_stay_shared() -> None:
    sh.mesh(dp=8)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        model[1].weight = model[0].weight
    sh.materialize(model, {"1.weight": P("dp")})
    assert model[1].weight is model[0].weight
    assert specs(model)["0.weight"] == P("dp")


def test_a_module_made_on_the_mesh_has_the_same_numbers_on_every_mesh() -> None:
    found = []
    meshes = [sh.mesh(dp=8), sh.mesh(dp=2, tp=4), sh.mesh(dp=1, devices=jax.devices()[:1])]
    for mesh in meshes:
        torch.manual_seed(3)
        with torch.device("meta"):
            model = Net()
        sh.materialize(model, {"*": along("dp")}, mesh)
        assert isinstance(model.up.weight, nn.Parameter)
        assert model.norm.running_var.eq(1).all()
        assert 0.1 < model.up.weight.std().item() < 0.3
        found.append([tensor.cpu() for tensor in model.state_dict().values()])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_a_row_of_padding_made_on_the_mesh_is_zero() -> None:
    sh.mesh(dp=8)
    with torch.device("meta"):
        words = nn.Embedding(16, 8, padding_idx=1)
    sh.materialize(words, {"weight": P("dp")})
    assert words.weight.count_nonzero(1).eq(8).tolist() == [i != 1 for i in range(16)]


def test_a_module_that_does_not_say_its_first_values_needs_a_function_that_does() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))

    sh.mesh(dp=8)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), Scale())
    with pytest.raises(ValueError, match=r"1 \(Scale\)"):
        sh.materialize(model, {})
    assert model[1].scale.is_meta

    def init(module: nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            nn.init.constant_(parameter, 2)

    sh.materialize(model, {"*": along("dp")}, init=init)
    assert model[1].scale.eq(2).all()
    assert model[0].weight.eq(2).all()


def test_no_device_holds_a_whole_model_while_it_is_made() -> None:
    from calque.sharding import materializing

    seen = []

    def spying(fill: Any, verify: bool) -> Any:
        jitted = calque.jit(fill, verify=verify)
        seen.append(jitted)
        return jitted

    sh.mesh(dp=8)
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))
    whole = sum(p.numel() * 4 for p in model.parameters())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(materializing, "jit", spying)
        sh.materialize(model, {"*": along("dp")})
    needed = seen[0].lower().compile().memory_analysis()
    assert needed.output_size_in_bytes <= whole / 8 * 1.01
    assert needed.temp_size_in_bytes <= whole / 4


@pytest.mark.parametrize("way", ["eager", "jit", "compile"])
def test_a_constraint_holds_of_the_value_and_of_its_gradient(way: str) -> None:
    mesh, spec = sh.mesh(dp=4, tp=2), P("dp")
    x = torch.randn(8, 4, 2, device="jax", requires_grad=True)

    def run(x: torch.Tensor) -> torch.Tensor:
        return sh.constrain(sh.constrain(x * 2, "dp", ..., mesh=mesh).sin(), spec, mesh=mesh)

    wrap = {"eager": lambda f: f, "jit": calque.jit, "compile": torch.compile}[way]
    run = torch.compile(run, backend="calque", fullgraph=True) if way == "compile" else wrap(run)
    y = run(x)
    placed = sh.placement(y)
    assert placed is not None
    assert placed.local_shape[0] == 2
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * (2 * x.detach()).cos())


@pytest.mark.parametrize("entries", [("dp", ..., ...), ("cp",), (None, "dp"), ("dp",) * 3])
def test_a_constraint_that_does_not_fit_is_refused(entries: Any) -> None:
    sh.mesh(dp=8)
    with pytest.raises(ValueError, match=r"once|no axis|evenly|dimensions|two dimensions"):
        sh.constrain(torch.zeros(8, 2, device="jax"), *entries)


def test_a_constraint_of_a_tensor_on_the_cpu_names_the_remedy() -> None:
    sh.mesh(dp=8)
    with pytest.raises(ValueError, match=r"\.to\('jax'\) first"):
        sh.constrain(torch.zeros(8), "dp")


def test_batches_are_spread_and_the_rest_is_passed_on() -> None:
    sh.mesh(dp=8)
    batches = [{"x": torch.arange(16).reshape(8, 2), "n": 3, "t": torch.tensor(1.0)}]
    (batch,) = sh.loader(batches)
    assert batch["n"] == 3
    assert batch["t"] is batches[0]["t"]
    assert sh.placement(batch["x"]).spec == P("dp")
    assert batch["x"].cpu().equal(batches[0]["x"])
    with pytest.raises(ValueError, match="drop_last"):
        next(sh.loader([torch.zeros(6, 2)], P("dp")))


def test_parts_make_the_whole() -> None:
    sh.mesh(dp=4, tp=2)
    x = torch.arange(64.0).reshape(8, 8)
    found = torch.zeros(8, 8)
    for part in sh.local(sh.shard(x, P("dp", "tp"))):
        assert part.value.shape == (2, 4)
        found[part.index] += part.value
    assert found.equal(x)


def test_bytes_are_counted_once_and_by_kind() -> None:
    sh.mesh(dp=8)
    model = sh.shard_module(Net().to("jax"), {"*.weight": along("dp")})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(sh.shard(torch.randn(8, 8), P("dp"))).sum().backward()
    optimizer.step()
    found = sh.memory(model, optimizer, {"again": model.up.weight}, torch.ones(2, device="jax"))
    count = sum(p.numel() for p in model.parameters()) * 4
    split = (128 + 16 + 128) * 4
    each = split // 8 + count - split
    assert found.whole["parameters"] == found.whole["gradients"] == found.whole["state"] == count
    assert found.whole["tensors"] == 8
    assert {kinds["parameters"] for kinds in found.devices.values()} == {each}
    assert "whole" in str(found)
    assert "<table>" in found._repr_html_()


def test_a_placement_is_shown_as_a_picture() -> None:
    sh.mesh(dp=4, tp=2)
    x = sh.shard(torch.zeros(8, 8), P("tp"))
    assert str(sh.placement(x)).splitlines()[1:] == [
        " dim 0 |   all   ",
        "-------+---------",
        "  0:4  | 0,2,4,6 ",
        "-------+---------",
        "  4:8  | 1,3,5,7 ",
    ]
    assert "device 1,3,5,7" in sh.placement(x)._repr_html_()
    sh.mesh(a=2, b=2, c=2)
    deep = str(sh.placement(sh.shard(torch.zeros(2, 2, 2), P("a", "b", "c"))))
    assert "[1:2, 0:1, 1:2]  device 5" in deep


def test_an_unplaced_batch_gives_the_same_and_state_without_a_placement_is_moved_once() -> None:
    sh.mesh(dp=8)
    torch.manual_seed(0)
    whole, model = Net().to("jax"), Net().to("jax")
    model.load_state_dict(whole.state_dict())
    for name, parameter in model.named_parameters():
        if name.startswith("up"):
            sh.shard(parameter.detach(), along("dp"))
    a, b = calque.jit(lambda x: model(x).sum()), calque.jit(lambda x: whole(x).sum())
    for _ in range(3):
        x = torch.randn(8, 8)
        torch.testing.assert_close(a(x.to("jax")), b(x.to("jax")), rtol=1e-4, atol=1e-4)
    assert a.history == ["first call"]
    assert specs(model)["norm.running_mean"] == P()


def test_after_an_error_every_tensor_is_as_it_was() -> None:
    sh.mesh(dp=8)
    weight = sh.shard(torch.ones(8, 8), P("dp"))

    @calque.jit(checks=True)
    def step(i: torch.Tensor) -> torch.Tensor:
        weight.mul_(2)
        return weight[i]

    step(torch.tensor([1], device="jax"))
    with pytest.raises(IndexError):
        step(torch.tensor([99], device="jax"))
    assert weight.eq(2).all()
    assert sh.placement(weight).spec == P("dp")
