"""The models of the benchmarks in PyTorch; `handwritten.py` has the same ones in JAX."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MLP(nn.Module):
    """Linear layers with ReLU between; 784 -> 512 -> 512 -> 10 if not said otherwise."""

    def __init__(self, widths: Sequence[int] = (784, 512, 512, 10)) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for before, after in pairwise(widths):
            parts += [nn.ReLU(), nn.Linear(before, after)]
        self.layers = nn.Sequential(*parts[1:])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Block(nn.Module):
    """ResNet's basic block, with a projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.project = None
        if stride != 1 or inputs != outputs:
            self.project = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.norm3 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        skip = x if self.project is None else self.norm3(self.project(x))
        return F.relu(y + skip)


class ResNet(nn.Module):
    """A residual network of stages of two basic blocks; (64, 128, 256, 512) is ResNet-18's body."""

    def __init__(self, widths: tuple[int, ...], classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        blocks: list[nn.Module] = []
        previous = widths[0]
        for stage, width in enumerate(widths):
            blocks += [Block(previous, width, 1 if stage == 0 else 2), Block(width, width, 1)]
            previous = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(previous, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(x.mean(dim=(2, 3)))


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    """A transformer encoder over vectors, classified by their mean."""

    def __init__(self, width: int = 128, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer(width, heads, False) for _ in range(depth)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(dim=1))


class GPT(nn.Module):
    """A small GPT, its embedding tied to its head."""

    def __init__(
        self,
        width: int = 128,
        heads: int = 4,
        depth: int = 4,
        vocabulary: int = 256,
        length: int = 64,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.Sequential(*(Layer(width, heads, True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.layers(x))).flatten(0, 1)


class ViT(nn.Module):
    """A vision transformer over patches, classified by their mean; ViT-tiny's width and heads."""

    def __init__(
        self,
        width: int = 192,
        heads: int = 3,
        depth: int = 6,
        patch: int = 4,
        patches: int = 64,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn(patches, width))
        self.layers = nn.Sequential(*(Layer(width, heads, False) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.layers(x)).mean(dim=1))


class BERT(nn.Module):
    """A small BERT: every token is predicted from both sides."""

    def __init__(
        self,
        width: int = 128,
        heads: int = 4,
        depth: int = 4,
        vocabulary: int = 256,
        length: int = 64,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(Layer(width, heads, False) for _ in range(depth)))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.tokens(tokens) + self.positions[: tokens.shape[1]])
        return self.head(self.layers(x)).flatten(0, 1)


@dataclass(frozen=True)
class Case:
    """A model, a batch for it, and the name of its JAX twin."""

    name: str
    twin: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]


def _images(count: int, size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, size, size), torch.randint(10, (count,))


def text(count: int, length: int = 64) -> tuple[Tensor, Tensor]:
    """A batch of random characters, and what follows each."""
    drawn = torch.randint(256, (count, length + 1))
    return drawn[:, :-1].contiguous(), drawn[:, 1:].flatten()


CASES = (
    Case("MLP", "mlp", MLP, lambda: (torch.randn(128, 784), torch.randint(10, (128,)))),
    Case("residual CNN", "resnet", lambda: ResNet((16, 32)), lambda: _images(16, 16)),
    Case(
        "transformer encoder",
        "encoder",
        Encoder,
        lambda: (torch.randn(8, 64, 128), torch.randint(10, (8,))),
    ),
    Case("small GPT", "gpt", GPT, lambda: text(4)),
)
LARGE = (
    Case("ResNet-18", "resnet", lambda: ResNet((64, 128, 256, 512)), lambda: _images(4, 32)),
    Case("GPT, 12 layers", "gpt", lambda: GPT(depth=12), lambda: text(2)),
)
DEEP = (LARGE[1], Case("GPT, 48 layers", "gpt", lambda: GPT(depth=48), lambda: text(2)))
COMPILED = (
    LARGE[0],
    Case("ViT-tiny", "vit", ViT, lambda: _images(4, 32)),
    Case("GPT-2-like, 6 layers", "gpt", lambda: GPT(depth=6), lambda: text(4)),
    Case("BERT-like", "bert", BERT, lambda: text(4)),
)
"""What `compile.py` runs."""
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01),
}


def build(case: Case, device: str = "cpu") -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """The model and its batch on a device; the same values at every call."""
    torch.manual_seed(0)
    model = case.model()
    x, y = case.batch()
    return model.to(device), (x.to(device), y.to(device))


def make_step(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[Tensor, Tensor], Tensor]:
    """An ordinary PyTorch training step."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step
