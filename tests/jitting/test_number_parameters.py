"""Numbers that change, as parameters of functions that want plain floats."""

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn import init

import calque
from calque.state.stand_ins import StandIn

pytestmark = pytest.mark.filterwarnings("ignore::calque.RetraceWarning")


def _classes(x):
    return torch.arange(4, device=x.device) % 3


def _normalized(x, s):
    mean, var = torch.zeros(3, device=x.device), torch.ones(3, device=x.device)
    return F.batch_norm(x, mean, var, training=True, momentum=s.p) + mean + var


def _clipped(clip, x, s):
    w = nn.Parameter(x.detach() * 3)
    w.square().sum().backward()
    clip([w], s.p)
    return w.grad * x


_drop = nn.Dropout()


def _dropped(x, s):
    _drop.p = s.p
    return _drop(x)


def _empty(x):
    return torch.empty_like(x)


FUNCTIONS: dict[str, Any] = {
    "dropout": lambda x, s: F.dropout(x, s.p),
    "dropout_of_a_module": _dropped,
    "no_dropout": lambda x, s: F.dropout(x, p=s.p, training=False),
    "dropout_of_half_precision": lambda x, s: F.dropout(x.bfloat16(), s.p).float(),
    "dropout_in_place": lambda x, s: F.dropout(2 * x, s.p, inplace=True),
    "dropout_of_channels": lambda x, s: F.dropout2d(x[None, :, :, None], s.p),
    "dropout_of_channels_in_place": lambda x, s: F.dropout1d(2 * x[None], s.p, inplace=True),
    "alpha_dropout": lambda x, s: F.alpha_dropout(x, s.p, training=True),
    "celu": lambda x, s: F.celu(x, s.p),
    "bernoulli_": lambda x, s: x * _empty(x).bernoulli_(s.p),
    "normal_around": lambda x, s: torch.normal(x.detach(), s.p) * x,
    "normal_of_a_spread": lambda x, s: torch.normal(s.p, x.detach().abs()) * x,
    "normal_of_a_size": lambda x, s: torch.normal(0.0, s.p, (4, 3), device=x.device) * x,
    "normal_": lambda x, s: x * _empty(x).normal_(s.p, std=s.p),
    "uniform_": lambda x, s: x * _empty(x).uniform_(-s.p, s.p),
    "init_normal_": lambda x, s: x * init.normal_(_empty(x), std=s.p),
    "init_uniform_": lambda x, s: x * init.uniform_(_empty(x), b=s.p),
    "lerp": lambda x, s: torch.lerp(x, x.sin(), s.p),
    "lerp_": lambda x, s: (2 * x).lerp_(x, s.p),
    "power": lambda x, s: x.abs() ** s.p,
    "power_of_a_loss": lambda x, s: torch.pow(1 - x.sigmoid(), exponent=s.p),
    "power_of_a_number": lambda x, s: s.p**x,
    "power_of_a_first_argument": lambda x, s: torch.pow(s.p, x),
    "power_in_place": lambda x, s: (x.abs() + 1).pow_(s.p),
    "as_tensor": lambda x, s: x * torch.as_tensor([s.p, 1.0, 2.0], device=x.device),
    "functions_of_math": lambda x, s: x * math.erf(s.p) + math.atan2(s.p, 2) + math.log(s.p, 2),
    "init_trunc_normal_": lambda x, s: x * init.trunc_normal_(_empty(x), std=s.p),
    "quantile": lambda x, s: torch.quantile(x, s.p, dim=1),
    "nanquantile": lambda x, s: x.nanquantile(s.p),
    "added": lambda x, s: torch.add(x, x.sin(), alpha=s.p),
    "subtracted": lambda x, s: (2 * x).sub_(x, alpha=s.p),
    "batch_norm": _normalized,
    "smooth_labels": lambda x, s: F.cross_entropy(x, _classes(x), label_smoothing=s.p),
    "smooth_shares": lambda x, s: F.cross_entropy(x, x.detach().softmax(1), label_smoothing=s.p),
    "huber": lambda x, s: F.huber_loss(x, x.sin() * 3, delta=s.p, reduction="sum"),
    "smooth_l1": lambda x, s: F.smooth_l1_loss(x, x.sin() * 3, beta=s.p, reduction="none"),
    "norm": lambda x, s: _clipped(nn.utils.clip_grad_norm_, x, s),
    "value": lambda x, s: _clipped(nn.utils.clip_grad_value_, x, s),
}


def _run(function, jit):
    torch.manual_seed(0)
    x = torch.randn(4, 3).to("jax").requires_grad_()
    s, found = SimpleNamespace(p=0.15), []

    def step(x):
        y = function(x, s)
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        s.p += 0.15
        return y.detach(), gradient

    run = jit(step)
    torch.manual_seed(1)
    for _ in range(5):
        found += run(x)
    return [one.cpu() for one in found], run


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_number_is_an_input(name: str) -> None:
    expected, _ = _run(FUNCTIONS[name], lambda fn: fn)
    found, run = _run(FUNCTIONS[name], calque.jit)
    torch.testing.assert_close(found, expected)
    assert len(run.history) <= 2
    assert run.compilations == 1


