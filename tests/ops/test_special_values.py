"""Signs of zeros, infinities and NaN in complex functions, as the CPU has them."""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import calque
from calque.ops.table.helpers import names

PARTS = (0.0, -0.0, 1.0, -1.0, 0.5, -2.0, math.inf, -math.inf, math.nan)
POINTS = [complex(x, y) for x, y in itertools.product(PARTS, PARTS)]
FUNCTIONS = names(
    "abs angle exp exp2 log log10 log2 sqrt sgn tan tanh asin asinh atan atanh acosh acos "
    "reciprocal sigmoid"
)


def same(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Where both are NaN, or equal to rounding with the same sign."""
    close = torch.isclose(found, expected, rtol=1e-4, atol=0)
    signs = torch.signbit(found) == torch.signbit(expected)
    return (found.isnan() & expected.isnan()) | (close & signs)


def parts(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_complex_functions_of_special_values(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor(POINTS, dtype=dtype)
    function = getattr(torch, name)
    expected, found = function(x), function(x.to("jax")).cpu()
    agree = same(parts(found), parts(expected))
    wrong = [
        f"{name}({x[i].item()}) is {found[i].item()}, not {expected[i].item()}"
        for i in {int(place[0]) for place in (~agree).nonzero()}
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("name", ["sin", "cos", "sinh", "cosh", "rsqrt"])
def test_complex_functions_of_zeros_and_numbers(name: str, dtype: torch.dtype) -> None:
    finite = [z for z in POINTS if math.isfinite(z.real) and math.isfinite(z.imag)]
    x = torch.tensor(finite, dtype=dtype)
    function = getattr(torch, name)
    expected, found = function(x), function(x.to("jax")).cpu()
    close = torch.isclose(found, expected, rtol=1e-4, atol=1e-7, equal_nan=True)
    assert close.all()


def test_the_square_root_as_a_power() -> None:
    x = torch.tensor(POINTS)
    assert same(parts((x.to("jax") ** 0.5).cpu()), parts(x**0.5)).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.histc(x, 4),
        lambda x: torch.histc(x, 4, 0, math.inf),
        lambda x: torch.histogram(x, 4),
        lambda x: torch.histogram(x, 4, range=(2.0, 1.0)),
    ],
)
def test_histograms_refuse_ranges_that_are_not_finite(call) -> None:
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError, match="is not finite|should not exceed"):
            call(torch.tensor([1.0, math.nan, 3.0]).to(device))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.clamp(min=0.0),
        lambda x: x.clamp(max=-0.0),
        lambda x: x.clamp(0.0, 0.0),
        lambda x: x.clamp(-0.0, 1.0),
        lambda x: x.clamp(min=math.nan),
        lambda x: x.clamp_min(0),
        lambda x: x.clamp_max(-0.0),
        lambda x: F.hardtanh(x, 0.0, 6.0),
        lambda x: F.hardtanh(x, -1.0, -0.0),
        F.relu6,
        lambda x: torch.logit(x, eps=math.nan),
    ],
)
def test_limits_keep_the_sign_of_zeros(call: Any) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16):
        x = torch.tensor([0.0, -0.0, math.nan, 0.5, -0.5, math.inf], dtype=dtype)
        expected, found = call(x), call(x.to("jax")).cpu()
        assert same(found.double(), expected.double()).all(), (found, expected)


def test_a_tensor_set_beyond_its_storage_makes_it_grow() -> None:
    for device in ("cpu", "jax"):
        x = torch.arange(4.0, device=device)
        x.set_(x.untyped_storage(), 2, (2, 3))
        assert x.untyped_storage().nbytes() == 32
        assert x[0, :2].tolist() == [2, 3]
        with pytest.raises(RuntimeError):
            x.set_(x.untyped_storage(), 0, (2, 2), (1,))
        with pytest.raises(RuntimeError):
            x.set_(x.untyped_storage(), 0, (2,), (-1,))


def test_reductions_of_more_than_64_dimensions_raise_as_on_the_cpu() -> None:
    x = torch.ones((1,) * 65)
    for reduce in (torch.sum, torch.amax, torch.amin, torch.argmax):
        assert reduce(x.to("jax")).cpu() == reduce(x)
        for dim, error in ((0, RuntimeError), (-66, IndexError)):
            for device in ("cpu", "jax"):
                with pytest.raises(error):
                    reduce(x.to(device), dim)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "product",
    [
        lambda mask, x: mask * x,
        lambda mask, x: mask.float() * x,
        lambda mask, x: (mask.to(x.dtype) * x).sum(),
        lambda mask, x: mask.sum() * x,
        lambda mask, x: mask / x * x,
        lambda mask, x: torch.where(mask, 1.0, 0.0) * x,
    ],
)
def test_false_times_what_is_not_finite_is_nan(product, value):
    """XLA would make a choice between the other factor and 0 of a converted boolean's product."""
    mask, x = torch.tensor([True, False]), torch.tensor([value, value])
    expected = product(mask, x)
    on_device = mask.to("jax"), x.to("jax")
    for run in (product, calque.jit(product)):
        torch.testing.assert_close(run(*on_device).cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("name", ["chebyshev_polynomial_t", "hermite_polynomial_h"])
def test_a_degree_that_is_nan_leaves_the_other_polynomials_as_they_are(name: str) -> None:
    function = getattr(torch.special, name)
    x, degree = torch.tensor([0.5, 0.3, 2.0]), torch.tensor([3.0, float("nan"), 2.0])
    assert function(x.to("jax"), degree.to("jax")).tolist() == function(x, degree).tolist()


def _refusal(function: Any, *args: torch.Tensor) -> str | None:
    try:
        function(*args)
    except NotImplementedError as error:
        return str(error).split("\n")[0]
    except (TypeError, RuntimeError):
        pass  # raised for other arguments
    return None


def test_functions_without_a_complex_kernel_refuse_complex_numbers() -> None:
    functions = [getattr(torch.special, name) for name in dir(torch.special) if name.islower()]
    functions += [torch.logaddexp2, F.glu, F.hardtanh, F.relu6, F.mse_loss]
    x = torch.ones(2, dtype=torch.complex64)
    refused = {}
    for function, count in itertools.product(filter(callable, functions), (1, 2)):
        said = _refusal(function, *[x] * count)
        if said is not None:
            refused[said] = _refusal(function, *[x.to("jax")] * count)
    assert len(refused) > 30
    assert refused == dict(zip(refused, refused))


EDGES = [math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, -1.0, 0.5, 2.0, -2.5, 1e30, -1e30]


@pytest.mark.parametrize("function", [torch.igamma, torch.igammac, torch.special.zeta])
def test_functions_of_two_numbers_at_their_edges(function) -> None:
    pairs = [(a, x) for a in EDGES for x in EDGES]
    a, x = torch.tensor(pairs).T
    found = function(a.to("jax"), x.to("jax")).cpu()
    torch.testing.assert_close(found, function(a, x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", [torch.igamma, torch.igammac])
def test_incomplete_gamma_functions_of_large_numbers(function, dtype) -> None:
    a = torch.tensor([1e2, 1e4, 99999.0, 1e5 + 1, 1e6, 1e8, 1e12], dtype=dtype)[:, None]
    x = a + a.sqrt() * torch.tensor([-3.0, -0.5, 0.0, 1e-3, 1.0, 4.0], dtype=dtype)
    found = function(a.to("jax"), x.to("jax")).cpu()
    exact = function(a.double(), x.double()).to(dtype)
    rtol, atol = (1e-4, 1e-6) if dtype == torch.float32 else (1e-7, 1e-9)
    torch.testing.assert_close(found, exact, rtol=rtol, atol=atol)
