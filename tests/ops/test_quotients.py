"""Integer division by zero raises like the CPU, where a value is there to look at."""

from collections.abc import Callable

import pytest
import torch

import calque

CALLS = [
    lambda x, y: x // y,
    lambda x, y: x % y,
    lambda x, y: x.clone().remainder_(y),
    lambda x, y: torch.fmod(x, y),
    lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    lambda x, y: torch.div(x, y, rounding_mode="floor", out=torch.empty_like(x)),
    lambda x, y: 7 // y,
    lambda x, y: 7 % y,
    lambda x, y: x // 0,
    lambda x, y: x % 0,
    lambda x, y: torch.fmod(x, 0),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_division_by_an_integer_zero(call, dtype):
    x, y = torch.tensor([3, 4], dtype=dtype), torch.tensor([1, 0], dtype=dtype)
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            call(x.to(device), y.to(device))


def test_what_is_no_division_by_an_integer_zero():
    x = torch.tensor([3, 4], device="jax")
    zero = torch.zeros(2, device="jax", dtype=torch.int64)
    assert (x / zero).isinf().all()
    assert torch.div(x, zero, rounding_mode=None).isinf().all()
    assert (x.float() // zero).isinf().all()
    assert (x % zero.float()).isnan().all()
    assert (x[:0] // zero[:0]).shape == (0,)
    assert (x[:0] % 0).shape == (0,)


def test_a_program_does_not_raise():
    zero = torch.zeros(2, device="jax", dtype=torch.int64)
    assert calque.jit(lambda x: x // zero)(zero + 1).shape == (2,)


@pytest.mark.parametrize("mode", ["trunc", "floor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_multiple_of_a_single_divisor(mode: str, dtype: torch.dtype) -> None:
    for divisor in (41.0, 47.0, 61.0):
        x = (torch.arange(-40, 40) * divisor).to(dtype)
        found = torch.div(x.to("jax"), divisor, rounding_mode=mode).cpu()
        assert found.equal(torch.div(x, divisor, rounding_mode=mode))


@pytest.mark.parametrize("mode", ["trunc", "floor"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_half_by_a_single_divisor_is_rounded_once(mode: str, dtype: torch.dtype) -> None:
    x = torch.arange(-3000, 3000).to(dtype)
    for divisor in (7, 41, 0.1, torch.tensor([7.0], dtype=dtype), torch.tensor(0.1)):
        found = torch.div(x.to("jax"), on_device(divisor), rounding_mode=mode).cpu()
        assert found.equal(torch.div(x, divisor, rounding_mode=mode)), divisor
    found = torch.div(x.to("jax"), torch.full_like(x, 7).to("jax"), rounding_mode=mode).cpu()
    assert found.equal(torch.div(x, torch.full_like(x, 7), rounding_mode=mode))


def on_device(value: float | torch.Tensor) -> float | torch.Tensor:
    return value.to("jax") if isinstance(value, torch.Tensor) else value


DIVISIONS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "floordiv": lambda x, n: x // n,
    "mod": lambda x, n: x % n,
    "reflected": lambda x, n: n % x,
    "trunc": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "floor": lambda x, n: torch.div(x, n, rounding_mode="floor"),
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "in place": lambda x, n: x.clone().remainder_(n),
    "made on the host": lambda x, n: torch.floor_divide(x, torch.tensor(n)),
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_a_program_does_not_divide_integers_by_the_number_zero(name: str) -> None:
    divide, seen = DIVISIONS[name], []
    for device, run in (("cpu", divide), ("jax", calque.jit(divide))):
        found, x = [], torch.tensor([4, 5], device=device)
        for n in (3, 0, 2, 0):
            try:
                found.append(run(x, n).tolist())
            except RuntimeError as error:
                found.append(str(error))
        seen.append(found)
    assert seen[0] == seen[1]
