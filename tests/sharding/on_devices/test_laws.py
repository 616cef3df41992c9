"""A storage keeps its placement; tensors like another have its; a gradient has its parameter's."""

import copy
import io
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch import nn

import calque
from calque import sharding as sh
from calque.device.runtime import placement
from calque.program import other_devices
from calque.sharding import P, along

Tensor = torch.Tensor


@pytest.fixture
def x() -> Tensor:
    sh.mesh(dp=4, tp=2)
    return sh.shard(torch.arange(64.0).reshape(8, 8).to("jax"), P("dp", "tp"))


def spec_of(tensor: Tensor) -> P | None:
    found = sh.placement(tensor)
    return None if found is None else found.spec


WRITES: list[Callable[[Tensor], Any]] = [
    lambda x: x.copy_(torch.ones(8, 8)),
    lambda x: x.copy_(torch.ones(8)),
    lambda x: x.copy_(torch.ones(8, 8, dtype=torch.int64)),
    lambda x: x.copy_(torch.ones(8, 8, device="jax")),
    lambda x: x.normal_(),
    lambda x: x.zero_(),
    lambda x: x.fill_(2),
    lambda x: x.add_(x.sum()),
    lambda x: x.add_(torch.ones(8, device="jax")),
    lambda x: x[2:5].zero_(),
    lambda x: x.__setitem__((slice(None), 3), 1),
    lambda x: x.view(-1)[5].fill_(1),
    lambda x: x.t().mul_(2),
    lambda x: x.data.mul_(3),
    lambda x: torch.add(x, 1, out=x),
    lambda x: x.index_put_((torch.tensor([1, 2], device="jax"),), torch.tensor(3.0, device="jax")),
    lambda x: torch._foreach_mul_([x], 2.0),
    lambda x: nn.init.trunc_normal_(x),
    lambda x: calque.jit(lambda: x.mul_(2))(),
    lambda x: calque.jit(lambda y: y.mul_(2))(x),
    lambda x: calque.jit(lambda: x.copy_(torch.ones(8, 8, device="jax")))(),
    lambda x: calque.jit(lambda: x[1:3].zero_())(),
]


