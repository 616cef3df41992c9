"""Activations, their gradients, and edits: what is asked of a run beside its graph."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calque


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).chunk(3, -1)
        pattern = F.softmax(q @ k.transpose(-1, -2), -1)
        return self.out(pattern @ v), pattern


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn, self.mlp, self.drop = Attention(width), nn.Linear(width, width), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)[0]
        return self.drop(x) + F.relu(self.mlp(x), inplace=True)


class Model(nn.Module):
    def __init__(self, layers: int = 3, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def inputs() -> Tensor:
    return torch.randn(5, 4)


def hooked(model: nn.Module, path: str, seen: dict[str, Any]) -> Any:
    """PyTorch's own way to the same."""

    def see(module: Any, args: Any, result: Any) -> None:
        tensors = result if isinstance(result, tuple) else (result,)
        seen[path] = [t.detach().clone() for t in tensors]
        for i, tensor in enumerate(tensors):
            tensor.register_hook(lambda g, i=i: seen.__setitem__(f"{path}.grad{i}", g.clone()))

    return model.get_submodule(path).register_forward_hook(see)


def test_what_modules_give_and_its_gradients_are_those_of_hooks() -> None:
    model, x = Model(), inputs()
    twin = copy.deepcopy(model)
    recording = calque.record(model, x, keep=["layers.*.attn", "layers.*.mlp", "head"])
    seen: dict[str, Any] = {}
    for path in recording.kept:
        hooked(twin, path, seen)
    expected = twin(x)
    assert torch.equal(recording.result, expected)
    assert recording.gradients["layers.1.mlp"] == [None]
    (recording.result**2).sum().backward()
    (expected**2).sum().backward()
    assert list(recording.kept) == [
        *(f"layers.{i}.{name}" for i in range(3) for name in ("attn", "mlp")),
        "head",
    ]
    for path, (kept,) in recording.kept.items():
        values = kept if isinstance(kept, tuple) else (kept,)
        (gradients,) = recording.gradients[path]
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        for i, (value, gradient) in enumerate(zip(values, gradients, strict=True)):
            assert torch.equal(value, seen[path][i])
            other = seen.get(f"{path}.grad{i}")
            assert other is None if gradient is None else torch.equal(gradient, other)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)  # type: ignore[arg-type]


def test_what_is_kept_is_what_was_given_though_it_is_written_to_later() -> None:
    model, x = Model(1), inputs()
    recording = calque.record(model, x, keep="layers.0.mlp")
    (given,) = recording.kept["layers.0.mlp"]
    assert (given < 0).any()  # `relu_` has since written to it


def test_functions_are_kept_by_the_module_that_calls_them() -> None:
    model, x = Model(2), inputs()
    recording = calque.record(model, x, keep="layers.*.attn:softmax")
    assert list(recording.kept) == ["layers.0.attn:softmax", "layers.1.attn:softmax"]
    for (pattern,) in recording.kept.values():
        torch.testing.assert_close(pattern.sum(-1), torch.ones(5))
    recording.result.sum().backward()
    assert recording.gradients["layers.0.attn:softmax"][0].shape == (5, 5)


def test_gradients_of_two_backward_calls_add_up() -> None:
    model, x = Model(1), inputs()
    recording = calque.record(model, x, keep="head")
    recording.result.sum().backward(retain_graph=True)
    recording.result.sum().backward()
    assert torch.equal(recording.gradients["head"][0], torch.full((5, 2), 2.0))


def test_gradients_flow_through_what_is_kept() -> None:
    model, x = Model(1), inputs()
    (given,) = calque.record(model, x, keep="layers.0.attn:softmax").kept["layers.0.attn:softmax"]
    given[:, 0].sum().backward()
    assert model.layers[0].get_parameter("attn.qkv.weight").grad is not None


@pytest.mark.usefixtures("few_objects")
def test_nothing_else_is_kept() -> None:
    model, x = Model(3), inputs()
    alive: list[weakref.ref[Tensor]] = []
    model.layers[1].register_forward_hook(lambda *args: alive.append(weakref.ref(args[2])))
    with torch.no_grad():
        recording = calque.record(model, x, keep="layers.0.mlp")
    gc.collect()
    assert list(recording.kept) == ["layers.0.mlp"]
    assert alive[0]() is None


def test_what_is_kept_is_no_call_of_the_program() -> None:
    model, x = Model(), inputs()
    plain = calque.record(model, x)
    kept = calque.record(model, x, keep=["*", "*:softmax"])
    assert kept.graph().code == plain.graph().code
    assert kept.operator_counts == plain.operator_counts


@pytest.mark.parametrize("keep", ["layer.*.attn", "layers.9.mlp", "layers.*.attn:soft"])
def test_a_pattern_that_matches_nothing_names_the_nearest(keep: str) -> None:
    with pytest.raises(ValueError, match=r"no (module|call) .*\n.*closest are .*layers\.0\."):
        calque.record(Model(), inputs(), keep=keep)
    with pytest.raises(ValueError, match="closest"):
        calque.record(Model(), inputs(), edits={keep: lambda v: v})
    with pytest.raises(ValueError, match="closest"):
        calque.record(Model(), inputs()).graph(edits={keep: lambda v: v})


