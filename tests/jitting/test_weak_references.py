"""Weak references, in the program's state, to tensors that each call replaces."""

import types
import weakref

import pytest
import torch
from torch import nn

import calque


class _Scaled(nn.Module):
    """Computes a layer's recurrent weights anew in each call, as AWD-LSTM does."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        weight = layer.weight_hh_l0
        del layer.weight_hh_l0
        self.raw = nn.Parameter(weight.data)
        layer.weight_hh_l0 = weight.data * 1.0

    def forward(self, x, mask):
        self.layer.weight_hh_l0 = self.raw * mask
        return self.layer(x)[0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_weights_that_each_call_computes(kind):
    def trained(device):
        torch.manual_seed(0)
        model = _Scaled(kind(3, 4)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, mask):
            optimizer.zero_grad()
            loss = model(x, mask).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        called = calque.jit(step) if device == "jax" else step
        masks = [torch.rand(model.raw.shape).round() * 2 for _ in range(6)]
        losses = [called(torch.ones(2, 1, 3).to(device), one.to(device)).item() for one in masks]
        assert model.layer._flat_weight_refs[1]() is model.layer.weight_hh_l0
        return losses, getattr(called, "history", [])

    losses, history = trained("jax")
    assert losses == pytest.approx(trained("cpu")[0], rel=1e-4)
    assert len(history) <= 2, history


def _run(device, body, between=lambda state, i: None):
    state = types.SimpleNamespace(scale=torch.full((2,), 3.0, device=device))
    state.last, state.other = torch.ones(2, device=device), torch.ones(2, device=device) * 5
    state.references = [weakref.ref(state.last), weakref.ref(state.other)]
    state.held = [state.last, state.other]  # which the program does not read
    called = calque.jit(lambda x: body(state, x)) if device == "jax" else lambda x: body(state, x)
    found = []
    for i in range(7):
        result = called(torch.full((2,), i % 3 + 1.0, device=device))
        targets = [one() for one in state.references]
        found.append([result.tolist(), state.last.tolist(), state.other.tolist()])
        found.append([targets[0] is state.last, targets[1] is state.other])
        between(state, i)
    return found, getattr(called, "history", [])


def _replaced(state, x):
    result = state.references[0]() * 2
    state.last = state.scale * x
    state.references = [weakref.ref(state.last), weakref.ref(state.other)]
    return result


def _set_in_place(state, x):
    same = state.references[0]() is state.last
    state.last = state.scale * x
    state.references[0] = weakref.ref(state.last)
    return x + same


@pytest.mark.parametrize("body", [_replaced, _set_in_place])
def test_a_reference_to_what_each_call_replaces_needs_no_other_program(body):
    found, history = _run("jax", body)
    assert found == _run("cpu", body)[0]
    assert len(history) <= 2, history


def _written_and_moved(state, x):
    target = state.references[0]()
    target.mul_(2)
    result = state.last + 1
    state.last, state.other = state.scale * x, target
    state.references = [weakref.ref(state.last), weakref.ref(state.other)]
    return result


def _not_replaced(state, x):
    result = state.references[0]() + 1
    state.last = state.scale * x
    return result


@pytest.mark.parametrize("body", [_replaced, _set_in_place, _written_and_moved, _not_replaced])
@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
@pytest.mark.parametrize("at", [None, 0, 3])
def test_the_target_is_what_it_is_eagerly(body, at):
    def turned(state, i):
        if i == at:
            state.held += [state.last, state.other]
            state.references.reverse()

    assert _run("jax", body, turned)[0] == _run("cpu", body, turned)[0]
