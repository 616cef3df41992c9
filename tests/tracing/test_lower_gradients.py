"""Lowered graphs have the gradients of the program: none where autograd sees nothing."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calque
from calque.convert import Converters


class Averages(nn.Module):
    """Keeps averages of a parameter, and a layer with a block of its own without gradients."""

    average: Tensor
    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
        for name in ("average", "last"):
            self.register_buffer(name, torch.zeros(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        weight: Any = self.layer.parametrizations.weight.original  # pyright: ignore[reportAttributeAccessIssue]
        with torch.no_grad():
            self.average.lerp_(weight, 0.1)
            torch.mul(weight, 2, out=self.last)
        return self.layer(x.data * x) * x @ (self.average + self.last + weight)


@pytest.mark.parametrize("tracer", ["trace", "record"])
def test_what_autograd_does_not_see_has_no_gradient(tracer: str) -> None:
    torch.manual_seed(0)
    model, x = Averages(), torch.randn(2, 3, requires_grad=True)
    model(x)  # the first call finds its vectors
    if tracer == "trace":
        graph = calque.lower(calque.trace(model, x))
    else:
        graph = calque.record(model, x).graph("aten")
    with torch.no_grad():  # the run has left a history in no buffer
        twin = copy.deepcopy(model)
    for _ in range(2):
        inputs = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)
        found, expected = (
            torch.autograd.grad(each(given).sum(), [given, *model_of.parameters()])
            for each, given, model_of in zip((graph, twin), inputs, (model, twin))
        )
        torch.testing.assert_close(found, expected)
    assert not any(buffer.requires_grad for buffer in model.buffers())


def test_data_of_a_tensor_is_detached_for_converters() -> None:
    converters = Converters()
    converters.operator("aten.detach", "aten.mul")(lambda call: call.op)
    converted = converters.convert(calque.record(lambda x: x.data * x, torch.ones(2)))
    assert converted.nodes == ["aten.detach.default", "aten.mul.Tensor"]


class Renormalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.single, self.bag = nn.Embedding(5, 4, max_norm=1.0), nn.EmbeddingBag(5, 4, max_norm=1)

    def forward(self, indices: Tensor) -> Tensor:
        return self.single(indices) + self.bag(indices[None])


def test_weights_that_a_layer_writes_to_have_no_gradient_in_operators() -> None:
    model, indices = Renormalized(), torch.tensor([1, 2])
    twin, frozen = copy.deepcopy(model), copy.deepcopy(model).requires_grad_(False)
    with pytest.raises(calque.TraceError, match="embedding with max_norm writes to its") as caught:
        calque.lower(calque.trace(model, indices))
    assert "test_lower_gradients.py:" in caught.value.__notes__[0]
    weight = nn.Parameter(torch.ones(5, 4))
    with pytest.raises(calque.TraceError, match="embedding with max_norm writes to its"):
        calque.record(lambda i: F.embedding(i, weight * 2, None, 1.0), indices).graph("aten")
    expected = twin(indices)
    assert torch.equal(calque.lower(calque.trace(frozen, indices))(indices), expected)
    assert torch.equal(frozen.bag.weight, twin.bag.weight)
    with torch.no_grad():
        assert torch.equal(calque.lower(calque.trace(model, indices))(indices), expected)
    assert torch.equal(model.single.weight, twin.single.weight)


def test_a_shallow_copy_shares_memory_and_no_gradient() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        copy.copy(y).add_(1)
        return y

    graph = calque.lower(calque.trace(program, torch.ones(2)))
    assert graph(torch.ones(2)).tolist() == program(torch.ones(2)).tolist() == [3.0, 3.0]
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(calque.TraceError, match="autograd does not see it"):
        calque.lower(calque.trace(lambda x: program(x) * x, x))
    result = calque.lower(calque.trace(lambda x: copy.copy(x) * x, x))(x).sum()
    assert torch.autograd.grad(result, x)[0].tolist() == [1.0, 1.0]


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`")
@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("normalized", [nn.utils.spectral_norm, nn.utils.weight_norm])
def test_what_a_layer_assigns_is_assigned_by_its_operators(normalized: Any, within: bool) -> None:
    def made() -> tuple[Any, Any]:
        torch.manual_seed(0)
        layer = normalized(nn.Linear(4, 4))
        return (nn.Sequential(layer, nn.Tanh()) if within else layer), layer

    (model, layer), (twin, own) = made(), made()
    x = torch.randn(3, 4)
    before = layer.weight
    traced = calque.trace(model, x)
    graph = calque.lower(traced)
    assert layer.weight is before
    for each in (graph, traced):
        found, expected = each(x), twin(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(layer.weight, own.weight)
        assert layer.weight is not before
        gradients = [
            torch.autograd.grad(result.sum(), list(module.parameters()))
            for result, module in ((found, model), (expected, twin))
        ]
        torch.testing.assert_close(*gradients)