@pytest.mark.parametrize("write", WRITES)
def test_a_storage_keeps_its_placement_whatever_is_written(
    x: Tensor, write: Callable[[Tensor], Any]
) -> None:
    whole = x.cpu().to("jax")
    for _ in range(4):  # the fast path begins at the third call
        torch.manual_seed(1)
        write(x)
        torch.manual_seed(1)
        write(whole)
        assert spec_of(x) == P("dp", "tp")
        torch.testing.assert_close(x.cpu(), whole.cpu())


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.zero_(),
        lambda x: x.fill_(2),
        lambda x: x.normal_(),
        lambda x: x.uniform_(),
        lambda x: x.add_(1),
        lambda x: x.copy_(torch.ones(8, 8)),
        torch.zeros_like,
        torch.randn_like,
    ],
)
def test_no_device_makes_the_whole_of_what_is_spread(
    x: Tensor, write: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[Any] = []
    place = placement.placed

    def spying(array: Any, where: Any) -> Any:
        moved.append(array.shape)
        return place(array, where)

    # This moves results with a different placement.
    monkeypatch.setattr(placement, "placed", spying)
    with jax.transfer_guard_device_to_device("disallow_explicit"):
        for _ in range(4):
            write(x)
    assert moved == []


@pytest.mark.parametrize(
    "write",
    [
        lambda x, y: x.add_(y),
        lambda x, y: y.add_(x),
        lambda x, y: x.t().mul_(y),
        lambda x, y: x[2:4].add_(y[2:4]),
        lambda x, y: x.__setitem__(slice(1, 3), y[1:3]),
        lambda x, y: torch.add(x, y, out=x),
        lambda x, y: torch.mul(x[1:3], y[1:3], out=x[1:3]),
        lambda x, y: torch._foreach_add_([x], [y]),
        lambda x, y: x.index_add_(0, torch.arange(8).to(x.device), y),
        lambda x, y: x.copy_(y),
        lambda x, y: (x.detach().requires_grad_() * y).sum().backward(),
    ],
)
def test_a_write_from_a_mesh_of_other_devices_keeps_both_where_they_are(
    write: Callable[[Tensor, Tensor], Any],
) -> None:
    few = sh.mesh(a=2, devices=jax.devices()[:2])
    x = sh.shard(torch.arange(64.0).reshape(8, 8), P("a"), few)
    y = sh.shard(torch.arange(64.0).reshape(8, 8), P("dp"), sh.mesh(dp=8))
    on_cpu = x.cpu(), y.cpu()
    for _ in range(4):
        write(x, y)
        write(*on_cpu)
        assert (spec_of(x), spec_of(y)) == (P("a"), P("dp"))
        assert torch.equal(x, y) == torch.equal(*on_cpu)
        assert (x.tolist(), y.tolist()) == tuple(z.tolist() for z in on_cpu)


def test_a_gradient_from_a_mesh_of_other_devices_goes_to_its_parameter() -> None:
    few, many = sh.mesh(a=2, devices=jax.devices()[:2]), sh.mesh(dp=8)
    y = sh.shard(torch.ones(8), P("dp"), many)
    for _ in range(4):
        x = sh.shard(torch.arange(8.0, requires_grad=True), P("a"), few)
        (sh.constrain(x, "dp", mesh=many) * y * x).sum().backward()
        assert x.grad.tolist() == [2.0 * i for i in range(8)]
        assert spec_of(x.grad) == P("a")


@pytest.mark.parametrize("mode", ["jit", "jitted forward", "compile"])
def test_a_program_over_meshes_of_other_devices_moves_no_storage(mode: str) -> None:
    few, many = sh.mesh(a=2, devices=jax.devices()[:2]), sh.mesh(dp=8)
    torch.manual_seed(0)
    on_cpu = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    model = copy.deepcopy(on_cpu).to("jax")
    sh.shard_module(model[0], {"*": P("a")}, few)
    sh.shard_module(model[2], {"*": P("dp")}, many)
    placed = [sh.placement(p) for p in model.parameters()]

    def step_of(model: nn.Module, called: Any) -> Callable[[Tensor], Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = called(x).square().mean()
            loss.backward()
            optimizer.step()
            for p, place in zip(model.parameters(), placed, strict=True):
                if mode != "jit" and p.device.type == "jax":
                    assert sh.placement(p.grad) == place
            return loss.detach()

        return step

    compiled = torch.compile(model, backend="calque") if mode == "compile" else calque.jit(model)
    step = step_of(model, model if mode == "jit" else compiled)
    step = calque.jit(step) if mode == "jit" else step
    of_cpu = step_of(on_cpu, on_cpu)
    for i in range(3):
        x = torch.randn(8, 8)
        loss = step(sh.shard(x, P("dp"), many) if i else x.to("jax"))
        torch.testing.assert_close(loss.cpu(), of_cpu(x), rtol=1e-5, atol=1e-6)
        assert [sh.placement(p) for p in model.parameters()] == placed
        assert [sh.placement(p.grad) for p in model.parameters()] == placed


def test_a_step_whose_results_could_not_be_moved_changes_nothing(monkeypatch) -> None:
    few = sh.mesh(a=2, devices=jax.devices()[:2])
    x, y = sh.shard(torch.zeros(8), P("a"), few), sh.shard(torch.zeros(8), P("dp"), sh.mesh(dp=8))

    @calque.jit
    def step() -> None:
        x.add_(1)
        y.add_(1)

    step()
    step()
    move, calls = other_devices.placed, []

    def interrupted(array: Any, place: Any) -> Any:
        calls.append(place)
        if len(calls) == 2:
            raise TimeoutError
        return move(array, place)

    with monkeypatch.context() as patch:
        patch.setattr(other_devices, "placed", interrupted)
        with pytest.raises(TimeoutError):
            step()
    assert x.tolist() == y.tolist() == [2.0] * 8
    step()
    assert x.tolist() == y.tolist() == [3.0] * 8


def test_a_constraint_to_other_devices_than_those_of_a_program_is_one_to_all() -> None:
    few, many = sh.mesh(a=2, devices=jax.devices()[:2]), sh.mesh(dp=8)

    def once(x: Tensor) -> Tensor:
        return sh.constrain(x * 2, "a", mesh=few) + 1

    def run(x: Tensor, flag: Tensor) -> Tensor:
        return torch.cond(flag, once, torch.clone, (once(x),))

    x = sh.shard(torch.arange(8.0), P("dp"), many)
    for flag, factor in ((True, 4), (False, 2)):
        expected = [factor * i + factor - 1 for i in range(8)]
        assert calque.jit(run)(x, torch.tensor(flag).to("jax")).tolist() == expected


@pytest.mark.parametrize("spec", [P("dp"), P(None, "dp"), P("dp", "tp")])
def test_a_storage_that_was_emptied_for_a_while_is_placed_as_before(spec: P) -> None:
    sh.mesh(dp=4, tp=2)
    x = sh.shard(torch.ones(8, 8), spec)
    flat, storage = x.view(-1), x.untyped_storage()
    storage.resize_(0)
    assert sh.memory(x).whole["tensors"] == 0
    storage.resize_(4 * 64)
    assert x.sum().item() == 0
    x.copy_(torch.arange(64.0).reshape(8, 8))
    assert spec_of(x) == spec
    assert flat.tolist() == list(range(64))
    storage.resize_(4 * 24)  # a tensor of a different size stays on the mesh
    assert len(x.untyped_storage().cell.array.sharding.device_set) == 8
    assert flat[:24].tolist() == list(range(24))


@pytest.mark.parametrize(
    "like",
    [
        torch.empty_like,
        torch.zeros_like,
        torch.ones_like,
        torch.rand_like,
        torch.randn_like,
        lambda x: torch.full_like(x, 2.0),
        lambda x: torch.zeros_like(x, dtype=torch.int64),
        torch.clone,
        copy.deepcopy,
        lambda x: x.detach(),
        lambda x: x * 2 + 1,
        lambda x: x.to(torch.bfloat16),
    ],
)
def test_a_tensor_like_another_has_its_placement(x: Tensor, like: Callable[[Tensor], Any]) -> None:
    for _ in range(4):
        assert spec_of(like(x)) == P("dp", "tp")


def test_zeros_like_a_spread_tensor_made_in_a_program_are_spread(x: Tensor) -> None:
    kept: list[Tensor] = []

    @calque.jit
    def step(y: Tensor) -> Tensor:
        return torch.zeros_like(x) + y.sum()

    kept.append(step(torch.ones(3, device="jax")))
    assert spec_of(kept[0]) == P("dp", "tp")


def test_a_view_lies_where_its_base_does(x: Tensor) -> None:
    view = x.view(-1)
    view[3] = 100
    assert x[0, 3].item() == 100
    assert spec_of(x) == P("dp", "tp")


def model_of(plan: Any = None) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to("jax")
    return sh.shard_module(model, {"*": along("dp")} if plan is None else plan)


def specs(module: nn.Module) -> list[P | None]:
    return [spec_of(p) for p in module.parameters()]


@pytest.mark.parametrize("way", ["eager", "jit", "copied", "grad", "twice", "checkpoint", "func"])
def test_a_gradient_has_the_placement_of_its_parameter(way: str) -> None:
    sh.mesh(dp=8)
    model = model_of()
    x = sh.shard(torch.randn(32, 16), P("dp"))
    if way == "copied":
        model = copy.deepcopy(model)

    def loss() -> Tensor:
        if way == "checkpoint":
            y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
            return y.pow(2).mean()
        return model(x).pow(2).mean()

    parameters = list(model.parameters())
    if way == "grad":
        found = torch.autograd.grad(loss(), parameters, create_graph=True)
        torch.stack([g.sum() for g in found]).sum().backward()
    elif way == "jit":
        found = calque.jit(lambda: torch.autograd.grad(loss(), parameters))()
        calque.jit(lambda: loss().backward())()
    elif way == "func":
        named = dict(model.named_parameters())
        of = torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).mean())
        found = list(of(named).values())
        assert [g.shape for g in found] == [p.shape for p in parameters]
        return
    else:
        loss().backward()
        if way == "twice":
            loss().backward()
        found = [p.grad for p in parameters]
    assert [spec_of(g) for g in found] == specs(model)
    assert [spec_of(p.grad) for p in parameters] == specs(model)


