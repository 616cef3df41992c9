"""A small diffusion model: a U-Net learns to take noise out of handwritten digits.

pip install scikit-learn
python examples/diffusion.py [--steps 300]
"""

import argparse
import math

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import calque

TIMES = 50
SHADES = " .:-=+*#%@"


class Block(nn.Module):
    """Two convolutions, with the time added in between."""

    def __init__(self, inputs: int, outputs: int, times: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(channels, outputs, 3, padding=1) for channels in (inputs, outputs)
        )
        self.norm = nn.GroupNorm(4, outputs)
        self.time = nn.Linear(times, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """(batch, inputs, height, width) to (batch, outputs, height, width)."""
        y = F.silu(self.norm(self.first(x))) + self.time(time)[:, :, None, None]
        return F.silu(self.second(y)) + self.skip(x)


class UNet(nn.Module):
    """Down to a quarter of the pixels and up again, with the larger images handed across."""

    def __init__(self, width: int = 24, times: int = 32) -> None:
        super().__init__()
        self.times = times
        self.enter = Block(1, width, times)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.middle = Block(width, 2 * width, times)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.leave = Block(2 * width, width, times)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Images (batch, 1, 8, 8) and their times (batch,) to the noise in them."""
        rates = torch.exp(-math.log(1000.0) * torch.arange(self.times // 2, device=x.device) / 16)
        angles = t[:, None] * rates
        time = torch.cat([angles.sin(), angles.cos()], dim=1)
        large = self.enter(x, time)
        small = self.middle(self.down(large), time)
        return self.head(self.leave(torch.cat([large, self.up(small)], dim=1), time))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    images = torch.tensor(load_digits().images, dtype=torch.float32, device="jax")
    images = images.unsqueeze(1) / 8 - 1
    kept = torch.cumprod(1 - torch.linspace(1e-3, 0.2, TIMES, device="jax"), dim=0)
    model = UNet().to("jax")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    @calque.jit
    def step(clean: Tensor) -> Tensor:
        t = torch.randint(TIMES, (len(clean),), device=clean.device)
        noise = torch.randn_like(clean)
        share = kept[t].view(-1, 1, 1, 1)
        loss = F.mse_loss(model(share.sqrt() * clean + (1 - share).sqrt() * noise, t), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    @calque.jit
    @torch.no_grad()
    def denoised(x: Tensor, t: Tensor) -> Tensor:
        """One step back in time. `t` is a tensor, so that every time is the same program."""
        share, before = kept[t], torch.where(t > 0, kept[(t - 1).clamp(min=0)], 1.0)
        noise = model(x, t.expand(len(x)))
        clean = ((x - (1 - share).sqrt() * noise) / share.sqrt()).clamp(-1, 1)
        rate = 1 - share / before
        mean = before.sqrt() * rate * clean + (share / before).sqrt() * (1 - before) * x
        spread = (rate * (1 - before) / (1 - share)).sqrt()
        return mean / (1 - share) + spread * torch.randn_like(x)

    losses = [step(images[torch.randint(len(images), (64,))]) for _ in range(steps)]
    first, last = losses[0].item(), torch.stack(losses[-5:]).mean().item()
    print(f"loss {first:.2f} -> {last:.2f} in {steps} steps")
    x = torch.randn(6, 1, 8, 8, device="jax")
    for time in reversed(range(TIMES)):
        x = denoised(x, torch.tensor([time], device="jax"))
    rows = (5 * (x.clamp(-1, 0.99) + 1)).long()[:, 0].transpose(0, 1).tolist()
    print("\n".join("  ".join("".join(SHADES[v] for v in image) for image in row) for row in rows))
    assert last < first
    assert len(denoised.history) == len(step.history) == 1, (denoised.history, step.history)


if __name__ == "__main__":
    main()
