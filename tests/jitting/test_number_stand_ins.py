"""Numbers that change, which PyTorch's C++ hands on to operators as they are."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import calque
from calque.program.number_probes import Span, hands_on

pytestmark = pytest.mark.filterwarnings("ignore::calque.RetraceWarning")


def _signs(x):
    return x.detach().sign()


def _classes(x):
    return torch.arange(4, device=x.device) % 3


def _near(x):
    return x.sin(), x.cos()


FUNCTIONS: dict[str, Any] = {
    "triplet": lambda x, s: F.triplet_margin_loss(x, *_near(x), margin=s.p),
    "ranking": lambda x, s: F.margin_ranking_loss(x, x.sin(), _signs(x), margin=s.p),
    "hinge": lambda x, s: F.hinge_embedding_loss(x, _signs(x), margin=s.p),
    "cosine": lambda x, s: F.cosine_embedding_loss(x, x.sin(), _signs(x)[:, 0], margin=s.p),
    "classes": lambda x, s: F.multi_margin_loss(x, _classes(x), margin=s.p),
    "layer_norm": lambda x, s: F.layer_norm(x, (3,), eps=s.p),
    "layer_norm_of_half_precision": lambda x, s: F.layer_norm(x.half(), (3,), eps=s.p).float(),
    "group_norm": lambda x, s: F.group_norm(x, 1, eps=s.p),
    "instance_norm": lambda x, s: F.instance_norm(x[None], eps=s.p),
    "batch_norm": lambda x, s: F.batch_norm(x, None, None, training=True, eps=s.p),
    "similarity": lambda x, s: F.cosine_similarity(x, x.sin(), eps=s.p),
    "distance": lambda x, s: F.pairwise_distance(x, x.sin(), eps=s.p),
    "pad": lambda x, s: F.pad(x, (1, 1), value=s.p),
    "nan_to_num": lambda x, s: torch.nan_to_num(x.log(), nan=s.p),
    "poisson": lambda x, s: F.poisson_nll_loss(x.abs(), x.abs(), log_input=False, eps=s.p),
    "addmm": lambda x, s: torch.addmm(x[:, :1], x, x[:3], beta=s.p * 2, alpha=s.p),
    "checkpoint": lambda x, s: checkpoint(
        lambda x: F.layer_norm(x, (3,), x[0].detach(), eps=s.p), x, use_reentrant=False
    ),
    "two_numbers": lambda x, s: F.triplet_margin_loss(x, *_near(x), margin=s.p, eps=s.p / 1e4),
}
COMPUTING: dict[str, Any] = {
    "rrelu": lambda x, s: F.rrelu(x, s.p, 2 * s.p),
    "rms_norm": lambda x, s: F.rms_norm(x, (3,), eps=s.p),
    "logit": lambda x, s: torch.logit(x.sigmoid(), eps=s.p),
    "attention": lambda x, s: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=s.p),
    "norm": lambda x, s: torch.linalg.vector_norm(x, s.p + 1.2),
    "new_tensor": lambda x, s: x * x.new_tensor(s.p),
    "transformed": lambda x, s: torch.vmap(lambda row: F.layer_norm(row, (3,), eps=s.p))(x),
}
"""Functions in which C++ computes with the number, or that calque does not try."""


def _run(function, jit, values=(0.12, 0.2, 0.23, 0.31, 0.4), **options):
    torch.manual_seed(0)
    x = torch.randn(4, 3).to("jax").requires_grad_()
    s, found = SimpleNamespace(p=0.0), []

    def step(x):
        y = function(x, s)
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        return y.detach(), gradient

    run = calque.jit(step, **options) if jit else step
    for s.p in values:
        found += run(x)
    return [one.cpu() for one in found], run


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_number_is_an_input(name: str) -> None:
    expected, _ = _run(FUNCTIONS[name], False)
    found, run = _run(FUNCTIONS[name], True)
    torch.testing.assert_close(found, expected)
    assert len(run.history) <= 2, run.history
    assert run.compilations <= 2


@pytest.mark.parametrize("name", COMPUTING)
def test_a_number_with_which_cpp_computes_is_compared(name: str) -> None:
    expected, _ = _run(COMPUTING[name], False)
    found, run = _run(COMPUTING[name], True, verify=False)
    torch.testing.assert_close(found, expected)
    assert len(run.history) == 5


def test_what_cpp_compares_is_guarded() -> None:
    values = (0.2, 0.3, 0.4, 0.5, 0.6, 1.0, 1.5, -0.1, 0.0, 2.0, 7.0)
    for name in ("ranking", "hinge", "classes", "addmm"):
        expected, _ = _run(FUNCTIONS[name], False, values)
        found, _ = _run(FUNCTIONS[name], True, values, verify=False)
        torch.testing.assert_close(found, expected)


REFUSING: dict[str, Any] = {
    "leaky_relu": (lambda x, s: F.leaky_relu(x, s.p), (0.3, 0.4, 1e300, 0.45)),
    "half_precision": (lambda x, s: F.pad(x.half(), (1, 2), value=s.p), (3.3, 4.4, 7e4, 5.5)),
    "in_place": (lambda x, s: F.elu_(x * 1.0, s.p), (0.3, 0.4, -0.4, 0.45)),
    "softshrink": (lambda x, s: F.softshrink(x, s.p), (0.3, 0.4, -0.4, 0.45, 1e300, 0.35)),
    "clamp": (lambda x, s: x.clamp(min=s.p), (0.3, 0.4, -1e300, 0.45)),
    "bounds": (lambda x, s: F.hardtanh(x, -s.p, s.p), (0.3, 0.4, 1e300, 0.45)),
    "similarity": (lambda x, s: F.cosine_similarity(x, x.sin(), eps=s.p), (0.3, 0.4, 1e300, 0.45)),
    "addcmul": (lambda x, s: torch.addcmul(x, x, x, value=s.p), (0.3, 0.4, 1e300, 0.45)),
    "whole": (lambda x, s: x * torch.full_like(x, 1).int().fill_(s.p), (3.3, 4.4, 1e10, 5.5)),
}


@pytest.mark.parametrize("name", REFUSING)
def test_a_number_that_pytorch_refuses_raises_its_error(name: str) -> None:
    function, values = REFUSING[name]
    x = torch.linspace(-2, 2, 6).reshape(2, 3)
    s = SimpleNamespace(p=0.0)

    def step(x):
        x = x.clone().requires_grad_()
        y = function(x, s).float()
        return y.detach(), torch.autograd.grad(y.sum(), x)[0]

    def called(run, x):
        try:
            return [one.cpu() for one in run(x)]
        except RuntimeError as error:
            return str(error).partition("\n")[0]

    run, refused = calque.jit(step), 0
    for s.p in values:
        expected, found = called(step, x), called(run, x.to("jax"))
        refused += isinstance(expected, str)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)
    assert refused == len(values) // 3
    assert len(run.history) <= 3, run.history


def test_gradients_outside() -> None:
    w = torch.randn(4, 3).to("jax").requires_grad_()
    s = SimpleNamespace(eps=0.1, margin=0.9)

    def step(x):
        y = F.layer_norm(w * x, (3,), eps=s.eps)
        return y, F.triplet_margin_loss(y, w, x, margin=s.margin)

    run, x = calque.jit(step), torch.randn(4, 3).to("jax")
    for i in range(5):
        s.eps, s.margin = 0.1 + i / 20, 0.9 - i / 20
        found = []
        for fn in (step, run):
            y, loss = fn(x)
            (first,) = torch.autograd.grad(y.pow(3).sum() + loss, w, create_graph=True)
            found.append((y, loss, first, *torch.autograd.grad(first.square().sum(), w)))
        torch.testing.assert_close(*found)
    assert len(run.history) <= 2


def test_settings_of_modules() -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.group, self.batch = (
                nn.LayerNorm(3),
                nn.GroupNorm(1, 3),
                nn.BatchNorm1d(3),
            )
            self.loss, self.pad = nn.TripletMarginLoss(), nn.ConstantPad1d(1, 0.0)

        def forward(self, x):
            return self.loss(self.norm(x), self.group(x), self.batch(x)) + self.pad(x).mean()

    def train(jit: Any) -> tuple[list[float], Any]:
        torch.manual_seed(0)
        model, x = Model().to("jax"), torch.randn(4, 3).to("jax")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step():
            loss = model(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run, found = jit(step), []
        for i in range(5):
            model.norm.eps, model.group.eps, model.batch.eps = 1e-5 * (i + 1), 2e-5, 1e-3 * (i + 1)
            model.loss.margin, model.pad.value = 0.6 + 0.05 * i, 0.01 + 0.1 * i
            found.append(run().item())
        return found, run

    found, run = train(calque.jit)
    assert found == pytest.approx(train(lambda fn: fn)[0])
    assert len(run.history) <= 3


@pytest.mark.parametrize("training", [True, False])
def test_several_numbers_of_a_module(training: bool) -> None:
    def ran(jit: Any) -> tuple[list[Any], Any]:
        torch.manual_seed(0)
        model, x = nn.BatchNorm1d(3).to("jax").train(training), torch.randn(4, 3).to("jax")
        run, found = jit(lambda: model(x).detach()), []
        for i in range(5):
            model.eps, model.momentum = 0.1 + i / 50, 0.3 - i / 50
            found.append((run().cpu(), model.state_dict()["running_var"].cpu()))
        return found, run

    found, run = ran(calque.jit)
    torch.testing.assert_close(found, ran(lambda fn: fn)[0])
    assert len(run.history) <= 3, run.history


def test_spans() -> None:
    assert Span.around(0.3, [0.4, 7.0]) == (0.0, 0.4)
    assert Span.around(5.0, []) == (3.0, float("inf"))
    assert Span.around(1.0, []) is Span.around(0.3, [0.3]) is Span.around(float("nan"), []) is None
    for span in (Span(0.0, 0.5), Span(3.0, float("inf")), Span(-float("inf"), -2.0)):
        assert span.low < span.number() < span.high


@pytest.mark.parametrize(
    ("function", "handed"),
    [
        (lambda x, p: torch.layer_norm(x, (3,), eps=p), True),
        (lambda x, p: F.threshold(x, p, 0.0), True),
        (lambda x, p: torch.dropout(x, p, True), False),
        (lambda x, p: torch.add(x, 2 * p), False),
        (lambda x, p: x, False),
    ],
)
def test_what_is_handed_on(function: Any, handed: bool) -> None:
    x = torch.ones(4, 3, device="jax", requires_grad=True)
    assert hands_on(function, (x, 0.3), {}, {1: Span(0.0, 0.5)}) == handed
