"""Functions of `torch.compile`, and attention with functions, called in a jitted function."""

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import calque


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_function_is_part_of_the_program_and_stays_compiled_outside(fullgraph):
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    double = torch.compile(lambda x: x * 2 + 1, backend=backend, fullgraph=fullgraph)
    step = calque.jit(lambda x: double(x).sum())
    x = torch.arange(3.0, device="jax")
    assert [step(x + k).item() for k in range(3)] == [9.0, 15.0, 21.0]
    assert not compiled
    assert len(step.history) == 1
    assert double(x).tolist() == [1.0, 3.0, 5.0]
    assert len(compiled) == 1


def test_a_compiled_module_is_trained_in_a_program():
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    module(x).square().sum().backward()
    assert module.weight.grad is not None
    expected = module.weight.grad.clone()
    module.zero_grad()
    module.to("jax")
    torch._dynamo.reset()
    inner = torch.compile(module, backend="calque", fullgraph=True)

    @calque.jit
    def step(x):
        inner(x).square().sum().backward()

    step(x.to("jax"))
    torch.testing.assert_close(module.weight.grad.cpu(), expected)


def _window(b, h, i, j):
    return (i >= j) & (i - j < 4)


def _scores(query, key, bias, masked):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    place = torch.arange(scores.shape[-1], device=scores.device)
    ahead = place[:, None] - place
    scores = scores + bias[:, ahead + scores.shape[-1] - 1]
    return scores.masked_fill((ahead < 0) | (ahead >= 4), -torch.inf) if masked else scores


@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_a_function_of_scores_is_trained_in_a_program(masked):
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, 8, 4) for _ in range(3))
    bias = torch.randn(2, 15, requires_grad=True)
    expected = _scores(query, key, bias, masked).softmax(-1) @ value
    expected.square().sum().backward()
    table = bias.detach().to("jax").requires_grad_()

    @calque.jit
    def step(query, key, value):
        mask = create_block_mask(_window, None, None, 8, 8, device="jax") if masked else None
        change = lambda score, b, h, i, j: score + table[h, i - j + 7]
        y = flex_attention(query, key, value, score_mod=change, block_mask=mask)
        y.square().sum().backward()
        return y.detach()

    found = step(*(x.to("jax") for x in (query, key, value)))
    torch.testing.assert_close(found.cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(table.grad.cpu(), bias.grad, rtol=1e-4, atol=1e-5)
