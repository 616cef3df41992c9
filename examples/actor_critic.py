"""Reinforcement learning: a pole is balanced on a cart, in many carts at once.

The physics are tensors, too. So an update (sixteen steps of all carts, the returns, the
gradients, the optimizer) is one XLA program, and nothing is read from the device in between.

    python examples/actor_critic.py [--steps 150]
"""

import argparse
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calque

CARTS, DISCOUNT = 64, 0.99
GRAVITY, POLE, CART_MASS, POLE_MASS, PUSH, TIME = 9.8, 0.5, 1.0, 0.1, 10.0, 0.02


def moved(state: Tensor, action: Tensor) -> Tensor:
    """The state of each cart a fiftieth of a second later: place, speed, angle, angular speed."""
    _, speed, angle, turning = state.unbind(1)
    sine, cosine = angle.sin(), angle.cos()
    force = (2.0 * action - 1.0) * PUSH
    mass = CART_MASS + POLE_MASS
    pushed = (force + POLE_MASS * POLE * turning.square() * sine) / mass
    falling = (GRAVITY * sine - cosine * pushed) / (
        POLE * (4 / 3 - POLE_MASS * cosine.square() / mass)
    )
    faster = pushed - POLE_MASS * POLE * falling * cosine / mass
    changes = torch.stack([speed, faster, turning, falling], dim=1)
    return state + TIME * changes


def fallen(state: Tensor) -> Tensor:
    """Whether the cart has left its track, or the pole leans by more than twelve degrees."""
    return (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > math.radians(12))


def fresh() -> Tensor:
    """Carts that almost stand still."""
    return 0.1 * torch.rand(CARTS, 4, device="jax") - 0.05


class ActorCritic(nn.Module):
    """The logits of the two pushes, and the value of a state."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, 2), nn.Linear(width, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """(carts, 4) to (carts, 2) and (carts,)."""
        x = self.body(state)
        return self.actor(x), self.critic(x).squeeze(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rollout", type=int, default=16, help="steps of the carts in an update")
    options = parser.parse_args()
    steps = options.steps
    torch.manual_seed(0)
    model = ActorCritic().to("jax")
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    @calque.jit
    def update(state: Tensor, age: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One rollout and one step of the optimizer; gives the carts, and how long they stood."""
        chosen, values, entropies, alive = [], [], [], []
        for _ in range(options.rollout):
            logits, value = model(state)
            policy = torch.distributions.Categorical(logits=logits)
            action = policy.sample()
            chosen.append(policy.log_prob(action))
            entropies.append(policy.entropy())
            values.append(value)
            state = moved(state, action)
            over = fallen(state)
            alive.append((~over).float())
            state = torch.where(over[:, None], fresh(), state)  # no `if`: carts differ
            age = torch.where(over, 0, age + 1)
        with torch.no_grad():
            following = model(state)[1]
            returns = []
            for stands in reversed(alive):
                following = stands * (1.0 + DISCOUNT * following)
                returns.append(following)
        target, value = torch.stack(returns[::-1]), torch.stack(values)
        better = target - value.detach()
        better = (better - better.mean()) / (better.std() + 1e-6)
        loss = -(torch.stack(chosen) * better).mean() + F.smooth_l1_loss(value, target)
        (loss - 0.01 * torch.stack(entropies).mean()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return state, age, age.float().mean()

    state, age = fresh(), torch.zeros(CARTS, dtype=torch.long, device="jax")
    for number in range(steps):
        state, age, standing = update(state, age)
        if number % max(steps // 5, 1) == 0 or number == steps - 1:
            print(f"update {number}: the carts have stood for {standing:.0f} steps on average")
    assert update.history == ["first call"]


if __name__ == "__main__":
    main()
