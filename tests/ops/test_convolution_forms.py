"""Convolutions by products and sums are PyTorch's: results, gradients, gradients of gradients."""

import pytest
import torch
from torch.autograd import grad
from torch.nn import functional as F

from calque.ops.nn import convolution_forms as forms

# batch, channels, size, out, kernel, stride, padding, dilation, groups
POINTWISE = [
    (2, 4, (5, 6), 6, (1, 1), (2, 3), 0, 1, 1),
    (2, 4, (7,), 3, (1,), 2, 0, 1, 1),
]
DEPTHWISE = [
    (2, 4, (5, 6), 4, (3, 3), 1, 1, 1, 4),
    (2, 4, (5, 6), 8, (3, 2), 1, 1, 1, 4),
    (2, 4, (9, 8), 8, (3, 2), (3, 2), (0, 1), (2, 1), 4),
    (2, 4, (9,), 4, (4,), 1, 3, 1, 4),
    (2, 4, (3, 4, 5), 4, (2, 2, 3), (1, 2, 1), 1, 1, 4),
    (2, 4, (9, 8), 4, (3, 3), 2, 1, 1, 4),
    (2, 4, (7, 6), 4, (1, 3), (3, 2), (2, 4), 1, 4),  # positions that no result uses
    (
        2,
        4,
        (8, 9),
        4,
        (3, 2),
        (2, 3),
        3,
        (2, 3),
        4,
    ),  # phases that no element reaches
    (3, 4, (5,), 8, (1,), 2, 0, 1, 4),
]
SMALL = [
    (2, 64, (2, 2), 5, (3, 3), 1, 1, 1, 1),
    (2, 3, (2, 1), 5, (3, 3), 1, 2, 1, 1),
    (2, 4, (2,), 6, (5,), 1, 2, 1, 2),
]
GROUPED = [
    (2, 4, (6, 5), 6, (3, 3), 1, 1, 1, 2),
    (2, 6, (6, 5), 3, (3, 2), 2, 1, 1, 3),
]
CASES = [*POINTWISE, *DEPTHWISE, *SMALL, *GROUPED]


TRANSPOSED = [
    (2, 4, (5, 6), 6, (2, 2), 2, 0, 1, 1, 0),
    (2, 4, (5, 6), 6, (1, 1), 2, 0, 1, 1, 1),
    (2, 4, (5, 6), 8, (3, 3), (2, 1), 1, 1, 4, (1, 0)),
    (2, 4, (3, 2), 8, (3, 2), 2, 1, (3, 1), 2, (2, 0)),  # more padding at the end than a stride
    (2, 4, (4,), 4, (3,), 1, 0, 2, 4, 0),
]


