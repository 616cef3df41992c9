"""Programs that the converters are tried on: `MODELS` makes a model and its inputs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x), inplace=True)
        y = F.max_pool2d(y + self.second(y), 2)
        y = F.avg_pool2d(F.hardswish(y), 2)
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1)).softmax(-1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.places = nn.Parameter(torch.randn(6, 8))
        self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(3)])
        self.attention = nn.ModuleList([Attention(), Attention()])
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, ids: Tensor) -> dict[str, Any]:
        x = self.tokens(ids) + self.places[: ids.shape[1]]
        x = x + self.attention[0](self.norms[0](x), True)
        x = x + self.attention[1](self.norms[1](x), False)
        x = self.norms[2](x + self.mlp(x))
        return {"logits": x @ self.tokens.weight.T, "parts": (x.mean(1), x[:, 0])}


class Mixed(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        a, b = x.chunk(2, dim=1)
        z = torch.where(a > 0, a, b.exp().clamp(max=2.0)) * torch.sigmoid(y)
        masked = z.masked_fill(z < 0.1, float("-inf"))
        return torch.cat([z, F.silu(z)], 1).pow(2).sum(1).sqrt(), masked, torch.tanh(y).unsqueeze(0)


Maker = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]
MODELS: dict[str, Maker] = {
    "convolutional": lambda: (Residual().eval(), (torch.randn(2, 3, 8, 8),)),
    "transformer": lambda: (Transformer().eval(), (torch.randint(0, 11, (2, 6)),)),
    "pointwise": lambda: (Mixed(), (torch.randn(3, 4), torch.randn(3, 2))),
}


def others(args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Other inputs of the same shapes."""
    return tuple(
        torch.randn_like(arg) if arg.is_floating_point() else torch.randint_like(arg, 0, 11)
        for arg in args
    )
