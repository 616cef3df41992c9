"""Random operators: their statistics, dtypes, seeds and errors; and tensors made from numbers."""

import math

import jax.numpy as jnp
import pytest
import torch

import calque  # noqa: F401  (registers the device)
from calque.device.kernels.binding import overload_of, traced_parameters
from calque.device.kernels.call import Runner
from calque.ops import find
from tests.ops.conformance import cases, compare_with_cpu

COUNT = 20_000
NAMES = [
    "arange",
    "complex",
    "eye",
    "full",
    "full_like",
    "linspace",
    "logspace",
    "new_full",
    "ones",
    "polar",
    "rand_like",
    "randint",
    "randn",
    "scalar_tensor",
    "tril_indices",
    "zeros",
    "zeros_like",
]


@pytest.mark.sampled(14)
@pytest.mark.parametrize(("op", "dtype", "mode"), cases(NAMES))
def test_agrees_with_cpu(op: object, dtype: torch.dtype, mode: str) -> None:
    compare_with_cpu(op, dtype, mode)


def _empty(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(COUNT, dtype=dtype, device="jax")


DRAWS = {
    "uniform_": (lambda: _empty().uniform_(-1, 3), 1.0, 4 / math.sqrt(12)),
    "uniform_float64": (lambda: _empty(torch.float64).uniform_(0, 2), 1.0, 2 / math.sqrt(12)),
    "normal_": (lambda: _empty().normal_(2, 3), 2.0, 3.0),
    "normal_bfloat16": (lambda: _empty(torch.bfloat16).normal_(), 0.0, 1.0),
    "randn": (lambda: torch.randn(COUNT, device="jax"), 0.0, 1.0),
    "rand_like": (lambda: torch.rand_like(_empty()), 0.5, 1 / math.sqrt(12)),
    "exponential_": (lambda: _empty().exponential_(2.0), 0.5, 0.5),
    "bernoulli_": (lambda: _empty().bernoulli_(0.25), 0.25, math.sqrt(0.1875)),
    "geometric_": (lambda: _empty().geometric_(0.5), 2.0, math.sqrt(2)),
    "log_normal_": (lambda: _empty().log_normal_(0, 0.25), 1.0317, 0.262),
    "random_from": (lambda: _empty().random_(0, 10), 4.5, math.sqrt(99 / 12)),
    "randint": (lambda: torch.randint(5, (COUNT,), device="jax"), 2.0, math.sqrt(2)),
    "poisson": (lambda: torch.poisson(torch.full((COUNT,), 4.0, device="jax")), 4.0, 2.0),
    "normal_tensors": (
        lambda: torch.normal(torch.full((COUNT,), 1.0, device="jax"), 2.0),
        1.0,
        2.0,
    ),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", DRAWS)
def test_mean_and_deviation(name: str) -> None:
    draw, mean, deviation = DRAWS[name]
    sample = draw().double()
    assert abs(sample.mean().item() - mean) < 6 * deviation / math.sqrt(COUNT)
    assert abs(sample.std().item() - deviation) < 0.05 * deviation


def test_an_exponential_number_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jax.random.exponential", lambda _, shape, dtype: jnp.zeros(shape, dtype))
    for dtype in (torch.float16, torch.float32, torch.float64):
        drawn = torch.empty(3, 1, 7, dtype=dtype, device="jax").exponential_()
        assert drawn.gt(0).all()


@pytest.mark.parametrize("name", DRAWS)
def test_seed_reproduces_and_draws_differ(name: str) -> None:
    draw = DRAWS[name][0]
    torch.manual_seed(5)
    first, second = draw(), draw()
    torch.manual_seed(5)
    assert torch.equal(draw(), first)
    assert not torch.equal(second, first)


def test_half_precision_stays_below_one() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        drawn = _empty(dtype).uniform_()
        assert drawn.min().item() >= 0
        assert drawn.max().item() < 1


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32]
)
def test_randint_in_each_dtype(dtype: torch.dtype) -> None:
    drawn = torch.randint(3, 9, (COUNT,), dtype=dtype, device="jax")
    assert drawn.dtype == dtype
    assert set(drawn.tolist()) == set(range(3, 9))


def test_randperm_is_a_permutation() -> None:
    drawn = torch.randperm(100, device="jax")
    assert drawn.dtype == torch.int64
    assert sorted(drawn.tolist()) == list(range(100))


def test_multinomial_without_replacement_never_repeats() -> None:
    weights = torch.tensor([[1.0, 2.0, 0.0, 3.0]]).to("jax").expand(50, 4)
    drawn = torch.multinomial(weights, 3)
    assert all(sorted(row) == [0, 1, 3] for row in drawn.tolist())


