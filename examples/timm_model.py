"""Train a model of timm on the device, and compare it with the CPU.

    pip install timm scikit-learn
    python examples/timm_model.py [--model test_vit.r160_in1k] [--steps 40]

Any classifier of timm that takes images of this size will do: `timm.list_models()`.
"""

import argparse
import copy

import timm
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

import calque

SIZE = 32


def data() -> tuple[Tensor, Tensor]:
    """Handwritten digits as RGB images of SIZE by SIZE, and their classes."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    return F.interpolate(images, (SIZE, SIZE)).expand(-1, 3, -1, -1), torch.tensor(digits.target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="test_vit")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.manual_seed(0)
    images, labels = data()
    settings = {"img_size": SIZE} if "vit" in options.model else {}
    reference = timm.create_model(options.model, num_classes=10, **settings)
    model = copy.deepcopy(reference).to("jax")
    with torch.no_grad():
        theirs = reference.eval()(images[:8])
        ours = calque.jit(model.eval())(images[:8].to("jax")).cpu()
    print(f"{options.model}: the logits differ from the CPU's by {(ours - theirs).abs().max():.0e}")
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    @calque.jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    losses = []
    for _ in range(options.steps):
        chosen = torch.randint(len(images), (32,))
        losses.append(step(images[chosen].to("jax"), labels[chosen].to("jax")))
    first, last = losses[0].item(), torch.stack(losses[-5:]).mean().item()
    print(f"loss {first:.2f} -> {last:.2f} in {options.steps} steps")
    assert last < first


if __name__ == "__main__":
    main()
