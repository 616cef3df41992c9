"""Operators without a form of their own in ONNX are opened into others, and checks settled."""

from typing import Any

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
    assert torch.ops.aten.bernoulli.default in torch._decomp.decomposition_table
    with pytest.raises(ConversionError, match=r"aten\.bernoulli\.default"):
        to_onnx(calque.record(torch.bernoulli, torch.full((3,), 0.5)))


def test_named_results_and_results_in_objects() -> None:
    agree(lambda x: tuple(x.sort(-1)), torch.randn(3, 4))
    agree(lambda x: F.adaptive_max_pool2d(x, 1), torch.randn(1, 2, 4, 5))
    x = torch.randn(3, 4)
    found = run(to_onnx(calque.record(lambda x: x.sort(-1), x)), x)
    assert [part.tolist() for part in found] == [part.tolist() for part in x.sort(-1)]


def test_a_result_laid_out_in_memory_as_its_input_is() -> None:
    agree(lambda x: F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), 1), torch.randn(2, 4, 4, 3))
    agree(lambda x: x.as_strided((2, 2), (1, 2)) * 2, torch.randn(4))


@pytest.mark.parametrize(
    "convolution",
    [
        nn.Conv2d(3, 4, 3, padding="valid"),
        lambda x: torch.convolution(x, ONES, None, [2], [1], [1], False, [0], 1),
        lambda x: torch.convolution(x, ONES, None, [2], [1], [1], True, [1], 1),
    ],
)
def test_one_number_stands_for_all_dimensions_of_a_convolution(convolution: Any) -> None:
    agree(convolution, torch.randn(1, 3, 6, 6))


ONES = torch.ones(3, 3, 2, 2)


def solves(a: Tensor) -> tuple[Tensor, ...]:
    inverse, (sign, size) = torch.linalg.inv(a), torch.linalg.slogdet(a)
    left = torch.linalg.solve(a, a[..., 0]), torch.linalg.solve(a, a[:1, :2], left=False)
    return inverse, torch.det(a), sign, size, *left


def factors(a: Tensor) -> tuple[Tensor, ...]:
    a = a @ a.mT + torch.eye(3)
    lower = torch.linalg.cholesky(a)
    lines = torch.linalg.solve_triangular(a.triu(), a, upper=True, left=False)
    return lower, torch.cholesky_solve(a, lower), torch.cholesky_inverse(lower), lines


@pytest.mark.parametrize("program", [solves, factors])
def test_matrices_are_eliminated(program: Any) -> None:
    a = torch.tensor([[[0.0, 2, 1], [1, 1, 0], [3, 0, 1]], [[4, 1, 2], [1, 3, 1], [2, 1, 5]]])
    agree(program, a)
    agree(program, a.flip(1))


def test_a_singular_matrix_has_no_determinant() -> None:
    agree(torch.det, torch.ones(2, 3, 3))


def test_bessel_functions_agree_near_and_far() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        special = torch.special
        scaled = special.i0e(x), special.i1e(x), special.erfcx(x / 10), special.ndtri(x / 60 + 0.5)
        return *scaled, special.i0(x), special.i1(x), torch.polygamma(1, x + 0.3)

    agree(program, torch.cat([torch.linspace(-40, 40, 161), torch.tensor([0.0, 19.9, 20.1])]))


def test_ndtri_of_tiny_probabilities_agrees() -> None:
    agree(torch.special.ndtri, torch.tensor([0.0, 1e-38, 1e-20, 1e-7, 0.5, 1 - 1e-6, 1.0, 2.0]))


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_volumes_are_sampled(mode: Any, padding: Any, align_corners: bool) -> None:
    def program(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid, mode, padding, align_corners)

    grid = (torch.arange(2 * 2 * 3 * 2 * 3.0) * 0.7).sin().view(2, 2, 3, 2, 3) * 1.4
    agree(program, torch.arange(2 * 2 * 3 * 4 * 2.0).cos().view(2, 2, 3, 4, 2), grid)