def test_what_a_program_makes_like_a_gradient_lies_as_the_parameter() -> None:
    sh.mesh(dp=8)
    model = model_of()

    @calque.jit
    def step() -> list[Tensor]:
        model(torch.ones(8, 16, device="jax")).sum().backward()
        gradients = [p.grad for p in model.parameters()]
        model.zero_grad()
        return [torch.full_like(one, 2.0) for one in gradients if one is not None]

    assert [spec_of(one) for one in step()] == specs(model)


def test_no_hook_is_left_behind() -> None:
    sh.mesh(dp=8)
    model = model_of()
    model(sh.shard(torch.randn(8, 16), P("dp"))).sum().backward()
    for p in model.parameters():
        assert not p._backward_hooks
        assert not p._post_accumulate_grad_hooks


def test_state_dicts_are_loaded_and_saved_without_moving_anything() -> None:
    sh.mesh(dp=8)
    model, other = model_of(), model_of()
    before = specs(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(sh.shard(torch.randn(8, 16), P("dp"))).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file)
    on_cpu = torch.load(io.BytesIO(file.getvalue()), map_location="cpu")
    for name, tensor in model.state_dict().items():
        assert on_cpu["model"][name].equal(tensor.cpu())
    other.load_state_dict(loaded["model"])
    assert specs(other) == before
    again = torch.optim.AdamW(other.parameters())
    again.load_state_dict(loaded["optimizer"])
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert a.cpu().equal(b.cpu())
    other(sh.shard(torch.randn(8, 16), P("dp"))).sum().backward()
    again.step()
    assert specs(other) == before
    other.load_state_dict(on_cpu["model"])
    assert specs(other) == before


