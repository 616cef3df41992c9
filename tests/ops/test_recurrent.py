"""Recurrent layers as one operator: gradients of every order, transforms, and program size."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import calque
from calque.device.kernels import composites

LAYERS = [
    nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True),
    nn.LSTM(3, 4, proj_size=2, bidirectional=True),
    nn.GRU(3, 4, 2, bias=False),
    nn.RNN(3, 4, nonlinearity="relu"),
    nn.RNN(3, 4, bidirectional=True),
]
layers = pytest.mark.parametrize("layer", LAYERS, ids=str)
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")


def _pair(layer: nn.Module, *shape: int) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    return copy.deepcopy(layer), copy.deepcopy(layer).to("jax"), torch.randn(shape)


def _node_names(tensor: torch.Tensor) -> set[str]:
    seen, todo = set(), [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None:
            seen.add(node.name())
            todo += [n for n, _ in node.next_functions]
    return seen


def _grads(module: nn.Module) -> list[torch.Tensor]:
    return [p.grad.cpu() for p in module.parameters()]


@layers
def test_a_layer_is_one_node_of_the_graph(layer: nn.Module) -> None:
    _, ours, x = _pair(layer, 5, 2, 3)
    out, _ = ours(x.to("jax"))
    assert _node_names(out) == {"_NodeBackward", "torch::autograd::AccumulateGrad"}


@pytest.mark.sampled(2)
@layers
def test_second_derivatives(layer: nn.Module) -> None:
    theirs, ours, x = _pair(layer, 4, 2, 3)
    for module, device in ((theirs, "cpu"), (ours, "jax")):
        given = x.to(device).requires_grad_()
        out, _ = module(given)
        (slope,) = torch.autograd.grad(out.pow(2).sum(), given, create_graph=True)
        slope.pow(2).sum().backward()
    # the biases of a ReLU network have no second derivative
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert (p.grad is None) <= (q.grad is None or not q.grad.any().item())
        if p.grad is not None:
            torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-3, atol=1e-4)


@layers
def test_frozen_weights_get_no_gradient(layer: nn.Module) -> None:
    _, ours, x = _pair(layer, 4, 2, 3)
    frozen = next(ours.parameters()).requires_grad_(False)
    given = x.to("jax").requires_grad_()
    ours(given)[0].sum().backward()
    assert frozen.grad is None
    assert given.grad is not None


def test_a_graph_is_used_twice_or_freed() -> None:
    _, ours, x = _pair(nn.GRU(3, 4), 4, 2, 3)
    out = ours(x.to("jax"))[0].sum()
    out.backward(retain_graph=True)
    first = [g.clone() for g in _grads(ours)]
    out.backward()
    for once, twice in zip(first, _grads(ours), strict=True):
        torch.testing.assert_close(twice, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_a_weight_changed_before_the_backward_is_refused() -> None:
    _, ours, x = _pair(nn.GRU(3, 4), 4, 2, 3)
    out = ours(x.to("jax"))[0].sum()
    with torch.no_grad():
        ours.weight_hh_l0.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@layers
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=str)
def test_without_gradients(layer: nn.Module, context: Callable[[], Any]) -> None:
    theirs, ours, x = _pair(layer, 5, 2, 3)
    with context():
        torch.testing.assert_close(ours(x.to("jax"))[0].cpu(), theirs(x)[0])


@pytest.mark.sampled(2)
@layers
def test_function_transforms(layer: nn.Module) -> None:
    theirs, ours, x = _pair(layer, 4, 2, 3)

    def results(module: nn.Module, x: torch.Tensor) -> Any:
        weights = dict(module.named_parameters())

        def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(module, weights, (x,))[0].pow(2).sum()

        slopes = torch.func.grad(loss)(weights, x)
        _, tangent = torch.func.jvp(lambda x: loss(weights, x), (x,), (torch.ones_like(x),))
        return [*slopes.values(), tangent]

    torch._C._set_mkldnn_enabled(False)  # it does not support forward mode
    try:
        want = results(theirs, x)
    finally:
        torch._C._set_mkldnn_enabled(True)
    got = results(ours, x.to("jax"))
    for a, b in zip(want, got, strict=True):
        torch.testing.assert_close(b.detach().cpu(), a.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.sampled(2)
@layers
def test_autocast_runs_in_low_precision(layer: nn.Module) -> None:
    _, ours, x = _pair(layer, 4, 2, 3)
    exact = ours(x.to("jax"))[0]
    with torch.autocast("jax", torch.bfloat16):
        out = ours(x.to("jax"))[0]
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), exact, rtol=0.1, atol=0.05)
    out.float().sum().backward()
    assert next(ours.parameters()).grad.dtype == torch.float32


def test_dropout_between_layers() -> None:
    layer = nn.GRU(3, 64, 2, dropout=0.5).to("jax")
    x = torch.randn(3, 2, 3, device="jax", requires_grad=True)
    torch.manual_seed(1)
    first = layer(x)[0]
    (want,) = torch.autograd.grad(first.sum(), x)
    torch.manual_seed(1)
    again = layer(x)[0]
    other = layer(x)[0]
    torch.testing.assert_close(again, first)
    assert not torch.equal(other, first)
    # with create_graph the gradient is recomputed with the same dropout mask
    (got,) = torch.autograd.grad(again.sum(), x, create_graph=True)
    torch.testing.assert_close(got.detach(), want)
    layer.eval()
    state = torch.jax.get_rng_state()
    torch.testing.assert_close(layer(x)[0], layer(x)[0])
    assert torch.equal(torch.jax.get_rng_state(), state)


def test_dropout_of_everything_leaves_the_biases() -> None:
    layer = nn.RNN(3, 4, 2, dropout=1.0)
    theirs, ours, x = _pair(layer, 4, 2, 3)
    torch.testing.assert_close(ours(x.to("jax"))[0].cpu(), theirs(x)[0])


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[2]], ids=str)
def test_a_jitted_training_step(layer: nn.Module) -> None:
    theirs, ours, x = _pair(layer, 5, 2, 3)

    def step(module: nn.Module, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = module(x)[0].pow(2).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    a, b = (torch.optim.SGD(m.parameters(), lr=0.01) for m in (theirs, ours))
    jitted = calque.jit(lambda x: step(ours, b, x))
    for _ in range(3):
        torch.testing.assert_close(jitted(x.to("jax")).cpu(), step(theirs, a, x))
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(q.detach().cpu(), p.detach(), rtol=1e-3, atol=1e-4)


def test_a_jitted_layer_carries_gradients() -> None:
    theirs, ours, x = _pair(nn.LSTM(3, 4), 5, 2, 3)
    jitted = calque.jit(lambda x: ours(x)[0])
    theirs(x)[0].pow(2).sum().backward()
    jitted(x.to("jax")).pow(2).sum().backward()
    for want, got in zip(_grads(theirs), _grads(ours), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def test_packed_lengths_are_no_part_of_the_executable() -> None:
    _, layer, x = _pair(nn.LSTM(3, 4), 6, 3, 3)
    runner = composites._kernels()["lstm.data"].composite._run

    def run(lengths: list[int]) -> torch.Tensor:
        packed = pack_padded_sequence(x.to("jax"), torch.tensor(lengths))
        with torch.no_grad():
            return pad_packed_sequence(layer(packed)[0])[0]

    run([6, 4, 1])
    sizes = [entry.value._cache_size() for entry in runner._cache.values()]
    want, got = run([6, 3, 2]), layer(x[:3].to("jax"))[0]
    assert [entry.value._cache_size() for entry in runner._cache.values()] == sizes
    torch.testing.assert_close(want[:3, 1].detach(), got[:3, 1].detach())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_the_program_does_not_grow_with_the_sequence(kind: type[nn.Module]) -> None:
    layer = kind(3, 4).to("jax")

    def step(x: torch.Tensor) -> torch.Tensor:
        layer.zero_grad()
        loss = layer(x)[0].sum()
        loss.backward()
        return loss.detach()

    sizes = {}
    for length in (4, 40):
        x = torch.randn(length, 2, 3, device="jax")
        text = calque.jit(step).lower(x).as_text()
        assert "while" in text
        sizes[length] = text.count("\n")
    assert sizes[4] == sizes[40]