def _results(case: tuple, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    batch, channels, size, out, kernel, stride, padding, dilation, groups, *extra = case
    torch.manual_seed(0)
    if extra:
        transposed = (F.conv_transpose1d, F.conv_transpose2d)[len(size) - 1]
        made = torch.randn(batch, channels, *size), torch.randn(channels, out // groups, *kernel)
    else:
        convolve = (F.conv1d, F.conv2d, F.conv3d)[len(size) - 1]
        made = torch.randn(batch, channels, *size), torch.randn(out, channels // groups, *kernel)
    x, weight = (one.to(device, dtype).requires_grad_() for one in made)
    bias = torch.randn(out).to(device, dtype).requires_grad_()
    if extra:
        y = transposed(x, weight, bias, stride, padding, extra[0], groups, dilation)
    else:
        y = convolve(x, weight, bias, stride, padding, dilation, groups)
    seed = torch.randn(y.shape).to(device, dtype)
    first = grad(y, (x, weight, bias), seed, create_graph=True)
    second = grad((first[0].square().sum() + first[1].square().sum()), (x, weight))
    return [one.detach().cpu() for one in (y, *first, *second)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", [*CASES, *TRANSPOSED], ids=str)
def test_results_and_two_gradients_are_those_of_the_cpu(case: tuple) -> None:
    for got, want in zip(
        _results(case, "jax", torch.float64), _results(case, "cpu", torch.float64), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", [POINTWISE[0], DEPTHWISE[2], SMALL[0], GROUPED[0]], ids=str)
def test_half_precision_is_summed_in_float32(case: tuple) -> None:
    exact = _results(case, "cpu", torch.float64)[:4]
    for got, want in zip(_results(case, "jax", torch.bfloat16), exact, strict=False):
        assert got.dtype == torch.bfloat16
        scale = want.abs().max()
        torch.testing.assert_close(got.double(), want, rtol=0, atol=0.03 * float(scale))


def test_the_forms_are_chosen_by_shape() -> None:
    import jax
    import jax.numpy as jnp

    def chosen(case: tuple) -> tuple[bool, bool, bool]:
        batch, channels, size, out, kernel, stride, padding, dilation, groups = case
        n = len(size)
        numbers = [(v,) * n if isinstance(v, int) else v for v in (stride, padding, dilation)]
        how = forms.Sliding(*numbers, groups)
        x, weight = jnp.ones((batch, channels, *size)), jnp.ones((out, channels // groups, *kernel))
        y = jnp.ones((batch, out, *how.out(size, kernel)))
        assert forms.applies(x, weight)
        ways = (
            lambda: forms.forward(x, weight, how),
            lambda: forms.input_gradient(y, x, weight, how),
            lambda: forms.weight_gradient(y, x, weight, how),
        )
        forward, of_input, of_weight = (jax.eval_shape(way) is not None for way in ways)
        return forward, of_input, of_weight

    for case in [*POINTWISE, *DEPTHWISE, *SMALL]:
        assert chosen(case) == (True, True, True), case
    for case in GROUPED:
        assert chosen(case) == (False, True, True), case
    assert chosen((2, 64, (16, 16), 64, (3, 3), 1, 1, 1, 1)) == (False, False, False)


@pytest.mark.parametrize("groups", [1, 4])
def test_empty_batches_have_empty_results_and_zero_gradients(groups: int) -> None:
    x = torch.randn(0, 4, 5, 5, device="jax", requires_grad=True)
    weight = torch.randn(4, 4 // groups, 3, 3, device="jax", requires_grad=True)
    y = F.conv2d(x, weight, padding=1, groups=groups)
    y.sum().backward()
    assert y.shape == (0, 4, 5, 5) == x.grad.shape
    assert torch.equal(weight.grad.cpu(), torch.zeros(weight.shape))


@pytest.mark.parametrize("case", [POINTWISE[0], DEPTHWISE[0], SMALL[0]], ids=str)
def test_they_can_be_batched(case: tuple) -> None:
    batch, channels, size, out, kernel, stride, padding, dilation, groups = case
    x, weight = (
        torch.randn(3, batch, channels, *size),
        torch.randn(out, channels // groups, *kernel),
    )

    def convolve(one: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(one, weight, None, stride, padding, dilation, groups)

    mapped = torch.func.vmap(convolve, in_dims=(0, None))
    want = mapped(x, weight)
    got = mapped(x.to("jax"), weight.to("jax")).cpu()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
def test_what_is_not_finite_reaches_the_gradients_that_it_reaches_on_the_cpu(stride: int) -> None:
    x, weight = torch.randn(2, 4, 7, 6), torch.randn(4, 1, 3, 3)
    x[0, 1, 3, 3] = torch.nan
    weight[2, 0, 1, 1] = torch.inf
    seed = torch.randn(F.conv2d(x, weight, None, stride, 1, 1, 4).shape)
    seed[1, 3, 1, 1] = torch.nan

    def gradients(device: str) -> list[torch.Tensor]:
        image, kernel = (one.to(device).requires_grad_() for one in (x, weight))
        y = F.conv2d(image, kernel, None, stride, 1, 1, 4)
        return [one.detach().cpu() for one in (y, *grad(y, (image, kernel), seed.to(device)))]

    for got, want in zip(gradients("jax"), gradients("cpu"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("stride", [1, 2])
def test_infinite_weights_at_the_border_leave_gradients_of_images_finite(stride: int) -> None:
    x, weight = torch.randn(2, 4, 7, 6), torch.randn(4, 1, 3, 3)
    weight[2, 0, 0, 0] = weight[1, 0, 2, 1] = torch.inf
    seed = torch.randn(F.conv2d(x, weight, None, stride, 1, 1, 4).shape)

    def gradient(device: str) -> torch.Tensor:
        image = x.to(device).requires_grad_()
        y = F.conv2d(image, weight.to(device), None, stride, 1, 1, 4)
        return grad(y, image, seed.to(device))[0].cpu()

    got, want = gradient("jax"), gradient("cpu")
    assert not want.isnan().any()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