def test_a_loaded_optimizer_has_its_state_where_the_parameters_are() -> None:
    sh.mesh(dp=8)
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters())
    model(sh.shard(torch.randn(8, 16), P("dp"))).sum().backward()
    optimizer.step()
    again = torch.optim.AdamW(model.parameters())
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for state in again.state.values():
        assert spec_of(state["exp_avg"]) == P("dp")


def test_tensors_that_are_assigned_lie_where_those_before_them_lay() -> None:
    sh.mesh(dp=8)
    model, before = model_of(), specs(model_of())
    several = torch.randn(2, 16, device="jax")
    given = {name: value.cpu() + 1 for name, value in model.state_dict().items()}
    moved = {name: value.to("jax") for name, value in given.items()} | {"2.bias": several[1]}
    model.load_state_dict(moved, assign=True)
    assert specs(model) == before
    assert model[0].weight.cpu().equal(given["0.weight"])
    assert model[2].bias.cpu().equal(several[1].cpu())
    moved["0.weight"].zero_()
    assert model[0].weight.count_nonzero().item() == 0  # assigned, not copied
    other = {name: sh.shard(value, P()) for name, value in given.items()}
    model.load_state_dict(other, assign=True)
    assert set(specs(model)) == {P()}  # existing placements are kept


@pytest.mark.parametrize("device", [None, "cpu"])
def test_an_optimizer_loads_a_file_to_where_the_parameters_are(device: str | None) -> None:
    sh.mesh(dp=8)
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters())
    model(sh.shard(torch.randn(8, 16), P("dp"))).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    again = torch.optim.AdamW(model.parameters())
    again.load_state_dict(torch.load(file, map_location=device))
    for parameter, state in again.state.items():
        assert sh.placement(state["exp_avg"]) == sh.placement(parameter)
        assert state["exp_avg"].cpu().equal(optimizer.state[parameter]["exp_avg"].cpu())
        assert sh.placement(state["step"]) is None


def test_an_unplaced_tensor_goes_along_and_one_of_a_single_device_too(x: Tensor) -> None:
    there = calque.to_torch(jax.device_put(jax.numpy.ones((8, 8)), jax.devices()[3]))
    here = calque.to_torch(jax.device_put(jax.numpy.ones((8, 8)), jax.devices()[0]))
    for _ in range(4):
        assert (x + there).sum().item() == x.sum().item() + 64
        assert (here + x).sum().item() == x.sum().item() + 64
        assert (there + here).sum().item() == 128


def test_values_are_told_when_they_are_asked_for(x: Tensor) -> None:
    assert x[1, 1].item() == 9
    assert x.tolist()[7][7] == 63
    assert "63" in repr(x)
    assert bool((x >= 0).all())
    assert x.nonzero().shape == (63, 2)
