"""PyTorch's autograd and function transforms on device tensors: nothing about them is special."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import calque  # noqa: F401


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    cpu = torch.linspace(-1, 2, 6).reshape(2, 3)
    return cpu, cpu.to("jax")


TRANSFORMS = {
    "vmap": lambda x: torch.func.vmap(lambda r: r.sum() * r)(x),
    "grad": lambda x: torch.func.grad(lambda y: (y**3).sum())(x),
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1],
    "jvp of a result along a view": lambda x: torch.func.jvp(
        lambda y: y.norm(dim=0), (x + 1,), (x.view(2, 3),)
    )[1],
    "jvp along a transposed tangent": lambda x: torch.func.jvp(
        torch.sin, (x + 1,), (x.t().contiguous().t(),)
    )[1],
    "jvp of a slice": lambda x: torch.func.jvp(torch.sin, (x[:, 1:],), (x[:, :2] * 2,))[1],
    "vmap of jvp": lambda x: torch.func.vmap(
        lambda r: torch.func.jvp(torch.sin, (x + 1,), (r.expand(2, 3),))[1]
    )(x),
    "vjp": lambda x: torch.func.vjp(torch.sin, x)[1](x)[0],
    "jacrev": lambda x: torch.func.jacrev(torch.sin)(x[0]),
    "jacfwd": lambda x: torch.func.jacfwd(torch.sin)(x[0]),
    "hessian": lambda x: torch.func.hessian(lambda y: (y**3).sum())(x[0]),
    "vmap of grad": lambda x: torch.func.vmap(torch.func.grad(lambda r: (r * r).sum()))(x),
    "functional hessian": lambda x: torch.autograd.functional.hessian(lambda y: (y**3).sum(), x[0]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_function_transforms_agree_with_the_cpu(name: str) -> None:
    cpu, device = pair()
    result = TRANSFORMS[name](device)
    assert result.device.type == "jax"
    torch.testing.assert_close(result.cpu(), TRANSFORMS[name](cpu))


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # also on the CPU
def test_linearize_agrees_with_the_cpu():
    cpu, device = pair()
    expected = torch.func.linearize(torch.sin, cpu)[1](cpu)
    torch.testing.assert_close(torch.func.linearize(torch.sin, device)[1](device).cpu(), expected)


def test_functional_calls_take_their_own_parameters() -> None:
    layer = nn.Linear(3, 2).to("jax")
    zeros = {name: torch.zeros_like(p) for name, p in layer.named_parameters()}
    x = torch.ones(1, 3, device="jax")
    assert torch.func.functional_call(layer, zeros, (x,)).tolist() == [[0, 0]]


def test_forward_mode_carries_tangents() -> None:
    _, x = pair()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        tangent = forward_ad.unpack_dual(dual * dual).tangent
    torch.testing.assert_close(tangent.cpu(), 2 * x.cpu())


def test_hooks_of_modules_and_tensors_run() -> None:
    layer, calls = nn.Linear(3, 2).to("jax"), []
    layer.register_forward_pre_hook(lambda *a: calls.append("before"))
    layer.register_forward_hook(lambda *a: calls.append("forward"))
    layer.register_full_backward_hook(lambda *a: calls.append("backward"))
    layer.bias.register_hook(lambda g: g * 2)
    layer.bias.register_post_accumulate_grad_hook(lambda p: calls.append("accumulated"))
    layer(torch.ones(1, 3, device="jax", requires_grad=True)).sum().backward()
    assert calls[:2] == ["before", "forward"]
    assert sorted(calls[2:]) == ["accumulated", "backward"]
    assert layer.bias.grad.tolist() == [2, 2]


def test_custom_functions_use_their_own_backward() -> None:
    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x * 7

    _, x = pair()
    x.requires_grad_()
    Odd.apply(x).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 7 * x.detach().cpu())


def test_a_saved_tensor_that_was_modified_is_reported() -> None:
    _, x = pair()
    y = x.requires_grad_() * 2
    z = (y * y).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_versions_count_writes_through_every_alias() -> None:
    _, x = pair()
    view, before = x[0], x._version
    x.add_(1)
    view.mul_(2)
    x[1] = 0
    assert x._version == view._version == before + 3
    x.data.add_(1)
    x.detach().t()
    assert x._version == before + 3


def test_leaves_cannot_be_written_while_autograd_watches() -> None:
    _, x = pair()
    x.requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)
    with torch.no_grad():
        x.add_(1)
    x.data.zero_()
    assert x.sum().item() == 0


def test_views_can_start_a_graph_of_their_own() -> None:
    _, x = pair()
    row = x[0].requires_grad_()
    (row * 2).sum().backward()
    assert row.grad.tolist() == [2, 2, 2]
    assert not x.requires_grad
    assert not (row * 2).detach_().requires_grad


def test_gradients_pass_gradcheck() -> None:
    x = pair()[1].double().requires_grad_()
    assert torch.autograd.gradcheck(lambda y: (y * y).tanh(), (x,))


def test_saved_tensors_can_wait_on_the_cpu() -> None:
    _, x = pair()
    x.requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        y = (x * x).sum()
    y.backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().cpu())


def test_inference_mode_allows_writes_to_views() -> None:
    with torch.inference_mode():
        y = pair()[1] * 0
        y[0].add_(1)
    assert y.sum().item() == 3


def test_anomaly_detection_works() -> None:
    _, x = pair()
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
        (x.requires_grad_() * 2).sum().backward()
    assert x.grad.sum().item() == 12
