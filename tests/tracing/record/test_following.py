"""Numbers that a program reads and only passes to PyTorch are read again by its graph."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calque

X = torch.tensor([1.5, 2.0, -3.2])
OTHERS = [torch.tensor(v) for v in ([1.0, -4.2, 0.5], [2.0, 3.0, 1.0], [6.6, -2.0, 3.0])]


def scales(x: Tensor) -> Any:
    scale = x.abs().max().item()
    x *= scale
    return (
        x / scale,
        2 - x * -scale,
        x.clamp(max=scale / 2),
        x > scale / 3,
        torch.where(x > 0, x, scale),
    )


def masks(lengths: Tensor) -> Any:
    lengths = lengths.abs().long()
    n: Any = lengths.max().item()
    return torch.arange(n)[None, :] < lengths[:, None], torch.zeros(2, n), F.pad(lengths, (0, n))


def quantizes(x: Tensor) -> Any:
    with torch.no_grad():
        low, step = x.min().item(), max(float(x.max()), 1.0) / 127
    return torch.clamp(torch.round((x - low) / step), 0, 255) * step, x ** math.ceil(step)


def slices(x: Tensor) -> Any:
    n = int(x.abs().max())
    table = torch.arange(24.0).view(12, 2)
    table[n:, 1] = 0
    return table[:n], table[..., :n], table[n - 1]


def reads_in_a_loop(x: Tensor) -> Any:
    for step in range(2):
        largest = x.abs().max().item()
        x = x / largest + step
    return x


def reads_twice(x: Tensor) -> Any:
    n = x.max().item()
    y = x / n
    n = y.sum().item()
    return y * n


class Quantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Any:
        scale = x.abs().max().item() / 127
        self.scale.fill_(scale)  # pyright: ignore[reportCallIssue]
        return self.layer((x / scale).round() * scale)


FOLLOWED: list[Any] = [
    *(scales, masks, quantizes, slices, reads_in_a_loop, reads_twice, Quantized()),
]


def outcome(run: Any, x: Tensor) -> Any:
    x = x.clone()
    return run(x), x


@pytest.mark.parametrize("program", FOLLOWED, ids=lambda p: getattr(p, "__name__", "module"))
def test_what_only_pytorch_gets_is_read_again(program: Any) -> None:
    recording = calque.record(program, X.clone())
    assert recording.escapes
    assert all(escape.is_followed for escape in recording.escapes)
    for level in ("function", "module"):
        graph = recording.graph(level)  # pyright: ignore[reportArgumentType]
        again = calque.record(graph, X.clone()).graph()
        for x in OTHERS:
            expected = outcome(program, x)
            torch.testing.assert_close(outcome(graph, x), expected, rtol=0, atol=0)
            torch.testing.assert_close(outcome(again, x), expected, rtol=0, atol=0)


def test_a_number_that_is_not_to_be_followed_is_a_guard() -> None:
    recording = calque.record(scales, X.clone())
    for graph in (recording.graph(follow=False), recording.graph("aten")):
        torch.testing.assert_close(outcome(graph, X), outcome(scales, X))
        with pytest.raises(calque.TraceError, match=r"test_following\.py:\d+ .* item gave 3\.2"):
            graph(OTHERS[0])


def decides(x: Tensor) -> Any:
    n = x.max().item()
    return x * n if n > 0 else x


def lists(x: Tensor) -> Any:
    n = x.max().item()
    parts = [n]
    return x * n + parts[0]


def repeats(x: Tensor) -> Any:
    n = x.max().item()
    for _ in range(2):
        x = x * n
    return x


def rebinds(x: Tensor) -> Any:
    n = x.max().item()
    if len(x) > 2:
        n = 2.0
    return x * n


def late(x: Tensor) -> Any:
    n, results = 2.0, []
    for i in range(2):
        results.append(x * n)
        if i == 0:
            n = x.max().item()
    return results


def closes(x: Tensor) -> Any:
    n = x.max().item()
    return (lambda y: y * n)(x) * n


def names(x: Tensor) -> Any:
    n = x.max().item()
    y = x * (n := 2.0)
    return y + n


def shadows(x: Tensor) -> Any:
    int = round
    n = int(x.max().item())
    return x * n


def compares(x: Tensor) -> Any:
    n = x.max().item()
    return x * max(x.mean(), n)


def sizes_of_sizes(x: Tensor) -> Any:
    n = int(x.abs().max()) % 2
    return x.new_ones(torch.zeros(2, 5).size(n))


def adds_in_place(x: Tensor) -> Any:
    n = x.max().item()
    n *= 2
    return x * n


def looks_at_its_variables(x: Tensor) -> Any:
    n = x.max().item()
    return x * n + locals()["n"]


def calls_with(x: Tensor) -> Any:
    n = x.max().item()
    return _doubled(x, n) * n


def _doubled(x: Tensor, n: float) -> Tensor:
    return x + round(n)


def seeds(x: Tensor) -> Any:
    n = int(x.abs().max())
    torch.manual_seed(n)
    return torch.rand(2) + x.sum()


def counts_parts(x: Tensor) -> Any:
    n = int(x.abs().max())
    parts = torch.arange(12).chunk(n)
    return len(parts) * x


def asks_the_size(x: Tensor) -> Any:
    n = int(x.abs().max())
    return torch.arange(n).numel() * x


GUARDED: list[Callable[..., Any]] = [
    *(decides, lists, repeats, rebinds, late, closes, names, shadows, compares, sizes_of_sizes),
    *(adds_in_place, looks_at_its_variables, calls_with, seeds, counts_parts, asks_the_size),
]


@pytest.mark.parametrize("program", GUARDED)
def test_what_goes_elsewhere_is_a_guard(program: Any) -> None:
    graph = calque.record(program, X.clone()).graph()
    torch.testing.assert_close(graph(X), program(X), rtol=0, atol=0)
    with pytest.raises(calque.TraceError, match="when this was recorded"):
        graph(OTHERS[0])


def test_an_edit_is_of_calls_of_pytorch_not_of_numbers() -> None:
    def program(x: Tensor) -> Tensor:
        n = x.max().item() * 2
        return x * n

    graph = calque.record(program, X).graph(edits={":mul": lambda value: value.abs()})
    torch.testing.assert_close(graph(OTHERS[0]), program(OTHERS[0]).abs())


def test_a_graph_that_reads_numbers_can_be_shown_compared_and_copied() -> None:
    recording = calque.record(quantizes, X)
    assert not calque.diff(recording, quantizes, OTHERS[0])
    assert "item" in str(calque.show(recording))


def test_lowering_names_what_can_be_lowered() -> None:
    recording = calque.record(scales, X.clone())
    with pytest.raises(calque.TraceError, match=r"graph\(\"aten\"\) and graph\(follow=False\)"):
        calque.lower(recording.graph())
    calque.lower(recording.graph(follow=False))
