"""Reductions, extrema, running sums and softmax against CPU PyTorch."""

import jax
import jax.numpy as jnp
import pytest
import torch

import calque  # noqa: F401  (registers the device)
from calque.ops import RULES
from calque.ops.reduce import converted
from tests.ops.conformance import cases, compare_with_cpu

NAMES = [
    "all",
    "amax",
    "amin",
    "aminmax",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "linalg.vector_norm",
    "log_softmax",
    "logcumsumexp",
    "logsumexp",
    "max",
    "mean",
    "median",
    "min",
    "mode",
    "nanmedian",
    "nanmean",
    "nansum",
    "norm",
    "prod",
    "softmax",
    "std",
    "std_mean",
    "sum",
    "var",
    "var_mean",
]


@pytest.mark.sampled(18)
@pytest.mark.parametrize(("op", "dtype", "mode"), cases(NAMES))
def test_agrees_with_cpu(op: object, dtype: torch.dtype, mode: str) -> None:
    compare_with_cpu(op, dtype, mode)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.max(1),
        lambda x: x.min(1),
        lambda x: x.argmax(1),
        lambda x: x.median(1),
        lambda x: x.nanmedian(1),
        lambda x: x.amax(1),
        lambda x: x.cummax(1),
        lambda x: x.cummin(1),
        lambda x: x.nansum(1),
    ],
)
def test_nan_is_treated_as_pytorch_does(program: object) -> None:
    x = torch.tensor([[1.0, torch.nan, 3.0, 2.0], [4.0, 2.0, torch.nan, torch.nan]])
    expected, actual = program(x), program(x.to("jax"))
    expected, actual = [t if isinstance(t, tuple) else (t,) for t in (expected, actual)]
    for a, b in zip(expected, actual, strict=True):
        torch.testing.assert_close(b.cpu(), a, equal_nan=True)


def test_sum_of_bfloat16_is_accumulated_in_float32() -> None:
    x = torch.full((4096,), 0.01, dtype=torch.bfloat16)
    assert abs(x.to("jax").sum().item() - x.float().sum().item()) < 0.5


def test_mean_of_integers_raises() -> None:
    with pytest.raises(RuntimeError, match="could not infer output dtype"):
        torch.ones(3, dtype=torch.int64).to("jax").mean()


def test_dimension_out_of_range_raises_index_error() -> None:
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.ones(3).to("jax").sum(2)


def test_reduction_of_nothing_raises() -> None:
    with pytest.raises(IndexError, match="non-zero size"):
        torch.ones(0, 3).to("jax").amax(0)
    with pytest.raises(RuntimeError, match="Expected reduction dim to be specified"):
        torch.ones(0).to("jax").max()


@pytest.mark.parametrize("p", [1, 2, 3.5, float("inf")])
@pytest.mark.parametrize("dim", [0, -1])
def test_renorm(p: float, dim: int) -> None:
    x = torch.randn(3, 4, 2) * 2
    for dtype in (torch.float32, torch.bfloat16, torch.complex64):
        given = x.to(dtype)
        got = torch.renorm(given.to("jax"), p, dim, 1.5).cpu()
        torch.testing.assert_close(got, torch.renorm(given, p, dim, 1.5))


LARGE = {
    "sum": (lambda x: x.sum(), torch.int8),
    "sum of bools over an axis": (lambda x: x.sum(0), torch.bool),
    "sum over an axis, kept": (lambda x: x.sum(1, keepdim=True), torch.uint8),
    "sum over two axes": (lambda x: x.unflatten(0, (-1, 1)).sum((0, 2)), torch.int32),
    "sum in a given dtype": (lambda x: x.sum(dtype=torch.int16), torch.int8),
    "product": (lambda x: x.prod(1), torch.int8),
    "count": (lambda x: x.count_nonzero(), torch.float32),
}


