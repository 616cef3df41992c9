"""A GPT that decodes token by token into a cache of fixed size: eager, jitted and compiled."""

from benchmarks import one_core  # noqa: F401  (first)

# isort: split
from benchmarks import common
from benchmarks.models import GPT, Layer

# isort: split
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calque

LENGTH = 64
BATCH = 4


class Decoder(nn.Module):
    """The GPT of `models.py`, one token at a time; keys and values are buffers."""

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.gpt = gpt
        first: Layer = gpt.layers[0]  # type: ignore[assignment]
        width = gpt.positions.shape[1]
        shape = (len(gpt.layers), BATCH, first.heads, LENGTH, width // first.heads)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(self, tokens: Tensor, place: Tensor) -> Tensor:
        """The next tokens, after `tokens` (one a row) at `place` (of one element)."""
        x = self.gpt.tokens(tokens)[:, None] + self.gpt.positions[place]
        seen = torch.arange(LENGTH, device=x.device) <= place
        for index, layer in enumerate(self.gpt.layers):
            x = self._layer(index, layer, x, place, seen)
        return self.gpt.head(self.gpt.norm(x))[:, 0].argmax(-1)

    def _layer(
        self, index: int, layer: nn.Module, x: Tensor, place: Tensor, seen: Tensor
    ) -> Tensor:
        batch, _, width = x.shape
        qkv = layer.qkv(layer.norm1(x)).view(batch, 1, 3, layer.heads, width // layer.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        self.keys[index].index_copy_(2, place, k)
        self.values[index].index_copy_(2, place, v)
        attended = F.scaled_dot_product_attention(
            q, self.keys[index], self.values[index], attn_mask=seen[None, None, None]
        )
        x = x + layer.out(attended.transpose(1, 2).reshape(batch, 1, width))
        return x + layer.down(F.gelu(layer.up(layer.norm2(x))))


def decoder(device: str, wrap: Callable) -> Callable[[], list[list[int]]]:
    """A function that decodes `LENGTH` tokens for each row, and gives them."""
    torch.manual_seed(0)
    model = Decoder(GPT()).eval().to(device)
    step = wrap(model)
    places = [torch.tensor([i], device=device) for i in range(LENGTH)]

    def run() -> list[list[int]]:
        tokens = torch.arange(BATCH, device=device)
        found = []
        with torch.no_grad():
            for place in places:
                tokens = step(tokens, place)
                found.append(tokens)
        return torch.stack(found).tolist()

    return run


def report(quick: bool) -> None:
    """Print the tokens a second of each way."""
    ways: dict[str, tuple[str, Callable]] = {
        "torch eager": ("cpu", lambda model: model),
        "eager on the device": ("jax", lambda model: model),
        "calque.jit": ("jax", calque.jit),
        "compiled by calque": ("jax", lambda model: torch.compile(model, backend="calque")),
        "compiled by calque, CPU": ("cpu", lambda model: torch.compile(model, backend="calque")),
    }
    if not quick:
        ways["inductor"] = ("cpu", torch.compile)
    runs = {name: decoder(*way) for name, way in ways.items()}
    results = {name: run() for name, run in runs.items()}
    for name, tokens in results.items():
        if tokens != results["torch eager"]:
            raise AssertionError(f"{name} decodes other tokens than torch")
    times = common.interleave(runs, 2 if quick else 9, calls=1)
    rows = [[name, f"{BATCH * LENGTH / times[name]:.0f}"] for name in runs]
    common.table(f"Decoding, {BATCH} rows, static cache", ["way", "tokens a second"], rows)


def main() -> None:
    report(common.quick(__doc__))


if __name__ == "__main__":
    main()
