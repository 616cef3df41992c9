"""What traces of backwards leave behind in PyTorch's engine."""

import torch
from torch import nn

import calque


def test_a_loss_whose_graph_is_used_up_leaves_nothing_behind():
    """Two ways lead to the leaf that is made in the step: one is queued as the other one fails."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))

    def step(t):
        t = t.clone().requires_grad_()
        u = model(t)
        (slope,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        loss = (slope + u).square().mean() + (model(torch.zeros_like(t[:1])) - 1).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        return loss

    t = torch.linspace(0, 1, 5)[:, None]
    begun = {name: p.clone() for name, p in model.state_dict().items()}
    expected = [step(t).item() for _ in range(4)]
    model.load_state_dict(begun)
    model.to("jax")
    jitted = calque.jit(step)
    found = [jitted(t.to("jax")).item() for _ in range(4)]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    assert len(jitted.history) == 1, jitted.history
