"""Operators in ONNX that go along a dimension, search, or write at places that are known."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import calque
from calque.convert import ConversionError, Converters, to_onnx
from tests.convert.test_onnx import agree, run

NAN, INF = float("nan"), float("inf")


def exact(program, *args: Tensor) -> None:
    found = run(to_onnx(calque.record(program, *args)), *args)
    for one, other in zip(found, program(*args), strict=True):
        np.testing.assert_array_equal(one, other.numpy())


def test_running_extremes_and_logarithms() -> None:
    agree(lambda x: (*x.cummax(1), *x.cummin(0), x.logcumsumexp(-1)), torch.randn(3, 5))
    holes = torch.tensor([[2.0, 2.0, NAN, 5.0], [-INF, 1.0, 1.0, 0.0], [NAN, NAN, 1.0, 2.0]])
    exact(lambda x: (*x.cummax(1), *x.cummin(1)), holes)
    exact(lambda x: (*x.cummax(0), *x.cummin(1)), torch.tensor([[3, 1, 3], [3, 2, 1]]))
    apart = torch.tensor([-INF, -200.0, 100.0, 100.0])
    agree(lambda x: (x.logcumsumexp(0), torch.ones(3) * x[0].logcumsumexp(0)), apart)


def test_searches() -> None:
    edges = torch.tensor([-1.0, 0.0, 0.0, 1.0])
    values = torch.tensor([[0.0, -2.0, NAN], [0.5, 1.0, 3.0]])

    def program(x: Tensor) -> list[Tensor]:
        rows = x.sort(1).values
        return [
            *(torch.bucketize(x, edges, right=right) for right in (True, False)),
            torch.searchsorted(edges, x, side="right", out_int32=True),
            torch.searchsorted(rows, x + 1),
            torch.isin((x * 2).int(), torch.tensor([0, 2])),
            torch.isin((x * 2).int(), 6, invert=True),
        ]

    exact(program, values.nan_to_num(4.0))
    exact(lambda x: [torch.bucketize(x, edges), torch.bucketize(x, edges, right=True)], values)


def test_views_of_memory_and_writes_to_views() -> None:
    def program(x: Tensor) -> list[Tensor]:
        y, z = x.clone(), x.clone()
        y[:, ::2, 1:] = x[:, :2, :-1]
        y.diagonal(0, 1, 2).mul_(2)
        z.as_strided((2, 3), (12, 1), 2).neg_()
        windows = x.as_strided((2, 4, 3), (12, 2, 1))
        return [y, z, windows, F.pad(x, (1, 2), mode="circular"), x.unfold(2, 2, 1)]

    agree(program, torch.randn(2, 3, 4))


def test_masks_choose_where_the_next_of_some_values_go() -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x.masked_scatter(x > 0, y), x.masked_scatter(x[:, :1] > 0, y)]

    agree(program, torch.randn(3, 4), torch.randn(20))


def test_norms_of_any_order() -> None:
    orders = (0.0, 0.5, 3.0, INF, -INF, 1.0)
    agree(
        lambda x: [
            *(torch.linalg.vector_norm(x, order, dim=1) for order in orders),
            F.normalize(x, 3.0),
        ],
        torch.randn(3, 4).round(),
    )


def test_pooling_tells_the_places() -> None:
    def program(x: Tensor) -> Tensor:
        y, places = F.max_pool2d(x, 2, return_indices=True)
        padded, inside = F.max_pool2d(x, 3, 2, 1, return_indices=True)
        return F.max_unpool2d(y, places, 2).sum(1) + padded.sum() + inside.sum(1).sum()

    agree(program, torch.randn(2, 3, 6, 8))


def test_a_further_result_without_a_form_is_refused() -> None:
    ceil = lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True, return_indices=True)
    recording = calque.record(ceil, torch.randn(1, 1, 6, 6))
    with pytest.raises(ConversionError, match=r"max_pool2d_with_indices\.1, a secondary result"):
        to_onnx(recording)


def test_numbers_apart_from_nan() -> None:
    x = torch.tensor([0.0, -0.0, NAN, INF, -3.0, 2.5])
    exact(
        lambda x: [
            torch.fmax(x, x.flip(0)),
            torch.fmin(x, x.flip(0)),
            torch.copysign(torch.ones(6) + (x != x), x),
        ],
        x,
    )


def test_whole_numbers() -> None:
    def program(x: Tensor) -> list[Tensor]:
        return [
            x << 3,
            x >> 1,
            x.relu(),
            x.floor(),
            x.isnan(),
            x @ x.T,
            torch.addmm(x[:, :2], x, x.T),
        ]

    exact(program, torch.tensor([[-7, 3, 0], [8, -1, 5]]))
    exact(lambda x: [x + torch.linspace(0, 4, 9, dtype=torch.int64)], torch.arange(9))


def test_products_of_three_and_images_without_aliasing() -> None:
    weight = torch.randn(4, 3, 2)
    agree(lambda x, y: F.bilinear(x, y, weight), torch.randn(5, 3), torch.randn(5, 2))
    agree(lambda x: torch.addbmm(torch.ones(3, 3), x, x.mT, beta=2), torch.randn(2, 3, 4))

    def resized(x: Tensor) -> list[Tensor]:
        return [
            F.interpolate(x, size=(3, 5), mode=mode, antialias=True)
            for mode in ("bilinear", "bicubic")
        ]

    agree(resized, torch.randn(1, 2, 7, 9))
    agree(lambda x: (F.adaptive_avg_pool2d(x, 1), x.sum().permute(())), torch.randn(2, 5, 6))


@dataclasses.dataclass
class Pair:
    x: Tensor
    parts: dict[str, Tensor]
    count: int = 2


@dataclasses.dataclass
class Given:
    pair: Pair
    bias: Tensor


def test_data_classes_among_the_arguments_become_inputs() -> None:
    def program(given: Given) -> Tensor:
        return given.pair.x * given.pair.parts["scale"] * given.pair.count + given.bias

    x, scale, bias = torch.randn(3, 3).unbind()
    given = Given(Pair(x, {"scale": scale}), bias)
    recording = calque.record(program, given)
    model = to_onnx(recording)
    assert [each.name for each in model.graph.input] == [
        "given.pair.x",
        "given.pair.parts.scale",
        "given.bias",
    ]
    (found,) = run(model, x, scale, bias)
    np.testing.assert_allclose(found, program(given), rtol=1e-6)
    converters = Converters()
    converters.when(lambda call: True)(lambda call: call.op)
    assert converters.convert(recording).nodes == ["Tensor.mul", "Tensor.mul", "Tensor.add"]


def test_running_extremes_and_orders_of_booleans() -> None:
    flags = torch.tensor([[True, False, True], [False, False, True]])
    exact(lambda x: (*x.cummax(1), *x.cummin(0), *torch.sort(x, dim=1, stable=True)), flags)
    exact(lambda x: (x[0, 0].cumsum(0), x[0].t()), torch.randn(2, 3))


def test_special_functions_are_right_to_the_last_bit() -> None:
    x = torch.cat([torch.randn(500) * 20, torch.rand(500), torch.tensor([0.0, 1, 2, -1, INF, NAN])])
    programs = [torch.lgamma, torch.digamma, torch.special.erfinv]
    found = run(to_onnx(calque.record(lambda x: [f(x) for f in programs], x)), x)
    for function, one in zip(programs, found, strict=True):
        wide = function(x.double()).float()
        np.testing.assert_array_max_ulp(one, wide.numpy(), maxulp=1)
    with pytest.raises(ConversionError, match="lgamma"):
        to_onnx(calque.record(torch.lgamma, x.double()))


def test_statistics_without_the_missing() -> None:
    x = torch.tensor([[3.0, NAN, 1.0, 2.0], [NAN, NAN, INF, 5.0]])
    exact(lambda x: (x.nanmedian(), *x.nanmedian(1), x.nanmedian(0, keepdim=True).values), x)
    counts = torch.tensor([[2, 1, 2, 1], [3, 3, 0, 1]])
    exact(lambda x: (*x.mode(1), *x.mode(0, keepdim=True)), counts)


def test_signs_and_sizes() -> None:
    x = torch.tensor([-0.0, 0.0, -2.0, INF, 3e30, NAN])
    exact(lambda x: (x.signbit(), x.angle()), x)
    agree(lambda x, y: torch.hypot(x, y), x[:5], torch.tensor([0.0, -3.0, INF, NAN, 4e30]))


def test_adaptive_pooling_that_divides_unevenly() -> None:
    x = torch.randn(2, 3, 5, 7)
    agree(lambda x: F.adaptive_max_pool2d(x, (2, 3)), x)
    agree(lambda x: F.adaptive_avg_pool3d(x, (2, 4, 3)), x)
    agree(lambda x: F.adaptive_max_pool1d(x[0], 4), x)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatters_that_reduce(reduce: str) -> None:
    def program(x: Tensor, source: Tensor) -> list[Tensor]:
        index = torch.tensor([[0, 0, 2], [1, 0, 0]])
        with_self = [
            x.scatter_reduce(1, index, source, reduce, include_self=include)
            for include in (True, False)
        ]
        return with_self

    agree(program, torch.randn(3, 4), torch.randn(2, 3))


def test_what_depends_on_no_input_is_computed() -> None:
    layer = torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(3, 3))

    def program(x: Tensor) -> Tensor:
        return layer(x) * torch.kaiser_window(3)

    agree(program, torch.randn(2, 3))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode: str) -> None:
    indices, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 4, 4, 6])

    def program(weight: Tensor) -> tuple[Tensor, ...]:
        bags = F.embedding_bag(indices, weight, offsets, mode=mode, padding_idx=4)
        return bags, F.embedding_bag(indices.view(2, 4), weight, mode=mode)

    agree(program, torch.randn(10, 3))


def test_a_further_result_that_an_opened_operator_lacks_is_refused() -> None:
    weight, indices = torch.randn(10, 3), torch.tensor([1, 2, 4])
    program = lambda x: torch.embedding_bag(x, indices, torch.tensor([0, 2]))
    with pytest.raises(ConversionError, match="_embedding_bag"):
        to_onnx(calque.record(program, weight))