def test_grouped_products_agree() -> None:
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)

    def program(x: Tensor, weights: Tensor) -> Tensor:
        return torch._grouped_mm(x, weights, offs=ends)

    agree(program, torch.randn(6, 8), torch.randn(3, 8, 8))


def test_what_has_no_form_is_listed() -> None:
    for program in (lambda x: torch.linalg.svdvals(x[None]), lambda x: torch.nextafter(x, x * 2)):
        with pytest.raises(ConversionError, match="test_onnx_opening") as caught:
            to_onnx(calque.record(program, torch.ones(4)))
        assert "Write these lines with other operators" in str(caught.value)


def orthogonal(a: Tensor) -> tuple[Tensor, ...]:
    tall = torch.linalg.qr(torch.cat([a, a[:, :1].triu()], 1))
    whole = torch.linalg.qr(a.mT[..., :1], mode="complete")
    return (
        *torch.linalg.qr(a),
        *torch.linalg.qr(a[..., :2, :]),
        *tall,
        *whole,
        torch.linalg.qr(a.triu(), "r").R,
    )


def test_matrices_are_reflected_with_the_signs_of_lapack() -> None:
    agree(orthogonal, torch.tensor([[[0.0, 2, 1], [1, 1, 0], [3, 0, 1]]]))
    agree(orthogonal, torch.eye(3)[None])


def test_zeta_and_polygamma_agree() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        zeta = torch.special.zeta
        near = x.abs() + 0.2
        return zeta(near + 1, near), zeta(2.5, near), zeta(near, 1.0), torch.polygamma(3, near)

    agree(program, torch.linspace(-30, 30, 40))


def test_numbers_are_counted_in_bins() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return torch.histc(x, 5), torch.histc(x, 4, -2, 3), torch.histc(x[:1], 3)

    agree(program, torch.linspace(-3, 3, 20))


def test_a_spectrum_of_a_vector_agrees() -> None:
    agree(lambda x: torch.fft.rfft(x).abs(), torch.arange(8.0))


def test_tails_powers_and_means_of_nothing_agree() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        nothing = x.reshape(1, -1)[:, :0]
        leaky = F.rrelu(x, 0.1, 0.3)
        return x.erfc(), x.exp2(), leaky, nothing.mean(1), nothing.logsumexp(1), nothing.sum(1)

    agree(program, torch.linspace(-9, 9, 19))


def test_what_says_whether_a_matrix_has_a_factor_is_not_lost() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        factor, info = torch.linalg.cholesky_ex(x)
        return factor.sum(), info

    with pytest.raises(ConversionError, match="cholesky_ex"):
        to_onnx(calque.record(program, torch.eye(2)))
    agree(lambda x: torch.linalg.cholesky_ex(x @ x.mT + torch.eye(2)).L, torch.eye(2) * 3)
    agree(torch.linalg.inv, torch.eye(2) * 3)


def test_a_grid_with_nan_reads_nothing_there() -> None:
    grid = torch.zeros(1, 2, 2, 2, 3)
    grid[0, 0, 0, 0, 0] = torch.nan

    def program(volume: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(volume, grid, align_corners=False)[..., 1:]

    agree(program, torch.randn(1, 1, 2, 2, 2), grid)


class Rounded(torch.autograd.Function):
    """Rounds, with a gradient as if it did not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient


def test_gradients_of_ones_own_are_left_out() -> None:
    layer = nn.Linear(3, 2)
    agree(lambda x: F.linear(x, Rounded.apply(layer.weight * 9) / 9), torch.randn(2, 3))


def test_simulated_quantization_agrees() -> None:
    scale, zero = torch.tensor([0.1, 0.3]), torch.tensor([0, 2], dtype=torch.int32)

    def program(x: Tensor) -> tuple[Tensor, ...]:
        whole = torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255)
        learned = torch.fake_quantize_per_tensor_affine(x, scale[0], zero[1], -8, 7)
        return whole, learned, torch.fake_quantize_per_channel_affine(x, scale, zero, 1, -8, 7)

    agree(program, 3 * torch.randn(4, 2, 3))
