"""Operators without a form of their own in ONNX are opened into others, and checks settled."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calque
from calque.convert import ConversionError, to_onnx
from tests.convert.test_onnx import agree, run

Encoder = nn.TransformerEncoder


def encoder(**options: bool | str) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)  # pyright: ignore[reportArgumentType]
    return Encoder(layer, 2, enable_nested_tensor=False).eval()


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}])
def test_the_fused_encoder_layer_agrees(options: dict) -> None:
    with torch.no_grad():
        agree(encoder(**options), torch.randn(2, 4, 8))


def test_the_fused_encoder_layer_agrees_under_masks() -> None:
    model = encoder()
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    hidden = torch.tensor([[False, False, True, True], [False, False, False, True]])

    def program(x: Tensor) -> tuple[Tensor, ...]:
        return model(x, mask=causal, is_causal=True), model(x, src_key_padding_mask=hidden)

    with torch.no_grad():
        agree(program, torch.randn(2, 4, 8))


def test_a_check_of_constants_is_settled() -> None:
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()

    def program(x: Tensor, y: Tensor) -> Tensor:
        return model(x, y, tgt_mask=nn.Transformer.generate_square_subsequent_mask(3))

    agree(program, torch.randn(2, 4, 8), torch.randn(2, 3, 8))


class Switched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.switch = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.switch > 0 else x


def test_a_check_of_constants_that_fails_by_now_raises() -> None:
    model = Switched()
    recording = calque.record(model, torch.ones(2))
    to_onnx(recording)
    model.switch.fill_(-1)
    with pytest.raises(calque.TraceError, match="gives False now"):
        to_onnx(recording)


def test_a_check_of_inputs_is_refused() -> None:
    with pytest.raises(ConversionError, match="bool"):
        to_onnx(calque.record(lambda x: x * 2 if x.sum() > 0 else x, torch.ones(2)))


def test_what_is_opened_in_part_only_is_listed_as_the_program_has_it() -> None:
    with pytest.raises(ConversionError, match=r"aten\.special_log_ndtr\.default"):
        to_onnx(calque.record(torch.special.log_ndtr, torch.full((3,), 4.0)))


def test_named_results_and_results_in_objects() -> None:
    agree(lambda x: tuple(x.sort(-1)), torch.randn(3, 4))
    agree(lambda x: F.adaptive_max_pool2d(x, 1), torch.randn(1, 2, 4, 5))
    x = torch.randn(3, 4)
    found = run(to_onnx(calque.record(lambda x: x.sort(-1), x)), x)
    assert [part.tolist() for part in found] == [part.tolist() for part in x.sort(-1)]


def test_a_result_laid_out_in_memory_as_its_input_is() -> None:
    agree(lambda x: F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), 1), torch.randn(2, 4, 4, 3))
    agree(lambda x: x.as_strided((2, 2), (1, 2)) * 2, torch.randn(4))