def test_a_function_has_no_modules() -> None:
    model = Model()
    with pytest.raises(ValueError, match="but this is a function"):
        calque.record(lambda x: model(x), inputs(), keep="layers.0")


def test_a_module_that_is_not_called_is_named_after_the_run() -> None:
    model = Model()
    model.register_module("unused", nn.Linear(1, 1))
    with pytest.raises(ValueError, match=r"'unused': no call of the run"):
        calque.record(model, inputs(), keep="unused")


def _halve(v: Tensor) -> None:
    v *= 0.5


EDITS: dict[str, Any] = {
    "ablated": lambda v: v * 0,
    "scaled": lambda v: v * 3,
    "replaced": torch.ones_like,
    "in place": _halve,
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("path", ["layers.1.mlp", "layers.*.mlp", "layers.0", "head"])
def test_edits_do_what_forward_hooks_do(path: str, edit: str) -> None:
    model = Model()
    twin = copy.deepcopy(model)
    paths = [path.replace("*", str(i)) for i in range(3)] if "*" in path else [path]
    for each in paths:
        module = twin.get_submodule(each)
        module.register_forward_hook(lambda module, args, result: EDITS[edit](result))
    x, other = inputs(), inputs()
    edited = calque.record(model, x, edits={path: EDITS[edit]})
    assert torch.equal(edited.result, twin(x))
    plain = calque.record(model, x)
    assert torch.equal(plain.graph()(other), model(other))
    for level in ("function", "module", "aten"):
        torch.testing.assert_close(edited.graph(level)(other), twin(other))
        torch.testing.assert_close(
            plain.graph(level, edits={path: EDITS[edit]})(other), twin(other)
        )


def test_attention_patterns_are_edited() -> None:
    model, x = Model(1), inputs()
    edits = {"layers.0.attn:softmax": lambda pattern: torch.eye(5)}
    graph = calque.record(model, x).graph(edits=edits)
    attention: Any = model.layers[0].attn
    v = attention.qkv(x).chunk(3, -1)[2]
    after = x + attention.out(v)
    expected = model.head(after + F.relu(model.layers[0].mlp(after)))  # type: ignore[operator]
    torch.testing.assert_close(graph(x), expected)
    torch.testing.assert_close(calque.record(model, x, edits=edits).result, expected)


def test_an_edited_graph_is_one_program_of_xla() -> None:
    model, x = Model(1), inputs()
    graph = calque.record(model, x).graph("aten", edits={"layers.0.mlp": lambda v: v * 0})
    expected = graph(x)
    found = calque.jit(graph.to("jax"))(x.to("jax"))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_a_module_that_gives_back_its_input_is_edited_in_the_run_only() -> None:
    model, x = Model(1), inputs()
    with pytest.raises(calque.TraceError, match="returns a tensor that it was passed"):
        calque.record(model, x).graph(edits={"layers.0.drop": lambda v: v * 0})
    twin = copy.deepcopy(model)
    twin.layers[0].drop.register_forward_hook(lambda module, args, result: result * 0)  # type: ignore[union-attr]
    recording = calque.record(model, x, edits={"layers.0.drop": lambda v: v * 0})
    assert torch.equal(recording.result, twin(x))
    other = inputs()
    assert torch.equal(recording.graph()(other), twin(other))


def test_an_edit_gives_what_has_the_same_looks() -> None:
    model, x = Model(1), inputs()
    for edit in (lambda v: v[:1], lambda v: v.double(), lambda v: (v, v)):
        with pytest.raises(ValueError, match=r"the edit of head returned"):
            calque.record(model, x, edits={"head": edit})
        with pytest.raises(ValueError, match=r"the edit of head returned"):
            calque.record(model, x).graph(edits={"head": edit})(x)
    with pytest.raises(TypeError, match="must be a function"):
        calque.record(model, x, edits={"head": 0})  # type: ignore[dict-item]


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.GELU(), nn.Linear(4, 4)))
        self.attn = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + self.attn(x, x, x)[0]


PATTERNS = ["layers.1.0:gelu", "layers.1.0", "attn:multi_head_attention_forward", "layers.1"]


def doubled(value: Any) -> Any:
    return value * 2 if isinstance(value, Tensor) else (value[0] * 2, *value[1:])


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("leaf", [None, lambda module, path: path in ("layers", "attn")])
def test_an_edit_opens_the_layer_that_it_is_in(pattern: str, leaf: Any) -> None:
    model, x, other = Inner(), torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    edits = {pattern: doubled}
    plain = calque.record(model, x)
    options: dict[str, Any] = {"level": "module", "leaf": leaf}
    later = plain.graph(edits=edits, **options)
    now = calque.record(model, x, edits=edits)
    assert not torch.allclose(now.result, plain.result)
    expected = calque.record(model, other, edits=edits).result
    torch.testing.assert_close(later(other), expected)
    torch.testing.assert_close(now.graph(**options)(other), expected)
    assert later.graph.find_nodes(op="call_module", target="layers.0") or leaf is not None


def test_a_pattern_that_is_no_text_is_told() -> None:
    with pytest.raises(TypeError, match=r"'layers\.\*', not 0"):
        calque.record(torch.nn.Sequential(torch.nn.ReLU()), torch.ones(2), keep=[0])  # pyright: ignore[reportArgumentType]
