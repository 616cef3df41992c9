"""ONNX models compute what they were made from, as ONNX Runtime runs them."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calque
from calque.convert import ConversionError, to_onnx
from tests.convert.models import MODELS, others

pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


def run(model: Any, *args: Tensor) -> list[np.ndarray]:
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_inputs()]
    return session.run(None, {n: a.numpy() for n, a in zip(names, args, strict=True)})


def agree(program: Any, *args: Tensor) -> None:
    model = to_onnx(calque.record(program, *args))
    other = others(args)
    expected = jax.tree.leaves(jax.tree.map(lambda t: t.detach().numpy(), program(*other)))
    for found, want in zip(run(model, *other), expected, strict=True):
        assert found.dtype == want.dtype
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_models_agree(name: str) -> None:
    model, args = MODELS[name]()
    agree(model, *args)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.up = nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.encoder(x)
        return y, self.up(y.unflatten(1, (2, 2)).contiguous())


def test_layers_of_pytorch_agree() -> None:
    torch.manual_seed(0)
    agree(_without_dropout(Encoder()), torch.randn(2, 4, 8))


def _without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x > 0.5) & (x != 1.0),
        lambda x: x.view(3, 2, 2).permute(2, 0, 1)[1, :, 1:],
        lambda x: torch.stack([x, x * 2]).amax(0, keepdim=True) - x.sum(),
        lambda x: F.layer_norm(x, (4,)),
        lambda x: x.abs().rsqrt() + torch.arange(4) * 2,
        lambda x: torch.cat([*x.split(2, dim=1), x[:, :1]], dim=1).to(torch.float64),
        lambda x: F.hardtanh(x) + F.log_softmax(x, -1).clamp(min=-2),
        lambda x: F.leaky_relu(x, 0.2) + F.leaky_relu(x),
        lambda x: (x * x).mean(1, keepdim=True).expand(3, 4) / (x.exp() + 1),
        lambda x: ~((x > 0) | (x < -1)),
        lambda x: x,
    ],
)
def test_operators_agree(program: Any) -> None:
    agree(program, torch.randn(3, 4))


def test_what_has_no_form_is_listed_with_its_lines() -> None:
    listed = r"aten\.special_bessel_j0\.default(.|\n)*test_onnx\.py:"
    with pytest.raises(ConversionError, match=listed) as e:
        to_onnx(calque.record(lambda x: torch.special.bessel_j0(x) + x.igamma(x), torch.ones(2)))
    assert "aten.igamma.default" in str(e.value)


def test_a_form_that_depends_on_arguments_is_refused_with_the_reason() -> None:
    flags = torch.tensor([True, False])
    with pytest.raises(ConversionError, match="a scatter that adds booleans"):
        to_onnx(calque.record(lambda x: x.scatter_add(0, torch.tensor([0, 0]), x), flags))


class NamedAlike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.full((3,), 5.0))
        self.mul = nn.Parameter(torch.full((3,), 7.0))
        self.output_0 = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.x * self.mul + self.output_0


def test_parameters_with_the_names_of_inputs_operators_and_outputs() -> None:
    agree(NamedAlike(), torch.randn(3))


def test_numbers_are_compared_in_the_dtype_of_pytorch() -> None:
    whole = torch.tensor([[1, 2, 3], [-1, 0, 2]])
    agree(lambda x: (x != 1.5, x == 1.5, x > 0.5, x != x + 0.5), whole)
    agree(lambda x: ((x > 0) == 2, (x > 0) > 0, (x > 0) != 1), whole)


def test_bounds_of_clamp_are_tensors_numbers_or_the_wrong_way_round() -> None:
    x = torch.randn(2, 3)
    agree(lambda x: (x.clamp(torch.zeros(3), torch.ones(3)), x.clamp(2, 1), x.clamp(max=0)), x)
    agree(lambda x: x.clamp(min=0.5), torch.tensor([0, 1, 2]))


def test_attention_where_a_query_may_look_at_nothing() -> None:
    allowed = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        masked = F.scaled_dot_product_attention(x, x + 1, x * 2, attn_mask=allowed)
        return masked, F.scaled_dot_product_attention(x, x, x, scale=0.0)

    agree(program, torch.randn(1, 2, 3, 8))


def test_what_onnx_has_no_form_of_is_a_conversion_error() -> None:
    with pytest.raises(ConversionError):
        to_onnx(calque.record(lambda x: x.view(torch.int32), torch.randn(1, 1, 9, 9)))


@dataclasses.dataclass
class Answer:
    y: Any


def test_no_result_is_left_out() -> None:
    recording = calque.record(lambda x: {"a": Answer([x + 1]), "b": x * 2}, torch.ones(2))
    assert len(calque.convert.to_onnx(recording).graph.output) == 2
    layer = torch.nn.Linear(2, 2)
    with pytest.raises(calque.convert.ConversionError, match="which it does not compute"):
        calque.convert.to_onnx(calque.record(lambda x: (layer(x), layer.weight), torch.ones(2)))


class Hostile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ('a,b"c', "e\nf", '"), print("no'):
            self._modules[name] = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self._modules.values():
            x = layer(x)  # pyright: ignore[reportOptionalCall]
        return x if all(bool(torch.isfinite(part).all()) for part in self.parameters()) else -x


def test_names_of_a_model_are_no_code() -> None:
    agree(Hostile(), torch.randn(2, 3))