@pytest.mark.parametrize(("reduce", "dtype"), LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("shape", [(97, 13), (5, 201), (64, 64)])
def test_a_reduction_in_pieces_gives_what_one_in_a_whole_gives(reduce, dtype, shape, monkeypatch):
    monkeypatch.setattr(converted, "LARGE", 64)
    monkeypatch.setattr(converted, "PIECE", 256)
    x = torch.randint(0, 3, shape).to(dtype)
    found = reduce(x.to("jax"))
    assert found.dtype == reduce(x).dtype
    assert torch.equal(found.cpu(), reduce(x))


@pytest.mark.parametrize("name", ["sum", "prod", "count_nonzero"])
def test_integers_are_reduced_without_a_wider_copy(name: str) -> None:
    size = 2**26 + 5
    with jax.enable_x64(True):
        lowered = jax.jit(RULES[f"aten::{name}"].function).lower(
            jax.ShapeDtypeStruct((size,), jnp.int8)
        )
        used = lowered.compile().memory_analysis().temp_size_in_bytes
    assert used < size // 4


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_the_first_extremum_of_long_rows_is_found(name: str, dtype: torch.dtype) -> None:
    tied = torch.arange(3 * 70).reshape(3, 70).mul(37).remainder(11).to(dtype)
    cases = [tied, tied.t(), tied[:, :1].expand(3, 70)]
    if dtype.is_floating_point:
        missing = tied.clone()
        missing[1, 40] = missing[1, 60] = torch.nan
        cases += [missing, torch.full((2, 70), torch.inf, dtype=dtype)]
    for x in cases:
        for dim in (0, 1):
            found = getattr(x.to("jax"), name)(dim, keepdim=True)
            expected = getattr(x, name)(dim, keepdim=True)
            pairs = [(found, expected)] if "arg" in name else zip(found, expected, strict=True)
            for one, other in pairs:
                assert torch.equal(one.cpu().nan_to_num(99), other.nan_to_num(99))


def test_segments_are_reduced_by_either_name_of_an_extremum() -> None:
    def found(device: str, reduce: str) -> list[torch.Tensor]:
        x = torch.tensor([2.0, 1.0, 0.0, 5.0, 5.0, 4.0], device=device, requires_grad=True)
        lengths = torch.tensor([2, 0, 4], device=device)
        result = torch.segment_reduce(x, reduce, lengths=lengths)
        (grad,) = torch.autograd.grad(result.sum(), x)
        return [result.detach().cpu(), grad.cpu()]

    for reduce in ("amax", "max", "amin", "min"):
        for actual, expected in zip(found("jax", reduce), found("cpu", reduce), strict=True):
            assert torch.equal(actual, expected)


def _lengths(*lengths: int) -> dict[str, torch.Tensor]:
    return {"lengths": torch.tensor(lengths)}


@pytest.mark.parametrize(
    ("data", "runs"),
    [
        (torch.zeros(6), _lengths(2, 3)),
        (torch.zeros(6), _lengths(-2, 8)),
        (torch.zeros(6), {"lengths": torch.tensor([6.0])}),
        (torch.zeros(6), {"offsets": torch.tensor([0.0, 6.0])}),
        (torch.zeros(6, dtype=torch.int64), _lengths(2, 4)),
        (torch.zeros(6, dtype=torch.complex64), _lengths(2, 4)),
    ],
)
def test_segments_are_refused_as_on_the_cpu(
    data: torch.Tensor, runs: dict[str, torch.Tensor]
) -> None:
    messages = []
    for device in ("cpu", "jax"):
        moved = {name: x.to(device) for name, x in runs.items()}
        with pytest.raises(RuntimeError) as refused:
            torch.segment_reduce(data.to(device), "sum", **moved)
        messages.append(str(refused.value).splitlines()[0])
    assert messages[0] in messages[1]


def test_a_norm_of_integers_is_refused_with_every_dtype() -> None:
    x = torch.ones(3, dtype=torch.int8, device="jax")
    for norm in (torch.linalg.vector_norm, lambda x, dtype: torch._foreach_norm([x], dtype=dtype)):
        for dtype in (torch.float32, torch.int8):
            with pytest.raises(RuntimeError, match=r"linalg\.vector_norm"):
                norm(x, dtype=dtype)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (torch.float32, torch.float16),
        (torch.float64, torch.float32),
        (torch.bfloat16, torch.float16),
        (torch.float32, torch.complex64),
        (torch.complex64, torch.float32),
    ],
)
def test_the_dtype_of_a_norm_is_as_wide_as_its_input(
    given: torch.dtype, wanted: torch.dtype
) -> None:
    for device in ("cpu", "jax"):
        x = torch.ones(3, dtype=given, device=device)
        for norm in (torch.linalg.vector_norm, torch.norm):
            with pytest.raises(RuntimeError, match=r"linalg\.vector_norm"):
                norm(x, 2, dtype=wanted)
        with pytest.raises(RuntimeError):
            torch._foreach_norm([x], 2, dtype=wanted)


def test_sorters_are_checked_as_on_the_cpu() -> None:
    row = torch.tensor([3.0, 1.0, 2.0])
    for sorter in (torch.tensor([1, 2, 0]).int(), torch.tensor([1, 2]), torch.tensor([1, 2, 3])):
        messages = []
        for device in ("cpu", "jax"):
            with pytest.raises(RuntimeError) as refused:
                torch.searchsorted(row.to(device), row.to(device), sorter=sorter.to(device))
            messages.append(str(refused.value)[:60])
        assert messages[0] == messages[1] or messages[0] in messages[1]
    found = torch.searchsorted(row.to("jax"), row.to("jax"), sorter=torch.argsort(row).to("jax"))
    assert found.tolist() == [2, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int64])
@pytest.mark.parametrize("keepdim", [True, False])
def test_the_logarithm_of_sums_of_nothing(dtype: torch.dtype, keepdim: bool) -> None:
    for shape in ((0,), (0, 3), (3, 0)):
        x = torch.zeros(shape, dtype=dtype)
        found, want = (torch.logsumexp(y, 0, keepdim) for y in (x.to("jax"), x))
        torch.testing.assert_close(found.cpu(), want)


def test_the_logarithm_of_sums_over_no_named_dimension_is_that_of_the_cpu() -> None:
    def found(device: str) -> list[object]:
        x = torch.ones(2, 3, device=device)
        with pytest.raises(RuntimeError) as error:
            torch.logsumexp(x, dim=[])
        rest = torch.logsumexp(x, dim=[], keepdim=True), torch.logsumexp(x[0, 0], dim=[])
        return [str(error.value), *[(r.shape, round(r.sum().item(), 4)) for r in rest]]

    assert found("jax") == found("cpu")
