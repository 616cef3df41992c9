"""Twelve things that programs do and a trace cannot see through: captured, or explained."""

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import calque
from calque import TraceError

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -4.0]])
WITH_AND_WITHOUT = pytest.mark.parametrize("known", [True, False], ids=["examples", "symbolic"])
SEEN: list[Any] = []


def data_dependent_if(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def iterates(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    for row in x:
        total = total + row
    return total


def asks_for_length(x: torch.Tensor) -> torch.Tensor:
    return x / len(x)


def makes_an_int(x: torch.Tensor) -> torch.Tensor:
    return x * int(x.sum())


def makes_a_bool(x: torch.Tensor) -> torch.Tensor:
    flag = bool((x > 0).any())
    return x * 2 if flag else x


def prints(x: torch.Tensor) -> torch.Tensor:
    print("the sum is", x.sum())
    return x


def calls_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sin(x))


def zeros_from_shape(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, torch.zeros(x.shape[0], 2)], dim=1)


def takes_keywords(x: torch.Tensor, **scales: torch.Tensor) -> torch.Tensor:
    return sum((x * scale for scale in scales.values()), x)


def writes_to_its_input(x: torch.Tensor) -> torch.Tensor:
    x[0] = 7
    x += 1
    return x.sum()


def remembers(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    SEEN.append(y)
    return y


class Deep(torch.nn.Module):
    """Raises three modules deep."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.inner = Deep(depth - 1) if depth else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.inner is not None:
            return self.inner(x)
        return x @ torch.ones(5, 5)


def line_of(f: Callable[..., Any], text: str) -> str:
    """The file and the line of a function that contains a text, as an error names it."""
    lines, first = traceback.linecache.getlines(__file__), f.__code__.co_firstlineno
    number = next(n for n in range(first, first + 20) if text in lines[n - 1])
    return f"{__file__}:{number} in {f.__name__}"


def check(graph: torch.fx.GraphModule, f: Callable[..., Any], **more: Any) -> None:
    """Compare a graph with eager, and what both do to their argument."""
    for x in (X, -X, X + 5):
        ours, theirs = x.clone(), x.clone()
        torch.testing.assert_close(graph(ours, **more), f(theirs, **more), rtol=0, atol=0)
        torch.testing.assert_close(ours, theirs)


CAPTURED = [data_dependent_if, makes_a_bool, writes_to_its_input]


@WITH_AND_WITHOUT
@pytest.mark.parametrize("f", CAPTURED, ids=lambda f: f.__name__)
def test_captured(f: Callable[..., Any], known: bool) -> None:
    check(calque.trace(f, X.clone()) if known else calque.symbolic_trace(f), f)


@pytest.mark.parametrize(
    "f", [iterates, asks_for_length, zeros_from_shape], ids=lambda f: f.__name__
)
def test_captured_with_examples(f: Callable[..., Any]) -> None:
    check(calque.trace(f, X), f)


def test_captured_keywords() -> None:
    scales = {"a": torch.ones(3), "b": torch.tensor(2.0)}
    check(calque.trace(takes_keywords, X, **scales), takes_keywords, **scales)


# function, text of the line, named operation, remedy
EXPLAINED = [
    (iterates, "for row", "the argument x is iterated", "Pass example inputs"),
    (asks_for_length, "len(x)", "the argument x is passed to len()", "x.shape[0]"),
    (makes_an_int, "* int(", "the result of sum (float32[]), made at line", "Keep it a tensor"),
    (prints, "print(", "the result of sum (float32[]), made at line", "Print its shape"),
    (calls_numpy, "np.sin", "the argument x (float32[2, 3]) is passed to numpy", "torch function"),
    (
        remembers,
        "SEEN.append",
        "SEEN is assigned a value from the traced program",
        "Return the value",
    ),
]


@pytest.mark.parametrize(("f", "text", "what", "remedy"), EXPLAINED, ids=lambda v: str(v)[:20])
def test_explained(f: Callable[..., Any], text: str, what: str, remedy: str) -> None:
    examples = (X,) if "float32" in what or f is remembers else ()
    with pytest.raises(TraceError) as caught:
        calque.trace(f, *examples)
    message = str(caught.value)
    assert message.startswith(line_of(f, text))
    assert what in message
    assert remedy in message
    assert len(message.splitlines()) <= 12
    assert len(traceback.format_exception(caught.value)) <= 12


def test_a_size_that_pytorch_cannot_take_without_examples_is_explained() -> None:
    with pytest.raises(TraceError) as caught:
        calque.symbolic_trace(zeros_from_shape)
    shown = "".join(traceback.format_exception(caught.value))
    assert "torch.zeros(x.shape[0], 2)" in shown
    assert "calque.trace(f, x)" in shown


def test_what_a_failed_trace_has_put_somewhere_is_taken_back() -> None:
    with pytest.raises(TraceError):
        calque.trace(remembers, X)
    assert SEEN == []


def test_an_error_three_modules_deep_shows_the_line_and_the_module() -> None:
    with pytest.raises(RuntimeError) as caught:
        calque.trace(Deep(), X)
    note, layer = caught.value.__notes__
    place = line_of(Deep.forward, "x @ torch.ones")
    assert f"while tracing {place} (inner.inner.inner): return x @ torch.ones(5, 5)" in note
    assert layer == "in layer inner.inner.inner of Deep: Deep"
    shown = "".join(traceback.format_exception(caught.value))
    assert "site-packages" not in shown
    assert shown.count("src/calque") <= 1
    with pytest.raises(RuntimeError) as eager:
        Deep()(X)
    assert "5x5" in str(eager.value)
    assert "[2, 3]" in str(caught.value) or "2x3" in str(caught.value)


@pytest.mark.parametrize(("setting", "full"), [("", False), ("full", True)])
def test_the_full_traceback_is_shown_on_demand(
    setting: str, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALQUE_TRACEBACK", setting)
    with pytest.raises(TraceError) as caught:
        calque.trace(makes_an_int, X)
    shown = "".join(traceback.format_exception(caught.value))
    assert ("symbolic_tracer.py" in shown) == full
    assert (len(shown.splitlines()) <= 12) == (not full)
    assert "Keep it a tensor" in shown
    assert ("calque/tracing" in shown) == full


class Remembering(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.history: list[Any] = []
        self.counts = {"calls": 0}
        self.cache: dict[str, Any] = {}
        self.names: set[str] = set()

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        if what == "list":
            self.history.append(x.sum())
        elif what == "number":
            self.counts["calls"] += 1
        elif what == "dictionary":
            self.cache["last"] = x
        elif what == "key":
            self.counts.pop("calls")
        elif what == "constant cache":
            self.names.add("x")
            self.cache.setdefault("scale", 3)
        return x + 1


@pytest.mark.parametrize(
    ("what", "text", "message"),
    [
        ("list", "history.append", "self.history is assigned a value from the traced program"),
        ("number", "+= 1", "self.counts['calls'] changes from 0 to 1"),
        (
            "dictionary",
            'cache["last"]',
            "cache['last'] is assigned a value from the traced program",
        ),
        ("key", "counts.pop", "self.counts['calls'] is deleted"),
    ],
)
def test_what_a_module_remembers_is_refused_and_taken_back(
    what: str, text: str, message: str
) -> None:
    model = Remembering()
    with pytest.raises(TraceError) as caught:
        calque.trace(model, X, what)
    assert message in str(caught.value)
    assert (model.history, model.counts, model.cache) == ([], {"calls": 0}, {})


def test_a_cache_of_constants_is_let_be() -> None:
    model = Remembering()
    torch.testing.assert_close(calque.trace(model, X, "constant cache")(X, "constant cache"), X + 1)
    assert model.cache == {"scale": 3}


def test_a_count_outside_is_refused() -> None:
    count = 0

    def f(x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return x

    with pytest.raises(TraceError, match="count changes from 0 to 1"):
        calque.trace(f, X)


def test_changes_of_the_arguments_are_in_the_graph_on_each_way() -> None:
    def f(d: dict[str, torch.Tensor], items: list[torch.Tensor]) -> torch.Tensor:
        d["h"] = d["x"] + 1
        if d["x"].sum() > 0:
            items.append(d["h"])
        else:
            del d["y"]
        return d["h"]

    graph = calque.trace(f, {"x": X, "y": X}, [X])
    for x in (X + 5, X - 5):
        ours, theirs = ({"x": x, "y": x}, [x]), ({"x": x, "y": x}, [x])
        torch.testing.assert_close(graph(*ours), f(*theirs))
        torch.testing.assert_close(ours, theirs)


def test_an_error_that_holds_a_value_of_the_trace_can_be_shown_and_says_what_helps() -> None:
    recipes = {2: "rows", 3: "images"}

    def looks_up(x: torch.Tensor) -> torch.Tensor:
        return x if recipes[x.ndim] == "rows" else x + 1

    with pytest.raises(KeyError) as caught:
        calque.trace(looks_up)
    assert "ndim" in str(caught.value) or "getattr" in str(caught.value)
    assert f"{caught.value.args[0]}" == repr(caught.value.args[0])
    assert "calque.trace(f, x)" in caught.value.__notes__[0]
    assert torch.equal(calque.trace(looks_up, X)(X), X)


def test_messages_do_not_print_large_tensors() -> None:
    class Replaces(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(40, 40))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = self.mean * 0.9 + x
            return self.mean

    with pytest.raises(TraceError) as caught:
        calque.record(Replaces(), torch.ones(40, 40)).graph()
    assert "self.mean changes from a tensor of float32[40, 40] to another one" in str(caught.value)


def test_a_tensor_of_a_function_transform_is_refused() -> None:
    weights = torch.ones(3, 2)

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(lambda w: w * x)(weights)

    with pytest.raises(TraceError, match="torch.vmap or torch.func, which a graph cannot keep"):
        calque.trace(program, torch.ones(2))
    assert torch.equal(calque.record(program, torch.ones(2)).graph()(weights[0]), weights)
