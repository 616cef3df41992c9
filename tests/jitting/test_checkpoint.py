"""`torch.utils.checkpoint` in compiled graphs: what it drops is computed again, and not kept."""

import functools
import logging

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import calque
from calque.program import program

WIDTH, ROWS, BLOCKS = 16, 128, 4


@pytest.fixture(autouse=True)
def _fresh(caplog):
    logging.getLogger("torch").setLevel(logging.ERROR)  # it logs a warning about context_fn
    torch._dynamo.reset()


@pytest.fixture
def programs(monkeypatch):
    """The executables of a test, in the order they were compiled."""
    found = []
    original = program.direct
    monkeypatch.setattr(program, "direct", lambda c, *a: found.append(c) or original(c, *a))
    return found


def block(x, w):
    return torch.tanh(torch.sin(x @ w)) @ w


def keep_products(context, op, *args, **kwargs):
    keep = op == torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.MUST_RECOMPUTE


SELECTIVE = functools.partial(create_selective_checkpoint_contexts, keep_products)


def stack(x, weights, **options):
    for w in weights:
        x = checkpoint(block, x, w, use_reentrant=False, **options) if options else block(x, w)
    return x.square().sum()


def everything(x, weights):
    for w in weights:
        x = checkpoint(block, x, w, use_reentrant=False)
    return x.square().sum()


def run(function, device="jax", compiled=True):
    """The loss and the gradients."""
    torch.manual_seed(0)
    x = torch.randn(ROWS, WIDTH).to(device)
    weights = [0.2 * torch.randn(WIDTH, WIDTH) for _ in range(BLOCKS)]
    weights = [w.to(device).requires_grad_() for w in weights]
    forward = torch.compile(function, backend="calque", fullgraph=True) if compiled else function
    loss = forward(x, weights)
    loss.backward()
    return [loss.detach().cpu(), *(w.grad.cpu() for w in weights)]


def products(program) -> int:
    return program.as_text().count(" dot(")


def kept(program) -> float:
    """What a forward leaves behind, in activations."""
    return program.memory_analysis().output_size_in_bytes / (ROWS * WIDTH * 4)


@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_values_and_gradients_are_those_without_checkpoints(device):
    want = run(stack, "cpu", compiled=False)
    for function in (everything, functools.partial(stack, context_fn=SELECTIVE)):
        for got, expected in zip(run(function, device), want, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


def test_the_forward_keeps_less_and_the_backward_computes_again(programs):
    run(stack)
    plain, plain_backward = programs
    programs.clear()
    run(everything)
    forward, backward = programs
    assert kept(forward) <= BLOCKS < 2 * BLOCKS <= kept(plain)
    assert products(backward) >= products(plain_backward) + BLOCKS


def test_the_backward_holds_one_block_at_a_time(programs):
    run(stack)
    _, plain = programs
    programs.clear()
    run(everything)
    _, backward = programs
    held = [p.memory_analysis() for p in (plain, backward)]
    plain, least = (m.argument_size_in_bytes + m.temp_size_in_bytes for m in held)
    assert least < 0.7 * plain
    block = ROWS * WIDTH * 4
    assert held[1].temp_size_in_bytes < (BLOCKS + 3) * block


def test_a_policy_says_what_is_kept(programs):
    run(stack)
    plain, _ = programs
    programs.clear()
    run(everything)
    least, all_again = programs
    programs.clear()
    run(functools.partial(stack, context_fn=SELECTIVE))
    forward, backward = programs
    assert kept(least) < kept(forward) < kept(plain)
    assert products(backward) <= products(all_again) - BLOCKS
    assert backward.as_text().count(" sine(") >= BLOCKS


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["jax", "cpu"])
@pytest.mark.parametrize("options", [{}, {"context_fn": SELECTIVE}], ids=["all", "selective"])
def test_dropout_is_computed_again_with_the_same_numbers(device, options):
    def drop(x, w):
        return F.dropout(torch.tanh(x @ w), 0.5)

    @functools.partial(torch.compile, backend="calque")
    def forward(x, w):
        y = checkpoint(drop, x, w, use_reentrant=False, **options)
        return checkpoint(drop, y, w, use_reentrant=False, **options).exp(), y

    x = torch.randn(32, 32, device=device)
    w = torch.randn(32, 32, device=device, requires_grad=True)
    seen = []
    for _ in range(2):
        out, y = forward(x, w)
        masks = [(t.detach() != empty) * 2.0 for t, empty in ((y, 0), (out, 1))]
        middle = torch.tanh(x @ w) * masks[0]
        want = torch.exp(torch.tanh(middle @ w) * masks[1])
        torch.testing.assert_close(out, want, rtol=1e-3, atol=1e-4)
        gradients = [torch.autograd.grad(t.sum(), w)[0] for t in (out, want)]
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)
        seen.append(masks[0])
    assert not torch.equal(*seen)


def test_reentrant_checkpoints_need_their_backward_inside():
    layer = torch.nn.Linear(3, 3).to("jax")
    x = torch.ones(2, 3, device="jax", requires_grad=True)

    def loss(x):
        return checkpoint(layer, x, use_reentrant=True).sum()

    with pytest.raises(RuntimeError, match=r"call backward\(\) in the jitted function as well"):
        calque.jit(loss)(x).backward()
    calque.jit(lambda x: loss(x).backward())(x)
    torch.testing.assert_close(layer.bias.grad.cpu(), torch.full((3,), 2.0))
