"""Views reach an executable as the array they are of."""

import pytest
import torch

import calque  # noqa: F401  (registers the device)

VIEWS = [
    lambda x: x.transpose(0, 1),
    lambda x: x.permute(2, 0, 1),
    lambda x: x.transpose(1, 2)[1:],
    lambda x: x[:, :, ::2],
    lambda x: x.transpose(0, 2).unsqueeze(1),
    lambda x: x.view(-1).view(4, 6).t(),
    lambda x: x.permute(2, 0, 1).view(torch.int32).abs(),
    lambda x: torch._neg_view(x.transpose(0, 1)),
]


@pytest.mark.parametrize("view", VIEWS)
def test_operators_read_views(view):
    x = torch.randn(2, 3, 4)
    ours = view(x.to("jax"))
    for _ in range(5):  # the first calls do not take the fast path
        assert torch.equal((ours * 2).cpu(), view(x) * 2)
        assert (ours * 2).stride() == (view(x) * 2).stride()
    assert torch.equal(torch.abs(ours).cpu(), torch.abs(view(x)))
    assert torch.equal(torch.stack([ours, ours]).cpu(), torch.stack([view(x)] * 2))


@pytest.mark.parametrize("view", VIEWS[:4])
def test_operators_write_views(view):
    base = torch.randn(2, 3, 4)
    for _ in range(2):
        ours, theirs = base.to("jax"), base.clone()
        view(ours).mul_(view(ours)).add_(1)
        view(theirs).mul_(view(theirs)).add_(1)
        torch.testing.assert_close(ours.cpu(), theirs)


def test_square_matrices_are_told_from_their_transposes():
    x = torch.randn(3, 3)
    ours = x.to("jax")
    for _ in range(2):
        torch.testing.assert_close((ours.t() @ ours).cpu(), x.t() @ x)
        torch.testing.assert_close((ours @ ours.t()).cpu(), x @ x.t())
        torch.testing.assert_close((ours.t() - ours).cpu(), x.t() - x)