def test_dropout_scales_what_it_keeps() -> None:
    x = torch.ones(COUNT, device="jax", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    kept = y.detach() != 0
    assert abs(kept.float().mean().item() - 0.75) < 0.02
    torch.testing.assert_close(x.grad, torch.where(kept, 1 / 0.75, 0.0))
    out, mask = torch.native_dropout(x.detach(), 0.25, True)
    assert mask.dtype == torch.bool
    torch.testing.assert_close(out, torch.where(mask, 1 / 0.75, 0.0))


def test_new_bounds_compile_no_new_program() -> None:
    rule = find("uniform")
    run = Runner(rule, traced_parameters(rule))
    for bound in (1.5, 2.5, 3.5):
        run((_empty(), -bound, bound), {})
    assert len(run._cache) == 1


def test_generator_of_another_device_is_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(RuntimeError, match=r"generator.*torch\.manual_seed"):
        torch.ones(3, device="jax").uniform_(generator=generator)
    with pytest.raises(RuntimeError, match=r"generator.*torch\.manual_seed"):
        torch.poisson(torch.ones(3, device="jax"), generator=generator)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x.uniform_(2, 1),
        lambda x: x.normal_(0, -1),
        lambda x: x.bernoulli_(1.5),
        lambda x: x.exponential_(-1.0),
        lambda x: x.geometric_(0.0),
        lambda x: x.random_(5, 5),
        lambda x: torch.randint(5, 3, (2,), device="jax"),
    ],
)
def test_bad_parameters_raise(draw: object) -> None:
    with pytest.raises(RuntimeError):
        draw(torch.ones(3, device="jax"))


@pytest.mark.parametrize("bounds", [(0, 3), (-1, 1)])
def test_integers_that_are_no_truth_values_are_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        torch.empty(5, dtype=torch.bool, device="jax").random_(*bounds)


def test_integers_refuse_float_draws() -> None:
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.ones(3, dtype=torch.int64, device="jax").uniform_()


@pytest.mark.parametrize(
    "create",
    [
        lambda device: torch.randint(0, 300, (2,), dtype=torch.uint8, device=device),
        lambda device: torch.randint(2, 3, (2,), dtype=torch.bool, device=device),
        lambda device: torch.randint(-1, 2, (2,), out=torch.ones(2, device=device).byte()),
        lambda device: torch.linspace(-300, 300, 4, dtype=torch.int8, device=device),
        lambda device: torch.linspace(0, 300, 4, out=torch.ones(4, device=device).byte()),
        lambda device: torch.full((2,), math.inf, out=torch.ones(2, device=device).long()),
        lambda device: torch.randperm(300, out=torch.ones(300, device=device).byte()),
    ],
)
def test_numbers_that_the_dtype_does_not_hold_are_refused(create) -> None:
    with pytest.raises(RuntimeError):
        create("cpu")
    with pytest.raises(RuntimeError, match=r"out of bounds|without overflow"):
        create("jax")


def test_rrelu_writes_its_noise() -> None:
    x = torch.linspace(-1, 1, 101).to("jax")
    noise = torch.zeros_like(x)
    y = overload_of("aten::rrelu_with_noise")(x, noise, 0.1, 0.3, True)
    torch.testing.assert_close(y, x * noise)
    assert ((noise >= 0.1) & (noise <= 1)).all()


@pytest.mark.parametrize(
    "create",
    [
        lambda device: torch.randint(5, (2,), dtype=torch.complex64, device=device),
        lambda device: torch.randint_like(torch.ones(2, dtype=torch.complex64, device=device), 5),
        lambda device: torch.ones(2, dtype=torch.complex64, device=device).random_(),
        lambda device: torch.linspace(1j, 2, 3, dtype=torch.float32, device=device),
        lambda device: torch.logspace(1j, 2, 3, dtype=torch.int64, device=device),
        lambda device: torch.arange(3, dtype=torch.complex64, device=device),
        lambda device: torch.arange(0, 3, 2, dtype=torch.bool, device=device),
        lambda device: torch.randperm(3, dtype=torch.complex64, device=device),
        lambda device: torch.linspace(0, 1, 3, dtype=torch.bool, device=device),
        lambda device: torch.logspace(0, 1, 3, out=torch.ones(3, device=device) > 0),
        lambda device: torch.arange(3, out=torch.ones(3, device=device) > 0),
        lambda device: torch.tril_indices(2, 2, dtype=torch.float32, device=device),
        lambda device: torch.triu_indices(2, 2, dtype=torch.bool, device=device),
        lambda device: torch.bincount(torch.ones(3, dtype=torch.bool, device=device)),
        lambda device: torch.ones(3, device=device).bernoulli_(torch.ones(3, device=device).int()),
        lambda device: torch.bernoulli(
            torch.ones(3, device=device), out=torch.ones(3, device=device) + 1j
        ),
        lambda device: torch.normal(0.0, 1.0, (3,), out=torch.ones(3, device=device).int()),
        lambda device: torch.binomial(*[torch.ones(3, device=device).long()] * 2),
    ],
)
def test_complex_numbers_and_booleans_are_refused_where_the_cpu_refuses_them(create) -> None:
    with pytest.raises((RuntimeError, ValueError)) as on_cpu:
        create("cpu")
    with pytest.raises(on_cpu.type):
        create("jax")


def test_bounds_beyond_half_precision_raise_without_a_warning():
    x = torch.zeros(2, device="jax", dtype=torch.float16)
    for low, high in ((0, 65600), (0, 65511), (-65511, 0)):
        with pytest.raises(RuntimeError, match="out of bounds"):
            x.random_(low, high)
