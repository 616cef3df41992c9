"""The programs that the laws are about: `PROGRAMS` maps a name to a maker of program and inputs.

A maker gives the program, a module or a function, and a function that draws inputs for it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Program = Callable[..., Any]
Draw = Callable[[], tuple[Any, ...]]
PROGRAMS: dict[str, Callable[[], tuple[Program, Draw]]] = {}


def program(*shapes: tuple[int, ...]) -> Callable[[Program], Program]:
    """Enter a function of float tensors of these shapes, or a module class, into the table."""

    def enter(made: Program) -> Program:
        def draw() -> tuple[Tensor, ...]:
            return tuple(torch.randn(shape) for shape in shapes)

        is_class = isinstance(made, type)
        PROGRAMS[made.__name__.strip("_")] = lambda: (made() if is_class else made, draw)
        return made

    return enter


@program((4, 3), (3,))
def pointwise(x: Tensor, y: Tensor) -> Tensor:
    return (x * 2 + y).sin().clamp(min=-0.5) / (y.abs() + 1)


@program((4, 3))
def several_results(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, indices = x.max(dim=1)
    return values, indices, x.sum()


@program((4, 3))
def dictionary(x: Tensor) -> dict[str, Any]:
    return {"a": x.relu(), "b": [x.exp(), (x.cos(), x.sin())]}


@program((4, 3))
def views(x: Tensor) -> Tensor:
    return torch.cat(
        [x.t()[1:].flatten(), x.reshape(-1)[::2], x[:, None].expand(4, 2, 3).sum((0, 1))]
    )


@program((4, 3), (3,))
def writes_to_its_input(x: Tensor, y: Tensor) -> Tensor:
    x += y
    x[0].zero_()
    return x * 2


@program((4, 3))
def writes_through_a_view(x: Tensor) -> Tensor:
    y = x.clone()
    y.view(-1)[3:5] = 7.0
    y.t()[0].mul_(2)
    return y + 1


@program((4, 3))
def accumulates(x: Tensor) -> Tensor:
    total = torch.zeros(3)
    for row in range(4):
        total += x[row]
    return total


@program((4, 3))
def no_gradient_inside(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().max()
    return x / scale


@program((5, 4))
def shapes_decide(x: Tensor) -> Tensor:
    rows, columns = x.shape
    if x.ndim == 2 and rows > columns:
        x = x[: rows - columns]
    return x + torch.arange(len(x), dtype=x.dtype)[:, None]


@program((2, 3, 4))
def iterates(x: Tensor) -> Tensor:
    return sum((part.sum(0) for part in x), torch.zeros(x.shape[-1]))


@program((2, 6))
class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
        self.scale = nn.Parameter(torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.layers(x) * self.scale, dim=-1)


@program((2, 3, 8, 8))
class Convolutions(nn.Module):
    """In training: running statistics are written to."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(self.act(self.norm(self.conv(x))), 2).mean((2, 3))


@program((2, 5, 8))
class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm(x)).view(batch, length, 3, 2, width // 2)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(found.transpose(1, 2).reshape(batch, length, width))


@program((3,))
class Counter(nn.Module):
    """A buffer that counts the calls."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count


@program((2, 4))
class Tied(nn.Module):
    """Two names for one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x).tanh())
