"""What a program keeps of its tensors, the graph keeps; what it finds of them is not frozen."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calque


class IfNone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache: Any = None

    def forward(self, x: Tensor) -> Tensor:
        if self.cache is None:
            self.cache = x * 2
        return self.cache + x


class IfMissing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "cache"):
            self.cache = x * 2
        return self.cache + x


class IfItRaises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        try:
            cache = self.cache
        except AttributeError:
            cache = self.cache = x * 2
        return cache + x


class IfTheBufferIsNone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.cache is None:
            self.cache = x * 2
        return self.cache + x


class ByComputedNames(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for number in range(2):
            if getattr(self, f"cache{number}", None) is None:
                setattr(self, f"cache{number}", x * number)
        return self.cache0 + self.cache1 + x


class InTheInstanceDictionary(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + vars(self).setdefault("cache", x * 2)


class ByAHook(nn.Module):
    """Keeps what a layer gives, as tools for interpretability do."""

    def __init__(self) -> None:
        super().__init__()
        self.features: dict[str, Tensor] = {}
        self.layer = nn.Linear(3, 3)
        self.layer.register_forward_hook(self.keep)

    def keep(self, module: nn.Module, args: Any, result: Tensor) -> None:
        self.features["layer"] = result.detach()

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y * self.features["layer"]


class InAnObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = SimpleNamespace(value=None)

    def forward(self, x: Tensor) -> Tensor:
        self.last.value = x * 2
        return x + self.last.value


KEEPS = (IfNone, IfMissing, IfItRaises, IfTheBufferIsNone, ByComputedNames)
KEEPS += (InTheInstanceDictionary, ByAHook, InAnObject)


@pytest.mark.parametrize("kind", KEEPS[:-1])
def test_what_a_first_call_finds_otherwise_has_no_graph(kind: Any) -> None:
    recording = calque.record(kind(), torch.ones(3))
    with pytest.raises(calque.TraceError, match="call the program once before recording"):
        recording.graph()


@pytest.mark.parametrize("level", ["function", "module", "aten"])
@pytest.mark.parametrize("kind", KEEPS)
def test_a_later_call_is_recorded(kind: Any, level: Any) -> None:
    program = kind()
    program(torch.ones(3))
    twin = copy.deepcopy(program)
    graph = calque.record(program, torch.randn(3)).graph(level)
    twin(torch.zeros(3))
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(graph(x), twin(x))


def test_the_graph_assigns_what_the_program_keeps() -> None:
    for kind, read in (
        (ByAHook, lambda program: program.features["layer"]),
        (InAnObject, lambda program: program.last.value),
    ):
        program = kind()
        program(torch.ones(3))
        graph = calque.record(program, torch.ones(3)).graph()
        twin, x = copy.deepcopy(program), torch.randn(3)
        twin(x), graph(x)
        torch.testing.assert_close(read(program), read(twin))


def test_what_replaces_a_value_that_was_read_is_refused() -> None:
    class Smooths(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = {"mean": torch.zeros(3)}

        def forward(self, x: Tensor) -> Tensor:
            self.held["mean"] = self.held["mean"] * 0.9 + x
            return x - self.held["mean"]

    program = Smooths()
    program(torch.ones(3))
    with pytest.raises(calque.TraceError, match="mean"):
        calque.record(program, torch.ones(3)).graph()


def test_trace_knows_an_attribute_that_it_has_read_and_then_replaced() -> None:
    class Differs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = torch.zeros(3)

        def forward(self, x: Tensor) -> Tensor:
            before = self.before
            self.before = x * 1
            return x - before

    with pytest.raises(calque.TraceError, match=r"self\.before"):
        calque.trace(Differs(), torch.ones(3))


def test_an_attribute_of_a_tensor_that_is_returned_is_set_by_the_graph() -> None:
    def marked(x: torch.Tensor) -> Any:
        y: Any = x * 2
        y.note, y.more, y.own = "doubled", {"sum": [x.sum(), 1]}, y
        if y.more["sum"][0].item() > 100:
            y.note = "much"
        return y, (y, x - 1)

    recording = calque.record(marked, torch.ones(2))
    for graph in (recording.graph(), recording.graph(follow=False)):
        first, second = graph(torch.ones(2)), graph(torch.ones(2))
        for y, (same, _) in (first, second):
            assert same is y and y.own is y and y.note == "doubled"
            assert y.more["sum"][0] == 2 and y.more["sum"][1] == 1
        assert first[0] is not second[0] and first[0].more is not second[0].more
