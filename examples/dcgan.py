"""A DCGAN of handwritten digits: two networks, two optimizers, one XLA program.

pip install scikit-learn
python examples/dcgan.py [--steps 300]
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import calque

NOISE = 16


def generator(width: int = 16) -> nn.Module:
    """(batch, NOISE, 1, 1) to images of (batch, 1, 8, 8) between -1 and 1."""
    return nn.Sequential(
        nn.ConvTranspose2d(NOISE, 2 * width, 2, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
        nn.Tanh(),
    )


def discriminator(width: int = 16) -> nn.Module:
    """(batch, 1, 8, 8) to the logit of being real."""
    return nn.Sequential(
        nn.Conv2d(1, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 1, 2),
        nn.Flatten(0),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    images = torch.tensor(load_digits().images, dtype=torch.float32, device="jax")
    images = images.unsqueeze(1) / 8 - 1
    fake_of, logit_of = generator().to("jax"), discriminator().to("jax")
    adam = {"lr": 2e-3, "betas": (0.5, 0.999)}
    generating = torch.optim.Adam(fake_of.parameters(), **adam)
    discriminating = torch.optim.Adam(logit_of.parameters(), **adam)

    @calque.jit
    def step(real: Tensor) -> tuple[Tensor, Tensor]:
        fake = fake_of(torch.randn(len(real), NOISE, 1, 1, device=real.device))
        discriminating.zero_grad()
        seen = F.softplus(-logit_of(real)).mean() + F.softplus(logit_of(fake.detach())).mean()
        seen.backward()
        discriminating.step()
        generating.zero_grad()
        fooled = F.softplus(-logit_of(fake)).mean()
        fooled.backward()
        generating.step()
        return seen.detach(), fooled.detach()

    before = [p.detach().clone() for p in (*fake_of.parameters(), *logit_of.parameters())]
    for number in range(steps):
        seen, fooled = step(images[torch.randint(len(images), (64,))])
        if number % max(steps // 5, 1) == 0:
            print(f"step {number}: discriminator {seen:.3f}, generator {fooled:.3f}")
    with torch.no_grad():
        fakes = fake_of.eval()(torch.randn(256, NOISE, 1, 1, device="jax"))
    off = (fakes.mean(0) - images.mean(0)).abs().mean().item()
    print(f"the mean image of the fakes differs from that of the digits by {off:.3f}")
    assert not any(map(torch.equal, before, (*fake_of.parameters(), *logit_of.parameters())))
    assert torch.isfinite(fakes).all()


if __name__ == "__main__":
    main()
