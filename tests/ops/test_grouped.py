"""Grouped matrix products, with their gradients, eagerly and in jit."""

import pytest
import torch
from torch.nn import functional as F

import calque

ENDS = torch.tensor([3, 3, 8], dtype=torch.int32)


@pytest.mark.parametrize(
    ("first", "second", "ends"),
    [
        ((8, 4), (3, 4, 12), ENDS),
        ((3, 4, 12), (12, 8), ENDS),
        ((4, 8), (8, 12), ENDS),
        ((3, 8, 4), (3, 4, 12), None),
    ],
    ids=["rows", "columns", "summed", "batched"],
)
def test_agrees_with_the_cpu(
    first: tuple[int, ...], second: tuple[int, ...], ends: torch.Tensor | None
) -> None:
    def run(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> list[torch.Tensor]:
        out = F.grouped_mm(a, b, offs=offs)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), (a, b))]

    a, b = torch.randn(first), torch.randn(second)
    want = run(a.requires_grad_(), b.requires_grad_(), ends)
    x, y = (t.detach().to("jax").requires_grad_() for t in (a, b))
    offs = None if ends is None else ends.to("jax")
    for function in (run, calque.jit(run)):
        for got, expected in zip(function(x, y, offs), want, strict=True):
            torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)
