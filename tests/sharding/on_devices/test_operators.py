"""Operators of spread tensors that XLA's partitioner or JAX itself does not get right."""

from collections.abc import Callable

import jax
import pytest
import torch
import torch.nn.functional as F

import calque
from calque import sharding as sh
from calque.sharding import P

Tensor = torch.Tensor


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["fft", "fft2", "fftn", "ifft", "rfft2", "hfft"])
@pytest.mark.parametrize("length", [8, 24])
def test_a_transform_along_a_split_dimension_is_that_of_one_device(name: str, length: int) -> None:
    sh.mesh(dp=8)
    transform = getattr(torch.fft, name)
    x = torch.randn(2, 8, length)
    spread = sh.shard(x.to("jax"), P(None, None, "dp"))
    for run in (transform, calque.jit(transform)):
        assert torch.allclose(run(spread).cpu(), transform(x), atol=1e-4)


@pytest.mark.parametrize(("shape", "spec"), [((0, 8), P(None, "dp")), ((8, 0), P("dp"))])
def test_a_spread_tensor_without_elements_is_read(shape: tuple[int, int], spec: P) -> None:
    sh.mesh(dp=8)
    x = sh.shard(torch.ones(shape).to("jax"), spec)
    assert (x + 1).cpu().shape == shape
    assert x.tolist() == torch.ones(shape).tolist()
    assert x.nonzero().shape == (0, 2)
    assert x.sum(0).cpu().equal(torch.ones(shape).sum(0))


EXTREMA: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda x: x.max(),
    "amin": lambda x: x.amin(0),
    "aminmax": lambda x: torch.stack(list(torch.aminmax(x))),
    "max.dim": lambda x: x.max(0).values,
    "norm": lambda x: x.norm(float("inf")),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, -float("inf"), dim=0),
    "pdist": lambda x: F.pdist(x.t(), float("inf")),
    "scatter_reduce": lambda x: torch.zeros_like(x).scatter_reduce(
        0, torch.zeros_like(x, dtype=torch.int64), x, "amax"
    ),
    "index_reduce": lambda x: torch.zeros_like(x).index_reduce(
        0, torch.zeros(16, dtype=torch.int64, device=x.device), x, "amin"
    ),
    "segment_max": lambda x: torch.segment_reduce(x, "max", lengths=counts(x, 10, 6), unsafe=True),
    "segment_min": lambda x: torch.segment_reduce(x, "min", lengths=counts(x, 10, 6), unsafe=True),
    "embedding_bag": lambda x: F.embedding_bag(
        torch.arange(16, device=x.device), x, counts(x, 0, 9, 15), mode="max"
    ),
    "adaptive_max_pool": lambda x: F.adaptive_max_pool1d(x.t(), 3),
    "fractional_max_pool": lambda x: F.fractional_max_pool2d(
        x.t()[None], 2, output_size=(3, 7), _random_samples=torch.zeros(1, 1, 2, device=x.device)
    ),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "renorm": lambda x: F.embedding(
        torch.arange(16, device=x.device), x.clone(), max_norm=1.0, norm_type=float("inf")
    ),
}


def counts(x: Tensor, *numbers: int) -> Tensor:
    return torch.tensor(numbers, device=x.device)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", EXTREMA)
@pytest.mark.parametrize("jit", [False, True])
def test_nan_is_found_along_a_split_dimension(name: str, jit: bool) -> None:
    sh.mesh(dp=8)
    function = EXTREMA[name]
    run = calque.jit(function) if jit else function
    for at in (0, 9, 15):
        x = torch.randn(16, 4)
        x[at, 1] = float("nan")
        on_one = run(x.to("jax")).cpu()
        assert on_one.isnan().any()
        assert torch.allclose(run(sh.shard(x.to("jax"), P("dp"))).cpu(), on_one, equal_nan=True)


@pytest.mark.parametrize("at", [0, 9, 15])
def test_the_range_of_a_histogram_is_nan_with_nan_along_a_split_dimension(at: int) -> None:
    sh.mesh(dp=8)
    x = torch.randn(16)
    x[at] = float("nan")
    spread = sh.shard(x, P("dp"))
    with pytest.raises(RuntimeError, match="not finite"):
        torch.histogram(spread, 4)
    run = calque.jit(lambda x: torch.histogram(x, 4).bin_edges)
    assert run(spread).isnan().all()


CONVOLUTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "transposed": lambda x, w: F.conv_transpose2d(x, w, stride=3, padding=2, output_padding=1),
    "dilated": lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, dilation=2),
    "strided": lambda x, w: F.conv2d(x, w, stride=2, padding=2, dilation=2),
    "grouped": lambda x, w: F.conv2d(x, w[:, :2], padding=2, groups=2),
    "depthwise": lambda x, w: F.conv2d(x, w[:, :1], padding=1, groups=4),
    "tbc": lambda x, w: torch.conv_tbc(x[0], w[:, :, 0], w[0, 0, 0], 1),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dim", [2, 3])
def test_a_convolution_of_images_that_are_split_is_that_of_one_device(name: str, dim: int) -> None:
    mesh = sh.mesh(dp=2, devices=jax.devices()[:2])
    convolve = CONVOLUTIONS[name]
    places = P(*[None] * dim, "dp"), P("dp")

    def run(x: Tensor, w: Tensor) -> list[Tensor]:
        out = convolve(x, w)
        return [out, *torch.autograd.grad(out.square().sum(), (x, w))]

    operands = torch.randn(2, 4, 8, 4), torch.randn(4, 4, 3, 4)
    expected = run(*(x.clone().requires_grad_() for x in operands))
    spread = [
        sh.shard(x.to("jax"), place, mesh).requires_grad_()
        for x, place in zip(operands, places, strict=True)
    ]
    for way in (run, calque.jit(run)):
        for ours, theirs in zip(way(*spread), expected, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["fft", "rfft", "irfft"])
def test_jax_differentiates_a_transform_along_a_split_dimension(name: str) -> None:
    mesh = sh.mesh(dp=8)
    transform = getattr(torch.fft, name)
    apply, _ = calque.functional(lambda x: transform(x).abs().pow(3).sum(), gradient="jax")
    x = torch.randn(2, 8, 16).to("jax")
    gradient = jax.jit(jax.grad(lambda x: apply({}, x)))
    expected = gradient(calque.to_jax(x))
    for dim in range(3):
        if x.shape[dim] % 8 == 0:
            array = calque.to_jax(sh.shard(x.clone(), P(*[None] * dim, "dp"), mesh))
            assert jax.numpy.allclose(gradient(array), expected, rtol=1e-3, atol=1e-3)


def test_a_hash_of_a_spread_tensor_is_that_of_the_whole() -> None:
    sh.mesh(dp=8)
    x = torch.randn(8, 4)
    assert torch.hash_tensor(sh.shard(x, P("dp"))).item() == torch.hash_tensor(x).item()