@pytest.mark.parametrize("name", ["huber_loss", "smooth_l1_loss"])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_losses_of_infinite_numbers(name: str, reduction: str) -> None:
    loss, option = getattr(F, name), {"huber_loss": "delta", "smooth_l1_loss": "beta"}[name]
    s = SimpleNamespace(p=0.0)
    target = torch.tensor([torch.inf, -torch.inf, torch.nan, 3e38, -1.0, 0.1, 0.0])

    def step(x, y):
        found = loss(x, y, reduction=reduction, **{option: s.p})
        return found.detach(), *torch.autograd.grad(found.sum(), x)

    run = calque.jit(step)
    x = torch.zeros(7, requires_grad=True)
    moved = x.detach().to("jax").requires_grad_()
    for p in (0.3, 0.7, 1, 1.5, 20.0, 0.5):
        s.p = p
        found = [one.cpu() for one in run(moved, target.to("jax"))]
        torch.testing.assert_close(found, [*step(x, target)], equal_nan=True)


def test_a_loss_without_a_width_raises() -> None:
    x = torch.ones(2, device="jax")
    with pytest.raises(RuntimeError, match="non-positive values for delta"):
        F.huber_loss(x, x, delta=torch.nan)
    with pytest.raises(RuntimeError, match="negative values for beta"):
        F.smooth_l1_loss(x, x, beta=torch.nan)


def test_dropout_scales_all_digits() -> None:
    s = SimpleNamespace(p=0.3)
    x = torch.ones(50, dtype=torch.float64, device="jax", requires_grad=True)

    def step():
        y = F.dropout(x, s.p)
        return y.max(), torch.autograd.grad(y.sum(), x)[0].max()

    run = calque.jit(step)
    for p in (0.3, 0.2, 0.1, 0.45):
        s.p = p
        assert [one.item() for one in (*step(), *run())] == pytest.approx([1 / (1 - p)] * 4, 1e-14)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, p: torch.pow(input=x.abs(), exponent=p),
        lambda x, p: torch.lerp(input=x, end=x.sin(), weight=p),
        lambda x, p: torch.quantile(input=x, q=p),
    ],
)
def test_a_tensor_is_passed_by_name(function: Any) -> None:
    _, run = _run(lambda x, s: function(x, s.p), calque.jit)
    assert len(run.history) <= 2


@pytest.mark.parametrize("name", ["dropout", "smooth_labels", "bernoulli_", "quantile"])
def test_a_number_out_of_range_raises_the_same_error(name: str) -> None:
    s = SimpleNamespace(p=0.5)
    run = calque.jit(lambda x: FUNCTIONS[name](x, s))
    x = torch.ones(4, 3, device="jax")
    for p in (0.5, 0.25, 1.0, 0.75):
        s.p = p
        run(x)
    s.p = 1.5
    with pytest.raises((ValueError, RuntimeError)) as eager:
        FUNCTIONS[name](x, s)
    with pytest.raises(eager.type) as jitted:
        run(x)
    assert str(jitted.value).splitlines()[0] == str(eager.value).splitlines()[0]


def test_what_decides_by_the_value_is_compared() -> None:
    s = SimpleNamespace(p=0.0)
    x = torch.tensor([-1.5, 0.0, 2.0], device="jax", requires_grad=True)

    def step():
        y = torch.pow(x, s.p) + F.dropout(x, p=1 - s.p / 4) * 0
        return y.detach(), *torch.autograd.grad(y.sum(), x)

    run = calque.jit(step)
    for p in (0.0, 1.0, 4.0, 2.0, 0.5, 4.0, 3.0, 0.0):
        s.p = p
        torch.testing.assert_close(run(), step(), equal_nan=True)


def test_builtins_are_as_before() -> None:
    _run(FUNCTIONS["norm"], calque.jit)
    assert "float" not in vars(torch.nn.utils.clip_grad)


def test_a_name_of_a_method_that_takes_numbers_only_while_tracing() -> None:
    s, o = SimpleNamespace(p=1.0), SimpleNamespace()

    def late(o: Any) -> None:
        o.sub = s.p * 2

    @calque.jit
    def step(x):
        s.p *= 0.9
        late(o)
        return x * o.sub

    found = [step(torch.ones(1, device="jax")).item() for _ in range(5)]
    assert found == pytest.approx([2 * 0.9**i for i in range(1, 6)])
    assert len(step.history) <= 3
    assert "sub" not in vars(torch.Tensor)


def test_a_replaced_function_has_the_attributes_of_its_original() -> None:
    """Modules that are imported in a trace read them: `torch._numpy`, for one."""
    one = StandIn(torch.where, lambda args: False, torch.where)
    assert one.__name__ == "where"
    assert copy.copy(one).original is torch.where
    with pytest.raises(AttributeError):
        _ = one.missing
