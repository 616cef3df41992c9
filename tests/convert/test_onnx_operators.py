"""Operators of several dimensions and of places have the elements in ONNX that PyTorch chooses."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calque
from calque.convert import Calls, ConversionError, to_onnx
from calque.convert.onnx_calls import OnnxCall, kind_of
from calque.convert.onnx_graph import OnnxGraph
from tests.convert.test_onnx import agree, run

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x.argmax(), x.argmax(1), x.argmin(-1, keepdim=True), x.argmax(keepdim=True)),
        lambda x: (*x.max(1), *x.min(-1), *x.topk(2), *x.topk(2, 1, largest=False), *x.sort(1)),
        lambda x: (x.cumsum(1), (x > 0).cumsum(0), x.prod(1), x.logsumexp(1)),
        lambda x: (x.var(), x.std(1, correction=0), torch.var_mean(x, 1), x.norm(dim=1)),
        lambda x: ((x > 0).any(), (x > 0).all(1), (x > 0) * (x < 1), (x > 0) ^ (x < 1)),
        lambda x: (x.tril(), x.triu(1), (x > 0).tril(-1), x.flip(0, 2), x.roll((1, -2), (0, 2))),
        lambda x: (F.pad(x, (1, 2, 0, 1), value=3.0), F.pad(x, (-1, 1)), x.roll(3)),
        lambda x: (x[[0, 1, 1]], x[:, [2, 0]], x[[0, 1], [2, 0]], x[[0, 1], :, [2, 0]]),
        lambda x: (x[:, [0, 1], [2, -1]], x[[[0], [1]], [[2, 0]]], x[:, torch.tensor(1)]),
        lambda x: torch.take_along_dim(x, x.argmax(1, keepdim=True), 1),
        lambda x: (x // 0.4, x % 0.7, torch.div(x, 0.3, rounding_mode="trunc"), x.round()),
        lambda x: (F.elu(x), F.selu(x), F.softplus(x * 30), F.mish(x), F.hardsigmoid(x)),
        lambda x: (
            F.batch_norm(x, None, None, training=True),
            F.group_norm(x, 3),
            F.rms_norm(x, (4,)),
        ),
        lambda x: (torch.zeros_like(x) + x, x.new_ones(4) + x, torch.full_like(x, 2) * x),
    ],
)
def test_operators_agree(program: Any) -> None:
    agree(program, torch.randn(2, 3, 4))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x.cumprod(1), (x > 0).cumprod(-1), torch.tensor(2.0).cumprod(0) * x),
        lambda x: (x.index_add(1, torch.tensor([2, 0, 2]), x, alpha=3), F.celu(x, 0.5), x.expm1()),
        lambda x: (x.diagonal(), x.diagonal(1, 1, 2), x.diagonal(-1, 0, -1), x[0].diag()),
        lambda x: [torch.cdist(x, x + 1, p=p) for p in (0.0, 1.0, 2.0, 3.0, INF)],
    ],
)
def test_operators_in_others_agree(program: Any) -> None:
    agree(program, torch.randn(2, 3, 4))


def test_special_values_of_operators_in_others() -> None:
    x = torch.tensor([0.0, 1.0, -1.0, INF, -INF, NAN, 1e-10, 3e38, 90.0, -90.0])
    agree(
        lambda y, x: torch.atan2(y, x),
        *(part.contiguous() for part in torch.meshgrid(x, x, indexing="ij")),
    )
    agree(lambda x: x.expm1(), x)
    small = torch.linspace(-1e-3, 1e-3, 101)
    (found,) = run(to_onnx(calque.record(lambda x: x.expm1(), small)), small)
    torch.testing.assert_close(torch.tensor(found), small.expm1(), rtol=1e-6, atol=0)
    # The last product is 0, not NaN.
    agree(lambda x: x.cumprod(0), torch.tensor([0.0, 1e30, 1e30, 2.0]))


@pytest.mark.parametrize(("stride", "height"), [(2, 8), (3, 8), (3, 9)])
def test_pooling_whose_last_window_is_shortened(stride: int, height: int) -> None:
    def program(x: Tensor) -> list[Tensor]:
        ceil = {"ceil_mode": True}
        return [
            F.max_pool2d(x, 2, stride, 1, **ceil),
            F.max_pool2d(x, 3, stride, 1, 2, **ceil),
            F.max_pool2d(x[0], 3, stride, **ceil),
            *(F.avg_pool2d(x, 3, stride, 1, True, inside) for inside in (True, False)),
            F.avg_pool2d(x, 3, stride, 1, True, divisor_override=5),
            F.avg_pool1d(x[0], 3, stride, 1, True),
        ]

    agree(program, -torch.rand(1, 2, height, height + 1))


def test_numbers_are_rounded_to_decimals() -> None:
    x = torch.tensor([1.2345, -8.478, 12345.678, 0.0005])
    agree(lambda x: (x.round(decimals=3), x.round(decimals=-2), x.round(decimals=0)), x)


def test_an_argument_that_its_converter_does_not_look_at_is_refused() -> None:
    graph = calque.record(lambda x: x.relu(), torch.ones(2)).graph("aten")
    (call,) = Calls(graph)
    seen = OnnxCall(call, OnnxGraph())
    with pytest.raises(ConversionError, match=r"the argument self=.* cannot be expressed in ONNX"):
        seen.refuse_unread()
    seen.name("self")
    seen.refuse_unread()


def test_scattered_values_are_reduced() -> None:
    index = torch.tensor([[0, 1, 0], [1, 1, 0]])

    def program(x: Tensor, source: Tensor) -> tuple[Tensor, ...]:
        return (
            x.scatter_add(0, index, source),
            x.scatter_reduce(1, index, source, "amax"),
            x.scatter_reduce(1, index, source, "prod"),
            x.scatter(1, index, 3.0, reduce="multiply"),
        )

    agree(program, torch.randn(2, 3), torch.randn(3, 4))


def test_whole_numbers_round_as_in_python() -> None:
    agree(lambda x: (x // 3, x % 3, x // -3, x % -3, x**2), torch.tensor([-7, -3, 0, 3, 8]))


def test_powers_of_whole_numbers_are_exact() -> None:
    exponents = torch.tensor([-3, -2, -1, 0, 1, 2, 5, 7, 33, 39, 63, 64])
    x = torch.tensor([-20, -3, -1, 0, 1, 2, 3, 5, 7, 13, 19, 20])[:, None]
    for dtype in (torch.int64, torch.int32, torch.int8):
        y = x.to(dtype).expand(-1, len(exponents)).clone()
        agree(lambda y, e: (y**e, y**0, y**39, y**64, 3 ** e.abs()), y, exponents.expand_as(y) + 0)


def test_quotients_are_rounded_down_as_in_python() -> None:
    tenths, tops = torch.arange(-60, 60).view(12, 10) / 10, torch.tensor([1.0, -1.0, 0.0, 5.0, INF])
    programs = [lambda x: (x // 0.1, x // -0.1, torch.div(x, x.flip(0) + 1, rounding_mode="floor"))]
    programs.append(lambda x: tops.div(x, rounding_mode="floor"))
    for program, x in zip(programs, (tenths, torch.tensor([0.0, 0.0, 0.0, INF, 2.0])), strict=True):
        found, want = run(to_onnx(calque.record(program, x)), x), jax.tree.leaves(program(x))
        for a, b in zip(found, want, strict=True):
            np.testing.assert_array_equal(a, b.numpy())


def test_numbers_of_bfloat16_are_rounded_where_pytorch_rounds_them() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(36, 5), nn.LayerNorm(5)).bfloat16().eval()

    def program(x: Tensor, y: Tensor) -> Any:
        z = (y + 0.3).bfloat16()
        made = torch.full_like(z, 0.3) + torch.arange(3, dtype=torch.bfloat16)
        found = model(x.bfloat16()), z * 1.001, made, z[:, [0, 2]].softmax(-1), (z > 0) * z
        return [part.float() for part in found]

    args = torch.randn(2, 1, 8, 8), torch.randn(2, 3)
    converted = to_onnx(calque.record(program, *args))
    for found, want in zip(run(converted, *args), program(*args), strict=True):
        np.testing.assert_allclose(found, want.detach(), rtol=0.02, atol=0.02)
    (exact,) = run(
        to_onnx(calque.record(lambda y: (y.bfloat16() * 1.001).float(), args[1])), args[1]
    )
    assert torch.equal(torch.tensor(exact), (args[1].bfloat16() * 1.001).float())
    kept = to_onnx(calque.record(lambda x: x + 1, torch.ones(2).bfloat16())).graph
    kinds = {part.type.tensor_type.elem_type for part in (*kept.input, *kept.output)}
    assert kinds == {kind_of("bfloat16")}


def test_the_first_of_several_and_nan_before_all_else() -> None:
    rows = torch.tensor([[1.0, NAN, INF], [INF, -INF, NAN], [-INF, -INF, -INF], [2.0, 2.0, 1.0]])
    program = lambda x: (x.argmax(1), x.argmin(1), x.argmax(0))
    found = run(to_onnx(calque.record(program, rows)), rows)
    for one, other in zip(found, program(rows), strict=True):
        np.testing.assert_array_equal(one, other.numpy())


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_images_are_resized_as_pytorch_does(mode: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        sizes = [(10, 14), (9, 3), (1, 1), (15, 21)]
        made = [F.interpolate(x, size=size, mode=mode) for size in sizes]
        made += [
            F.interpolate(x, scale_factor=factor, mode=mode) for factor in (1.7, 2, (0.6, 1.3))
        ]
        if mode.startswith("bi"):
            made.append(F.interpolate(x, size=(9, 3), mode=mode, align_corners=True))
        return tuple(made)

    agree(program, torch.randn(1, 2, 5, 7))


def test_pools_adapt_to_any_size() -> None:
    agree(
        lambda x: (F.adaptive_avg_pool2d(x, (2, 3)), F.adaptive_avg_pool2d(x, 7)),
        torch.randn(1, 2, 5, 6),
    )
    agree(lambda x: (F.max_pool3d(x, 2), F.avg_pool3d(x, 2)), torch.randn(1, 1, 4, 4, 4))
    whole = lambda x: (F.adaptive_max_pool3d(x, 1), F.adaptive_avg_pool3d(x, (2, 1, 4)))
    agree(whole, torch.randn(1, 1, 4, 4, 4))
    agree(lambda x: F.adaptive_max_pool2d(x, (2, 3)), torch.randn(2, 3, 4, 6))


def test_values_are_assigned_by_places_and_masks() -> None:
    def program(x: Tensor) -> Tensor:
        y = x.clone()
        y[:, 0] = 1
        y[0, :, 1:3] += 2
        y[:, [0, 2]] = 3.0
        y[:, :, [1, 2]] = x[:, :, :2]
        y[y < -0.5] = 0.0
        return y.scatter(1, torch.ones(2, 1, 4, dtype=torch.long), 5.0)

    agree(program, torch.randn(2, 3, 4))


def test_values_are_added_at_places_that_come_several_times() -> None:
    def program(x: Tensor) -> Tensor:
        y = x.clone()
        y.index_put_(
            (torch.tensor([0, 1, 1]), torch.tensor([2, 0, 0])), x[0, :, :], accumulate=True
        )
        return y + F.fold(F.unfold(x[:, None], 2), (3, 4), 2)[:, 0]

    agree(program, torch.randn(2, 3, 4))


def test_bits_of_whole_numbers() -> None:
    x = torch.randint(0, 11, (2, 3))
    agree(lambda x: (x & 6, x | 3, x ^ x.flip(0), ~x, x.int() & 1), x)


def test_a_choice_by_rank_puts_nan_last() -> None:
    def program(x: Tensor) -> Any:
        ranks = (*x.kthvalue(3), *x.kthvalue(1, 0, keepdim=True))
        return *ranks, x.median(), *x.median(1), *x.median(0, keepdim=True), (x * 9).int().median()

    agree(program, torch.randn(4, 5))
    holes = torch.tensor([[3.0, NAN, 1.0], [-INF, INF, NAN], [2.0, 5.0, 4.0]])

    def of_holes(x: Tensor) -> Any:
        return *x.kthvalue(2), x.kthvalue(3).values, x.median(), *x.median(-1), *x.median(0)

    for found, expected in zip(
        run(to_onnx(calque.record(of_holes, holes)), holes), of_holes(holes)
    ):
        np.testing.assert_array_equal(found, expected.numpy())


def test_the_largest_and_the_smallest_are_nan_where_there_is_any() -> None:
    holes = torch.tensor([[1.0, NAN, 3.0], [4.0, 5.0, 6.0], [NAN, NAN, -1.0]])

    def program(x: Tensor) -> Any:
        return *x.max(1), *x.min(0, keepdim=True), x.amax(1), x.amin((0, 1)), x.max(), x[1].min()

    for found, expected in zip(run(to_onnx(calque.record(program, holes)), holes), program(holes)):
        np.testing.assert_array_equal(found, expected.numpy())


def test_signs_and_roots_of_nan_and_negative_zero() -> None:
    given = torch.tensor([0.0, -0.0, -2.0, 2.0, NAN, INF, -INF])

    def program(x: Tensor) -> Any:
        return x.sign(), x.sgn(), x**0.5, x**-0.5, (x > 0).sign(), x.double() ** -0.5

    model = to_onnx(calque.record(program, torch.ones(7)))
    for found, expected in zip(run(model, given), program(given)):
        np.testing.assert_array_equal(found, expected.numpy())


def test_operators_that_are_opened_keep_their_dtype() -> None:
    program = lambda x: torch.atan2(x, x.flip(0))
    x = torch.randn(4).half()
    (found,) = run(to_onnx(calque.record(program, x)), x)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, program(x).numpy(), rtol=2e-3)


def test_booleans_are_operands() -> None:
    agree(
        lambda x: (x + True, x * False, x.int() + True, torch.where(x > 0, x, True)), torch.randn(3)
    )


def test_images_without_a_batch_are_pooled() -> None:
    def program(x: Tensor) -> Any:
        return F.adaptive_max_pool2d(x, 2), F.adaptive_max_pool1d(x[0], 3), F.max_pool2d(x, 2)

    agree(program, torch.randn(2, 4, 6))


def test_attention_with_fewer_keys_than_queries() -> None:
    def program(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q[:, :2], q[:, :2], enable_gqa=True)

    agree(program, torch.randn(2, 4, 3, 8))
    allowed = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    agree(
        lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=allowed), torch.randn(2, 3, 4)
    )


class Halves(nn.Module):
    """A U-Net of one step."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(11, 2, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.norm(self.down(F.max_pool2d(x, 2))))
        y = F.interpolate(y, size=x.shape[-2:], mode="bilinear")
        return self.up(torch.cat([y, x], 1))


def test_a_network_that_goes_down_and_up_agrees() -> None:
    agree(Halves(), torch.randn(1, 3, 9, 11))
