"""Lowered graphs have the gradients of the program: none where autograd sees nothing."""

import copy
from typing import Any

import jax
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calque
from calque.convert import Converters
from calque.graph import JaxInterpreter


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
    model(x)  # the first call initializes its vectors
    if tracer == "trace":
        graph = calque.lower(calque.trace(model, x))
    else:
        graph = calque.record(model, x).graph("aten")
    with torch.no_grad():  # the run must not leave a grad_fn on buffers
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


class Switches(nn.Module):
    """Uses its statistics, and then replaces them, before any gradient is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.cell = nn.BatchNorm1d(3), nn.GRUCell(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.norm.eval()
        a = self.norm(x)
        self.norm.train()
        return a * self.norm(self.cell(x * 2) + 1)


def test_statistics_that_are_used_and_then_replaced() -> None:
    torch.manual_seed(0)
    model = Switches()
    twin = copy.deepcopy(model)
    graph = calque.record(model, torch.ones(4, 3)).graph("aten")
    twin(torch.ones(4, 3))
    given = torch.randn(4, 3)
    for _ in range(2):
        found, expected = (
            torch.autograd.grad(each(x).square().sum(), [x, *owner.parameters()])
            for each, owner in ((graph, model), (twin, twin))
            for x in [given.clone().requires_grad_()]
        )
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()))
    array = JaxInterpreter(graph)(given.numpy())
    torch.testing.assert_close(torch.tensor(array.tolist()), twin(given).detach())


def into_a_buffer(x: Tensor) -> Any:
    y, z = torch.zeros(5, 3), torch.empty(3, 4).t()
    y[:4] = x
    y[4] = x[0, 0]
    z.copy_(x[1])
    return y * y, z * z, torch.zeros(4, 3, dtype=torch.float64).copy_(x).sin()


def into_its_input(x: Tensor) -> Any:
    x += 1
    x[0] = 0
    return x, x.t() * x.detach().sum().item()


def in_turn(x: Tensor) -> Any:
    with torch.no_grad():
        parts = [x * 1, x + 1]
        torch._foreach_add_(parts, parts[::-1])
    return parts[0] * x, parts[1] * x


@pytest.mark.parametrize("program", [into_a_buffer, into_its_input, in_turn])
def test_gradients_of_what_is_written_among_operators(program: Any) -> None:
    leaf = torch.arange(12.0).view(4, 3).requires_grad_()
    graph = calque.record(program, leaf * 1).graph("aten")
    found, expected = program_and_gradient(graph, leaf), program_and_gradient(program, leaf)
    torch.testing.assert_close(found, expected)
    assert [part.stride() for part in found[0]] == [part.stride() for part in expected[0]]


def test_gradients_of_what_is_read_and_written_in_a_list_are_refused() -> None:
    def program(x: Tensor) -> Any:
        parts = [x * 1, x + 1]
        torch._foreach_add_(parts, parts[::-1])
        return parts

    with pytest.raises(calque.TraceError, match="_foreach_add_ reads one tensor and writes"):
        calque.record(program, torch.ones(2, requires_grad=True)).graph("aten")
    found = calque.record(program, torch.ones(2)).graph("aten")(torch.arange(2.0))
    torch.testing.assert_close(found, program(torch.arange(2.0)))


def program_and_gradient(program: Any, leaf: Tensor) -> Any:
    found = program(leaf * 1)
    return found, torch.autograd.grad([part.sum() for part in found], leaf)


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (lambda y: torch._foreach_mul_([y, y * 2], 2.0), "_foreach_mul_"),
        (lambda y: torch.mul(y, 2, out=y), "mul"),
    ],
)
def test_a_write_to_another_argument_that_autograd_does_not_see_is_refused(
    write: Any, name: str
) -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 1
        with torch.no_grad():
            write(y)
        return y * y

    with pytest.raises(calque.TraceError, match=f"{name} writes to a tensor where autograd"):
        calque.record(program, torch.ones(2, requires_grad=True)).graph("aten")


def test_a_backward_inside_is_named() -> None:
    def program(x: Tensor) -> Any:
        torch.autograd.backward((x**3).sum())

    graph = calque.record(program, torch.ones(2, requires_grad=True)).graph()
    with pytest.raises(calque.TraceError, match="autograd.backward computes gradients"):
        calque.lower(graph)


@pytest.mark.parametrize("tracer", [calque.trace, calque.record])
def test_a_write_to_a_parameter_that_is_read_again_is_refused(tracer: Any) -> None:
    weight = nn.Parameter(torch.ones(2))

    def program(x: Tensor) -> Tensor:
        weight.data.copy_(x)
        return x * weight

    traced: Any = tracer(program, torch.ones(2))
    with pytest.raises(calque.TraceError, match="copy_ writes to a tensor where autograd"):
        calque.lower(traced) if tracer is calque.trace else traced.graph("aten")


def test_a_lowered_graph_checks_gradients_if_the_program_hides_writes_from_autograd() -> None:
    def writes(x: Tensor) -> Tensor:
        y = x * 2
        with torch.no_grad():
            y.clamp_(0, 1)
        return y * x

    def asks(x: Tensor) -> Tensor:
        y = x * 2
        return y.sin() if not y.requires_grad else y

    def sees(x: Tensor) -> Tensor:
        y = (x * 2).add_(1)
        with torch.no_grad():
            (y * 3).add_(1)
        return y * x

    x, given = torch.ones(2), torch.ones(2, requires_grad=True)
    graphs = {writes: calque.trace(writes, x), asks: calque.record(asks, x).graph()}
    for program, made in graphs.items():
        lowered = calque.lower(made)
        torch.testing.assert_close(lowered(x), program(x))
        with pytest.raises(calque.TraceError, match="called with True, and the program reads it"):
            lowered(given)
    hidden, seen = calque.lower(calque.trace(writes, x)), calque.lower(calque.trace(sees, x))
    with torch.no_grad():
        hidden(given)
    assert seen(given).requires_grad
    gradient = jax.grad(lambda x: JaxInterpreter(hidden)(x).sum())(jax.numpy.ones(2))
    assert gradient.shape == (2,)


def of_complex_parts(x: Tensor) -> Any:
    spectrum = torch.fft.rfft(x)
    kept = torch.zeros_like(spectrum)
    kept[..., :3] = spectrum[..., :3]
    kept[0, 1] = 2 + 1j
    kept.select(-1, 2).mul_(1j)
    kept.narrow(-1, 0, 1).add_(spectrum[:, 1:2].conj())
    kept.t()[3] = spectrum[:, 0]
    kept[1, 4:].zero_()
    return torch.fft.irfft(kept, n=x.shape[-1]), kept.unbind(-1)[3], kept.split(2, 1)[0]


def test_parts_of_complex_tensors_with_a_gradient_are_written_to() -> None:
    x = torch.randn(2, 8, requires_grad=True)
    recorded = calque.record(of_complex_parts, x).graph("aten")
    for lowered in (calque.lower(calque.trace(of_complex_parts, x)), recorded):
        other = torch.randn(2, 8, requires_grad=True)
        found, expected = lowered(other), of_complex_parts(other)
        torch.testing.assert_close(found, expected)
        a, b = (
            torch.autograd.grad(torch.stack([part.abs().sum() for part in parts]).sum(), other)
            for parts in (found, expected)
        )
        torch.testing.assert_close(a, b)


def test_a_write_into_the_conjugate_of_a_complex_tensor_is_refused_with_the_way_out() -> None:
    def program(x: Tensor) -> Tensor:
        turned = torch.fft.rfft(x)
        turned.conj()[0] = 1j
        return turned

    x = torch.randn(2, 8, requires_grad=True)
    with pytest.raises(calque.TraceError, match="into a part of a complex tensor") as caught:
        calque.lower(calque.trace(program, x))
    assert "torch.cat" in str(caught.value)
    with torch.no_grad():
        torch.testing.assert_close(calque.lower(calque.trace(program, x))(x), program(x))


def test_parts_with_a_gradient_may_be_filled_at_random() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        y[0].normal_()
        y[1].bernoulli_(0.5)
        return y * x

    x = torch.randn(3, 2, requires_grad=True)
    lowered = calque.lower(calque.trace(program, x))
    found = []
    for each in (lowered, program):
        torch.manual_seed(0)
        result = each(x)
        found.append((result, *torch.autograd.grad(result.sum(), x)))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("functional", [True, False])
def test_a_write_to_a_parameter_is_refused_while_gradients_are_recorded(functional: bool) -> None:
    class Decays(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.mul_(0.5)
            return x * 2

    x = torch.ones(3)
    model, twin = Decays(), Decays()
    with pytest.raises(calque.TraceError, match=r"writes to a parameter.*\n.*torch\.no_grad"):
        calque.lower(calque.trace(model, x), functional=functional)
    with torch.no_grad():
        lowered = calque.lower(calque.trace(model, x), functional=functional)
        assert torch.equal(lowered(x), twin(x))
        assert torch.equal(model.weight, twin.weight)


def test_a_write_to_the_data_of_a_parameter_is_kept_among_the_operators() -> None:
    class Decays(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            self.weight.data.mul_(0.5)
            return x * 2

    model = Decays()
    lowered = calque.lower(calque.trace(model, torch.ones(3)), functional=False)
    lowered(torch.ones(3))
    assert model.weight.tolist() == [0.5] * 3


def test_a_write_to_a_part_of_a_parameter_within_no_grad_is_traced() -> None:
    class Decays(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight[0] *= 0.5
                self.weight[1:] *= x[1:]
            return x * 2

    model, twin = Decays(), Decays()
    graph = calque.trace(model, torch.ones(3))
    for x in (torch.ones(3), torch.arange(3.0)):
        assert torch.equal(graph(x), twin(x))
        assert torch.equal(model.weight, twin.weight)


def draws_around_a_part_of_the_graph(x: Tensor) -> Tensor:
    return torch.normal(x.detach(), torch.ones(3)) + torch.bernoulli(x.detach().sigmoid()) + x


def test_random_functions_write_to_none_of_their_arguments() -> None:
    x = torch.ones(3, requires_grad=True)
    lowered = calque.lower(calque.trace(draws_around_a_part_of_the_graph, x))
    (gradient,) = torch.autograd.grad(lowered(x).sum(), x)
    assert gradient.tolist() == [1, 1, 1]
