"""The models of `accelerator.py`, in PyTorch: those of `models.py` in the sizes people train."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models import BERT, GPT, ViT

Batch = tuple[Tensor, Tensor]


class Bottleneck(nn.Module):
    """ResNet's bottleneck block."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * width)
        self.project = None
        if stride != 1 or inputs != 4 * width:
            self.project = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.norm4 = nn.BatchNorm2d(4 * width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        skip = x if self.project is None else self.norm4(self.project(x))
        return F.relu(y + skip)


class ResNet50(nn.Module):
    """ResNet-50, or one of other depths and widths."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        inputs = width
        for stage, depth in enumerate(depths):
            own = width << stage
            for index in range(depth):
                stride = 2 if stage and not index else 1
                blocks.append(Bottleneck(inputs, own, stride))
                inputs = 4 * own
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.norm(self.stem(x))))
        return self.head(self.blocks(x).mean(dim=(2, 3)))


def _images(count: int) -> Batch:
    return torch.randn(count, 3, 224, 224), torch.randint(10, (count,))


def _text(count: int, length: int, vocabulary: int) -> Batch:
    drawn = torch.randint(vocabulary, (count, length + 1))
    return drawn[:, :-1].contiguous(), drawn[:, 1:].flatten()


def _adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01)


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


_CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch], Callable[..., Any]]] = {
    "ResNet-50": (ResNet50, lambda: _images(64), _sgd),
    "ViT-B/16": (lambda: ViT(768, 12, 12, 16, 196), lambda: _images(32), _adamw),
    "GPT-2": (
        lambda: GPT(768, 12, 12, 50304, 1024),
        lambda: _text(8, 1024, 50257),
        _adamw,
    ),
    "BERT-base": (
        lambda: BERT(768, 12, 12, 30592, 512),
        lambda: _text(16, 512, 30522),
        _adamw,
    ),
    "small ResNet": (lambda: ResNet50((1, 1), 8), lambda: _images(2), _sgd),
    "small ViT": (lambda: ViT(64, 4, 2, 16, 196), lambda: _images(2), _adamw),
    "small GPT": (lambda: GPT(64, 4, 2, 256, 64), lambda: _text(2, 64, 256), _adamw),
    "small BERT": (lambda: BERT(64, 4, 2, 256, 64), lambda: _text(2, 64, 256), _adamw),
}


def build(case: str, device: str) -> tuple[nn.Module, Batch, Callable[..., Any]]:
    """The model and its batch on a device, with equal values at every call, and its optimizer."""
    torch.manual_seed(0)
    make, draw, optimizer = _CASES[case]
    model, (x, y) = make(), draw()
    return model.to(device), (x.to(device), y.to(device)), optimizer


def loss_with(
    model: nn.Module, device: str, dtype: torch.dtype | None
) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of a batch, under autocast if a dtype is given."""

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device, dtype) if dtype is not None else nullcontext():
            return F.cross_entropy(model(x), y)

    return loss_of
