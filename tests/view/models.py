"""Models whose graphs are looked at."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, width: int, inner: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, 4 * inner, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * inner)
        self.relu = nn.ReLU()
        self.downsample = None
        if stride != 1 or width != 4 * inner:
            down = nn.Conv2d(width, 4 * inner, 1, stride, bias=False)
            self.downsample = nn.Sequential(down, nn.BatchNorm2d(4 * inner))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """ResNet-50 (He et al. 2015); `width=64` and `blocks=(3, 4, 6, 3)` are the original."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        given = width
        for index, count in enumerate(blocks):
            inner = width * 2**index
            stage = []
            for block in range(count):
                stage.append(Bottleneck(given, inner, 2 if index and not block else 1))
                given = 4 * inner
            self.add_module(f"layer{index + 1}", nn.Sequential(*stage))
        self.fc = nn.Linear(given, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        for index in range(1, 5):
            y = getattr(self, f"layer{index}")(y)
        return self.fc(y.mean((2, 3)))


class Detector(nn.Module):
    """A pyramid of features with two heads, as detectors have."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.SiLU())
            for a, b in ((3, 16), (16, 32), (32, 64))
        )
        self.lateral = nn.ModuleList(nn.Conv2d(width, 24, 1) for width in (16, 32, 64))
        self.smooth = nn.ModuleList(nn.Conv2d(24, 24, 3, padding=1) for _ in range(3))
        self.boxes = nn.Sequential(nn.Conv2d(24, 24, 3, padding=1), nn.SiLU(), nn.Conv2d(24, 4, 1))
        self.classes = nn.Sequential(
            nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 7, 1)
        )

    def forward(self, image: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        features = []
        for stage in self.stages:
            image = stage(image)
            features.append(image)
        levels = [lateral(feature) for lateral, feature in zip(self.lateral, features)]
        for i in (1, 0):
            size = levels[i].shape[-2:]
            levels[i] = levels[i] + F.interpolate(levels[i + 1], size=size, mode="nearest")
        levels = [smooth(level) for smooth, level in zip(self.smooth, levels)]
        return {
            "boxes": [self.boxes(level) for level in levels],
            "scores": [self.classes(level).sigmoid() for level in levels],
        }


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        parts = self.qkv(self.ln_1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, layers: int = 24, width: int = 16) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(64, width), nn.Embedding(32, width)
        self.h = nn.ModuleList(Block(width) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, 64, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "resnet50": lambda: (ResNet().eval(), (torch.randn(1, 3, 64, 64),)),
    "gpt": lambda: (GPT().eval(), (torch.arange(8)[None],)),
    "detector": lambda: (Detector().eval(), (torch.randn(1, 3, 64, 64),)),
}
