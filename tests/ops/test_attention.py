"""`F.scaled_dot_product_attention` on the device: one operator, and PyTorch's results."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import calque

OPERANDS = {
    "heads": ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)),
    "three axes": ((4, 5, 8), (4, 7, 8), (4, 7, 8)),
    "two axes": ((5, 8), (7, 8), (7, 3)),
    "shared heads": ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)),
    "five axes": ((2, 3, 2, 5, 8), (2, 3, 2, 7, 8), (2, 3, 2, 7, 8)),
}
MASKS = {
    "none": lambda: None,
    "bias": lambda: torch.randn(5, 7),
    "some": lambda: torch.rand(5, 7) > 0.5,
    "nothing": lambda: torch.zeros(1, 7, dtype=torch.bool),
}


class Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def attend(device, operands, mask, **settings):
    mask = None if mask is None else mask.to(device)
    return F.scaled_dot_product_attention(*(x.to(device) for x in operands), mask, **settings)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shapes", OPERANDS)
def test_results_are_those_of_the_cpu(shapes, mask):
    torch.manual_seed(0)
    operands, mask = [torch.randn(s) for s in OPERANDS[shapes]], MASKS[mask]()
    for causal, graded in product((False, True) if mask is None else (False,), (False, True)):
        settings = {"is_causal": causal, "scale": 0.3, "enable_gqa": shapes == "shared heads"}
        found = {}
        names = ("cpu", "jax", "jit") if shapes == "heads" else ("cpu", "jax")
        for name in names:
            device = "cpu" if name == "cpu" else "jax"
            given = [x.detach().to(device).requires_grad_(graded) for x in operands]
            run = calque.jit(attend) if name == "jit" else attend
            result = run(device, given, mask, **settings)
            parts = torch.autograd.grad((result**2).sum(), given) if graded else ()
            found[name] = [x.detach().cpu() for x in (result, *parts)]
        for name in names[1:]:
            torch.testing.assert_close(found[name], found["cpu"], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("shapes", ["heads", "three axes", "shared heads"])
def test_without_a_gradient_it_is_one_operator(shapes):
    operands = [torch.randn(s).to("jax") for s in OPERANDS[shapes]]
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context(), Names() as seen:
            attend("jax", operands, None, dropout_p=0.1, enable_gqa=shapes == "shared heads")
        assert seen.names[-1] == "aten::scaled_dot_product_attention"
        assert not any("softmax" in name or "matmul" in name for name in seen.names)


def test_what_pytorch_refuses_is_refused():
    q, k = torch.randn(2, 4, 5, 8).to("jax"), torch.randn(2, 4, 7, 8).to("jax")
    with pytest.raises(RuntimeError, match="attn_mask should not be set when is_causal=True"):
        F.scaled_dot_product_attention(q, k, k, torch.zeros(5, 7, device="jax"), is_causal=True)
    with pytest.raises(RuntimeError, match="to have the same dtype"):
        F.scaled_dot_product_attention(q, k.double(), k)
    with pytest.raises(RuntimeError, match="same device"):
        F.scaled_dot_product_attention(q, k.cpu(), k)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, k[:, :2], k[:, :2])


def test_dropout_keeps_the_expected_value():
    torch.manual_seed(0)
    q, k = torch.zeros(1, 1, 4000, 2, device="jax"), torch.zeros(1, 1, 8, 2, device="jax")
    v = torch.ones(1, 1, 8, 1, device="jax")
    dropped = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    assert dropped.std().item() > 0.2
    assert abs(dropped.mean().item() - 1) < 0.05
