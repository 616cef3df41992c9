"""A variational autoencoder of handwritten digits.

pip install scikit-learn
python examples/vae.py [--steps 400]
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import calque

SHADES = " .:-=+*#%@"


class VAE(nn.Module):
    """8x8 grey images to eight numbers, and back."""

    def __init__(self, hidden: int = 128, latent: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent)
        )
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, 64))
        self.latent = latent

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, 64) to the logits of the images, means and logarithms of variances."""
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(z), mean, log_variance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    images = torch.tensor(load_digits().data, dtype=torch.float32, device="jax") / 16
    model = VAE().to("jax")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    @calque.jit
    def step(x: Tensor) -> Tensor:
        logits, mean, log_variance = model(x)
        likelihood = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
        loss = (likelihood + divergence) / len(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    losses = [step(images[torch.randint(len(images), (128,))]) for _ in range(steps)]
    first, last = losses[0].item(), torch.stack(losses[-5:]).mean().item()
    print(f"-ELBO {first:.2f} -> {last:.2f} in {steps} steps")
    with torch.no_grad():
        drawn = model.decoder(torch.randn(6, model.latent, device="jax")).sigmoid()
    rows = (9.99 * drawn).long().view(6, 8, 8).transpose(0, 1).tolist()
    print("\n".join("  ".join("".join(SHADES[v] for v in image) for image in row) for row in rows))
    assert last < first


if __name__ == "__main__":
    main()
