"""Numbers at the edge of a dtype, empty tensors and special values: what the CPU gives."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import calque

Device = torch.device
FLOATS = [300.0, -1.5, 70000.0, -70000.0, 3e9, -3e9, 1e19, math.inf, -math.inf, math.nan]
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16)
COMPLEX = [1j, 0j, 1 + 0j]


def _ctc(d: Device) -> list[torch.Tensor]:
    """Of nothing read, with and without labels."""
    x = torch.linspace(-1, 1, 45, device=d).reshape(5, 3, 3).requires_grad_()
    lengths = torch.tensor([0, 5, 0], device=d), torch.tensor([2, 2, 0], device=d)
    targets = torch.tensor([[1, 2], [2, 1], [1, 1]], device=d)
    loss = F.ctc_loss(x.log_softmax(2), targets, *lengths, reduction="none")
    return [loss, *torch.autograd.grad(loss.sum(), x)]


def _at_the_corner(d: Device) -> list[torch.Tensor]:
    """Gradients where a margin is met exactly, and of a unit that is at zero."""
    x = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, -0.5]], device=d, requires_grad=True)
    labels = torch.tensor([0, 1], device=d), torch.tensor([[0, -1, 1], [1, 0, -1]], device=d)
    losses = F.multi_margin_loss(x, labels[0]), F.multilabel_margin_loss(x, labels[1])
    grads = [torch.autograd.grad(loss, x)[0] for loss in losses]
    unit = torch.nn.RNN(2, 2, nonlinearity="relu", bias=False)
    torch.nn.utils.vector_to_parameters(torch.linspace(-1, 1, 8), unit.parameters())
    unit.to(d)(x.new_zeros(2, 1, 2).requires_grad_())[0].sum().backward()
    return [*grads, *(p.grad for p in unit.parameters() if p.grad is not None)]


def _greatest_divisors(d: Device) -> list[torch.Tensor]:
    x = torch.tensor([-12, 0, 7, -128, -128, 6, 100], dtype=torch.int8, device=d)
    y = torch.tensor([18, 0, 0, -128, 6, -128, 90], dtype=torch.int8, device=d)
    rows = x.reshape(7, 1), y.reshape(1, 1, 7)
    return [torch.gcd(x, y), torch.lcm(x, y), torch.lcm(*rows), torch.lcm(x[2:3], rows[1])]


def _factors_of_zero(d: Device) -> list[torch.Tensor]:
    """Products that a factor of zero drops, or does not, with NaN in them."""
    results = []
    for dtype in (torch.float32, torch.float64, torch.float16):
        for size in (3, 40):  # PyTorch has a separate loop for small batches of matrices
            nan = torch.full((2, size, size), math.nan, dtype=dtype, device=d)
            one = torch.ones(size, size, dtype=dtype, device=d)
            results += [
                torch.addmm(one, nan[0], nan[1], alpha=0),
                torch.addmm(nan[0], nan[0], one, alpha=0, beta=0),
                torch.addmv(one[0], nan[0], nan[0, 0], alpha=0),
                torch.addbmm(one, nan, nan, alpha=0),
                torch.baddbmm(nan, nan, nan, alpha=0, beta=0),
                torch.addr(one, nan[0, 0], nan[0, 0], alpha=0),
            ]
    return results


def _gradients_of_distances(d: Device) -> list[torch.Tensor]:
    rows = [[1.0, math.nan], [1.0, math.inf], [-math.inf, 1.0], [0.0, 1.0], [1.0, 1.0]]
    found = []
    for p in (0.0, 0.5, 1.0, 2.0, 3.0, math.inf):
        x = torch.tensor(rows, device=d, requires_grad=True)
        y = torch.tensor([[1.0, 2.0]], device=d, requires_grad=True)
        torch.cdist(x, y, p=p).sum().backward()
        found += [x.grad, y.grad]
    return found


def _searches(d: Device) -> list[torch.Tensor]:
    """In rows with NaN, and out of order, where the steps of the search decide."""
    rows = ([1.0, 2.0, math.nan], [math.nan, 1.0, 2.0, 3.0], [3.0, -0.0, 2.0, 0.0, 1.0], [])
    sought = torch.tensor([2.0, math.nan, math.inf, -math.inf, 0.0], device=d)
    return [
        search(sought, torch.tensor(row, device=d), right)
        for row in rows
        for right in (False, True)
        for search in (
            lambda v, row, right: torch.searchsorted(row, v, right=right),
            lambda v, row, right: torch.bucketize(v, row, right=right),
        )
    ]


def _beside_half(d: Device) -> list[torch.Tensor]:
    """Products and quotients of half precision and what it cannot hold."""
    whole = torch.tensor([70000, 2049, 2**40], device=d)
    results = []
    for dtype in (torch.float16, torch.bfloat16):
        half = torch.tensor([0.5, 3.0, 7.0], dtype=dtype, device=d)
        for x, y in (
            (whole, half),
            (half, whole),
            (whole[:1], half),
            (half, whole[1]),
            (half, 0.999),
        ):
            results += [x * y, x / y, torch.div(x, y, rounding_mode="trunc"), x // y]
        results += [torch.div(70000, half), torch.mul(0.999, half)]
    return results


def _limited_logits(d: Device) -> list[torch.Tensor]:
    """With limits of the tensor's dtype, and their gradients."""
    results = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for eps in (None, 1e-3, 1e-6, 0.6, -1.0, math.nan):
            values = [-0.0, 0.0, 1.0, 0.999, 0.5, 0.01, math.nan, -1.0, 2.0]
            x = torch.tensor(values, dtype=dtype, device=d, requires_grad=True)
            y = torch.logit(x, eps)
            results += [y, *torch.autograd.grad(y.sum(), x)]
    return results


CASES: dict[str, Callable[[Device], list[torch.Tensor]]] = {
    "floats to integers": lambda d: [
        torch.tensor(FLOATS, dtype=source, device=d).to(to)
        for source in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
        for to in INTEGERS
    ],
    "complex numbers to booleans": lambda d: [
        torch.tensor(COMPLEX, device=d).bool(),
        torch.tensor(COMPLEX, device=d).sum(dtype=torch.bool),
        torch.zeros(3, dtype=torch.bool, device=d).copy_(torch.tensor(COMPLEX, device=d)),
        torch.full((2,), 1j, dtype=torch.bool, device=d),
    ],
    "factors of zero": _factors_of_zero,
    "divisors": _greatest_divisors,
    "limits that cross": lambda d: [
        torch.logit(torch.tensor([0.2, 0.8, 0.5, math.nan, -1.0], device=d), eps)
        for eps in (0.1, 0.5, 0.7, 1.0)
    ],
    "nothing gathered": lambda d: [
        torch.gather(torch.ones(1, 1, device=d), 1, torch.ones(shape, dtype=torch.int64, device=d))
        for shape in ((2, 0), (0, 2), (0,))
    ],
    "variance of nothing": lambda d: [
        torch.var(torch.zeros(0, 3, device=d), dim=0, correction=-1),
        *torch.std_mean(torch.zeros(2, 0, device=d), dim=(0, 1), correction=-3),
    ],
    "Kaiser windows": lambda d: [
        torch.kaiser_window(n, periodic, beta=beta, dtype=dtype, device=d)
        for n, periodic, beta, dtype in (
            (5, True, 12.0, torch.float32),
            (4, False, 8.0, torch.float64),
            (1, True, 3.0, torch.float32),
            (0, True, 3.0, torch.float32),
        )
    ],
    "a weight of its own dtype": lambda d: [
        torch.lerp(
            torch.ones(2, device=d), torch.zeros(2, device=d), torch.tensor(0.25, dtype=w, device=d)
        )
        for w in (torch.float64, torch.float16, torch.complex64)
    ],
    "no windows": lambda d: [
        F.adaptive_avg_pool2d(torch.ones(2, 3, 4, 4, device=d), size) for size in (0, (0, 2))
    ],
    "no images": lambda d: [
        F.grid_sample(
            torch.ones(0, 3, 4, 4, device=d),
            torch.ones(0, 2, 2, 2, device=d),
            align_corners=False,
        )
    ],
    "a volume at infinity": lambda d: [
        F.grid_sample(
            torch.ones(1, 1, 2, 2, 2, device=d),
            torch.tensor([math.inf, math.nan, -1e30, 0.5], device=d).reshape(1, 1, 1, 4, 1)
            + torch.zeros(3, device=d),
            align_corners=False,
        )
    ],
    "nothing read": _ctc,
    "derivatives at a corner": _at_the_corner,
    "margins of NaN": lambda d: [
        F.multi_margin_loss(
            torch.tensor([[1.0, math.nan, 0.5], [math.inf, math.inf, 0.0]], device=d),
            torch.tensor([0, 1], device=d),
            reduction="none",
        ),
        F.multilabel_margin_loss(
            torch.tensor([[1.0, math.nan, 0.5], [math.inf, math.inf, 0.0]], device=d),
            torch.tensor([[0, -1, 0], [1, 2, -1]], device=d),
            reduction="none",
        ),
    ],
    "one sample": lambda d: [
        F.multi_margin_loss(
            torch.tensor([1.0, 2.0], device=d), torch.tensor(label, device=d), reduction="none"
        )
        for label in (0, [1])
    ],
    "dtypes of random numbers": lambda d: [
        torch.zeros_like(torch.normal(torch.ones(2, dtype=mean, device=d), std.to(d)))
        for mean in (torch.float32, torch.float64)
        for std in (torch.ones(2, dtype=torch.float64), torch.ones((), dtype=torch.int64))
    ],
    "distances of NaN": lambda d: [
        torch.cdist(
            torch.tensor([[1.0, math.nan], [1.0, math.inf], [0.0, 1.0]], device=d),
            torch.tensor([[1.0, math.inf], [0.0, 1.0]], device=d),
            p=p,
        )
        for p in (0.0, 0.5, 1.0, 2.0, 3.0, math.inf)
    ],
    "gradients of distances of NaN": _gradients_of_distances,
    "normal numbers that do not vary": lambda d: [
        torch.zeros(2, dtype=torch.complex64, device=d).normal_(1.0, 0.0),
        torch.normal(1.0, 0.0, (2,), dtype=torch.complex64, device=d),
        torch.normal(torch.ones(2, device=d), 0.0).to(torch.complex64),
    ],
    "powers that a byte does not hold": lambda d: [
        torch.logspace(0, 3, 4, dtype=dtype, device=d) for dtype in (torch.uint8, torch.int8)
    ],
    **{
        f"created in a {dtype}": lambda d, dtype=dtype: [
            torch.full((2,), 1.5, out=torch.zeros(2, dtype=dtype, device=d)),
            torch.ones(2, out=torch.zeros(2, dtype=dtype, device=d)),
            torch.eye(2, out=torch.zeros(2, 2, dtype=dtype, device=d)),
            torch.randint(1, 2, (2,), out=torch.zeros(2, dtype=dtype, device=d)),
            torch.bernoulli(torch.ones(2, device=d), out=torch.zeros(2, dtype=dtype, device=d)),
        ]
        for dtype in (torch.bool, torch.int64, torch.float16)
    },
    "a distance between two dtypes": lambda d: [
        torch.dist(
            torch.ones(3, dtype=torch.bfloat16, device=d), torch.tensor(3, dtype=other, device=d)
        )
        for other in (torch.float32, torch.float16, torch.int64)
    ],
    "the softmax of a number": lambda d: [
        torch.ops.aten._safe_softmax(torch.tensor(x, device=d), -1) for x in (1.0, -math.inf)
    ],
    "searches": _searches,
    "numbers beside half precision": _beside_half,
    "limited logits": _limited_logits,
    "factors of infinities": lambda d: [
        part
        for matrix in (
            [[math.inf, 1.0], [1.0, 2.0]],
            [[1.0, 0.0], [0.0, math.inf]],
            [[4.0, 1.0, 0.0], [1.0, math.inf, 1.0], [0.0, 1.0, 9.0]],
        )
        for part in torch.linalg.cholesky_ex(torch.tensor(matrix, device=d))
    ],
    "signs of running extrema": lambda d: [
        function(torch.tensor([0.0, -0.0, 0.0, -0.0, -0.0], device=d), 0).values.signbit()
        for function in (torch.cummax, torch.cummin)
    ],
    "a number flipped": lambda d: [torch.flip(torch.ones((), device=d), (-1,))],
}


X = torch.tensor([-1.5, -0.3, math.nan, math.inf, -math.inf, 0.0, 0.4, 2.0])
BEYOND: dict[str, Callable[[Device], torch.Tensor]] = {
    f"nan_to_num {numbers} of {dtype}": (
        lambda d, numbers=numbers, dtype=dtype: torch.nan_to_num(X.to(d, dtype), *numbers)
    )
    for dtype in (torch.float32, torch.float16)
    for numbers in ((1e300,), (-math.inf, math.nan, 0.5), (None, -math.inf, 2.5), (0, 1e9, -1e9))
}
BEYOND |= {
    "a power close to zero": lambda d: X.to(d) ** 1e-300,
    "a root of order 1e300": lambda d: F.lp_pool1d(X[:2].to(d)[None], 1e300, 2),
    "a step beyond the dtype": lambda d: torch.arange(0, 1, 1e300, device=d),
    "a threshold of bool": lambda d: F.softshrink(X.to(d), True),
    "a number chosen for half precision": lambda d: torch.where(X.to(d) > 0, X.half().to(d), 7e4),
    "a fill of half precision": lambda d: torch.full((), 7e4, dtype=torch.half, device=d),
    "a fill of another half": lambda d: torch.zeros((), dtype=torch.bfloat16, device=d).fill_(1e39),
}
"""Parameters that the dtype of the tensor cannot hold."""


@pytest.mark.parametrize("name", BEYOND)
def test_numbers_beyond_a_dtype_are_those_of_the_cpu(name: str) -> None:
    expected, found = BEYOND[name](torch.device("cpu")), BEYOND[name](torch.device("jax"))
    torch.testing.assert_close(found.cpu(), expected, equal_nan=True)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_edge_values_are_those_of_the_cpu(case: Callable[[Device], list[torch.Tensor]]) -> None:
    expected, found = case(torch.device("cpu")), case(torch.device("jax"))
    for want, got in zip(expected, found, strict=True):
        torch.testing.assert_close(got.cpu(), want, equal_nan=True)


REFUSED: dict[str, tuple[type[Exception], Callable[[Device], object]]] = {
    "a renormalization of no order": (RuntimeError, lambda d: X[None].to(d).renorm(math.nan, 0, 1)),
    "a renormalization to NaN": (RuntimeError, lambda d: X[None].to(d).renorm(2, 0, math.nan)),
    "distances of no order": (
        RuntimeError,
        lambda d: torch.cdist(*[torch.ones(2, 2, device=d)] * 2, p=math.nan),
    ),
    "a margin beyond the dtype": (
        RuntimeError,
        lambda d: F.multi_margin_loss(
            torch.ones(2, 3, device=d), torch.tensor([0, 1], device=d), margin=1e300
        ),
    ),
    "a limit of logit beyond the dtype": (RuntimeError, lambda d: torch.logit(X.to(d), eps=1e300)),
    "a scale of softplus beyond the dtype": (RuntimeError, lambda d: F.softplus(X.to(d), 1e300)),
    "a quotient of integers": (
        RuntimeError,
        lambda d: torch.addcdiv(torch.ones(2, device=d), *[torch.ones(2, device=d).int()] * 2),
    ),
    "a distance of booleans": (
        RuntimeError,
        lambda d: torch.dist(*[torch.ones(2, device=d) > 0] * 2),
    ),
    "no axis": (IndexError, lambda d: torch.transpose_copy(torch.ones((), device=d), 1, -2)),
    "a vector for a number": (
        RuntimeError,
        lambda d: torch.ones((), device=d).index_add(
            0, torch.zeros(1, dtype=torch.int64, device=d), torch.ones(1, device=d)
        ),
    ),
    "five axes": (
        RuntimeError,
        lambda d: F.fractional_max_pool2d(torch.ones(1, 1, 3, 9, 9, device=d), 3, (2, 3)),
    ),
    "four axes": (
        RuntimeError,
        lambda d: F.max_unpool1d(
            torch.ones(1, 1, 2, 3, device=d),
            torch.zeros(1, 1, 2, 3, dtype=torch.int64, device=d),
            kernel_size=2,
        ),
    ),
    "a row too short": (
        RuntimeError,
        lambda d: torch.ones(2, 3, device=d).index_reduce(
            0, torch.zeros(1, dtype=torch.int64, device=d), torch.ones(1, 1, device=d), "amin"
        ),
    ),
    "fewer reflectors": (
        RuntimeError,
        lambda d: torch.ormqr(*(torch.ones(s, device=d) for s in ((4, 3), (2,), (4, 3)))),
    ),
    "one weight for all": (
        RuntimeError,
        lambda d: torch.histogramdd(
            torch.ones(5, 2, device=d), [2, 2], weight=torch.ones((), device=d)
        ),
    ),
    "more weights than elements": (
        RuntimeError,
        lambda d: F.binary_cross_entropy(
            torch.ones(3, device=d), torch.ones(3, device=d), weight=torch.ones(2, 3, device=d)
        ),
    ),
    "weights of another dtype": (
        RuntimeError,
        lambda d: F.embedding_bag(
            torch.zeros(1, 2, dtype=torch.int64, device=d),
            torch.ones(2, 2, device=d),
            per_sample_weights=torch.ones(1, 2, dtype=torch.float64, device=d),
            mode="sum",
        ),
    ),
    "no axis to flip": (IndexError, lambda d: torch.flip(torch.ones((), device=d), (1,))),
    "an axis twice": (RuntimeError, lambda d: torch.flip(torch.ones((), device=d), (0, 0))),
    **{
        f"no index for a number, {name}": (
            IndexError,
            lambda d, name=name, more=more: getattr(torch, name)(
                torch.ones((), device=d),
                0,
                torch.zeros(0, dtype=torch.int64, device=d),
                torch.ones((), device=d),
                *more,
            ),
        )
        for name, more in (("index_add", ()), ("index_copy", ()), ("index_reduce", ("amax",)))
    },
    "more targets than inputs": (
        RuntimeError,
        lambda d: F.soft_margin_loss(torch.ones(2, device=d), torch.ones(3, 2, device=d)),
    ),
    "one class": (
        RuntimeError,
        lambda d: F.multilabel_margin_loss(torch.ones((), device=d), torch.tensor(1, device=d)),
    ),
}


@pytest.mark.parametrize(("error", "call"), REFUSED.values(), ids=REFUSED)
def test_shapes_that_the_cpu_refuses(
    error: type[Exception], call: Callable[[Device], object]
) -> None:
    for device in ("cpu", "jax"):
        try:
            found = call(torch.device(device))
        except error:
            continue
        pytest.fail(f"{device} returned {found}")


def test_a_dtype_that_jax_has_not_is_named() -> None:
    half = torch.ones(2, dtype=torch.float16, device="jax")
    for call in (torch.complex, torch.polar):
        with pytest.raises(
            TypeError, match="the jax device does not support dtype torch.complex32"
        ):
            call(half, half)
    for view in (torch.view_as_complex, lambda x: x.view(torch.complex32)):
        with pytest.raises(
            TypeError, match="the jax device does not support dtype torch.complex32"
        ):
            view(half)


def test_limits_write_to_their_own_dtype() -> None:
    x = torch.tensor([1.0, 5.0], device="jax")
    for write in (torch.clamp, torch.clamp_max, torch.ops.aten.hardtanh.out):
        out = torch.zeros(2, dtype=torch.float64, device="jax")
        limits = (2,) if write is torch.clamp_max else (0, 2)
        with pytest.raises(RuntimeError, match="dtype"):
            write(x, *limits, out=out)
        assert out.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (3, 3, 1), (1, 2, 2, 2)])
def test_unique_slices_lie_one_after_the_other(shape: tuple[int, ...]) -> None:
    x = torch.arange(24).fmod(5)[: math.prod(shape)].reshape(shape)
    for function in (torch.unique, torch.unique_consecutive):
        for dim in range(-1, len(shape)):
            expected, found = function(x, dim=dim), function(x.to("jax"), dim=dim)
            assert found.stride() == expected.stride()
            assert torch.equal(found.cpu(), expected)


def test_an_empty_batch_has_empty_gradients() -> None:
    images, volumes = torch.ones(0, 3, 6, 6), torch.ones(0, 3, 6, 6, 6)
    calls: list[tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]] = [
        (images, lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), (2, 2))),
        (volumes, lambda x: F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), (2, 2, 2))),
        (images, lambda x: F.adaptive_max_pool2d(x, 4)),
        (images, lambda x: F.fractional_max_pool2d(x, 2, output_size=2)),
        (images[0:0, 0], lambda x: F.scaled_dot_product_attention(x, x, x)),
    ]
    for host, call in calls:
        for device in ("cpu", "jax"):
            x = host.to(device).requires_grad_()
            found = call(x)
            assert torch.autograd.grad(found.sum(), x)[0].shape == host.shape, host.shape
            assert not len(found)


def test_out_says_in_which_dtype_is_counted() -> None:
    x = torch.tensor([[1.7, 2.6], [3.5, -4.9]])
    for name in ("sum", "prod", "cumsum", "cumprod"):
        for dtype in (torch.int64, torch.uint8, torch.float64, torch.float16):
            found = []
            for device in ("cpu", "jax", "jax", "jax"):  # later calls take the fast path
                shape = (2, 2) if "cum" in name else (2,)
                out = torch.empty(shape, dtype=dtype, device=device)
                getattr(torch, name)(x.to(device), 0, out=out)
                found.append(out.tolist())
            for row in map(torch.tensor, found):
                torch.testing.assert_close(row, torch.tensor(found[0]), rtol=1e-3, atol=0)
    for truth in (torch.any, torch.all):
        out = torch.empty(2, dtype=torch.uint8, device="jax")
        assert truth(x.to("jax"), 0, out=out).tolist() == [1, 1]


def test_integers_to_powers_of_more_than_six_bits() -> None:
    x = torch.tensor([3, 3, 2, -1, 7, -7, 0, 5], dtype=torch.int64)
    y = torch.tensor([100, 64, 2**63 - 1, 65, 127, 2**40 + 1, 64, -1])
    for dtype in (torch.int64, torch.int32, torch.uint8):
        for power in (
            lambda x, y: x**y,
            lambda x, y: x[:, None] ** y,
            lambda x, y: 3 ** y.abs(),
            lambda x, y: x**100,
            lambda x, y: x.clone().pow_(127),
        ):
            want = power(x.to(dtype), y.to(dtype))
            assert torch.equal(power(x.to("jax", dtype), y.to("jax", dtype)).cpu(), want)


def test_nan_with_a_sign_is_above_all_numbers() -> None:
    """It is what x86 gives for 0 / 0."""
    x = -torch.tensor([1.0, math.nan, 2.0, math.nan, -3.0])
    assert x[1].view(torch.int32) < 0
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        y = x.to("jax", dtype)
        assert y.topk(3)[0].isnan().tolist() == [True, True, False]
        assert y.topk(3)[1].tolist()[2] == 4
        assert y.unique()[:3].tolist() == [-2, -1, 3]
        assert torch.unique(y, return_inverse=True)[1].sort()[0].tolist() == [0, 1, 2, 3, 4]


UNSIGNED: dict[str, Callable[[Device], object]] = {
    "full": lambda d: torch.full((2,), 2**63, device=d, dtype=torch.float32),
    "full of unsigned": lambda d: torch.full((2,), 2**63 + 5, device=d, dtype=torch.uint64),
    "full of integers": lambda d: torch.full((2,), 2**63, device=d),
    "scalar_tensor": lambda d: torch.scalar_tensor(2**63, device=d),
    "fill_": lambda d: torch.zeros(3, device=d)[1:].fill_(2**63),
    "fill_ of integers": lambda d: torch.tensor([1, 2], device=d).fill_(2**63),
    "pad": lambda d: F.pad(torch.ones(2, device=d), (1, 1), value=2**63),
    "add": lambda d: [torch.ones(2, device=d) + 2**63 for _ in range(4)],
    "add to integers": lambda d: torch.tensor([1, -1], device=d) + (2**63 + 7),
    "add to booleans": lambda d: torch.tensor([True], device=d) + 2**63,
    "add to bytes": lambda d: torch.tensor([1], dtype=torch.uint8, device=d) + (2**63 + 1),
    "add to complex": lambda d: torch.tensor([1j], device=d) + 2**63,
    "mul_": lambda d: [torch.ones(2, device=d).mul_(2**63 + i * 2**61) for i in range(4)],
    "lt": lambda d: torch.tensor([1.0, 1e20], device=d) < 2**63,
    "lt of integers": lambda d: torch.tensor([1, -1], device=d) < 2**63,
    "pow": lambda d: torch.tensor([1.0, 2.0], device=d) ** 2**63,
    "rpow": lambda d: (2**63) ** torch.tensor([1.0, 0.5], device=d),
    "pow of integers": lambda d: torch.tensor([1, 2], device=d) ** 2**63,
    "where": lambda d: torch.where(torch.tensor([True, False], device=d), 2**63, 1.0),
    "where of integers": lambda d: torch.where(torch.tensor([True], device=d), 2**63, 1),
    "clamp": lambda d: torch.tensor([1.0, 1e20], device=d).clamp(max=2**63),
    "hardshrink": lambda d: F.hardshrink(torch.tensor([1.0, 1e20], device=d), 2**63),
    "addmm": lambda d: torch.addmm(*[torch.ones(2, 2, device=d)] * 3, alpha=2**63),
    "norm": lambda d: torch.linalg.vector_norm(torch.ones(1, device=d), 2**63),
    "foreach": lambda d: torch._foreach_add([torch.ones(1, device=d)] * 2, [2**63, 1]),
    "arange": lambda d: torch.arange(2**63, 2**63 + 2, device=d),
    "arange of floats": lambda d: torch.arange(
        2**63, 2**63 + 2**13, 2**12, device=d, dtype=torch.float32
    ),
    "renorm": lambda d: torch.renorm(torch.ones(2, 2, device=d), 2, 0, 2**63),
}


@pytest.mark.parametrize("name", UNSIGNED)
def test_integers_beyond_int64_are_unsigned(name: str) -> None:
    found = []
    for device in (torch.device("cpu"), torch.device("jax")):
        try:
            results = UNSIGNED[name](device)
        except RuntimeError as error:
            found.append(str(error))
            continue
        results = results if isinstance(results, list | tuple) else [results]
        found.append([(one.dtype, one.cpu().tolist()) for one in results])
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_programs_take_integers_beyond_int64_as_unsigned(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 2**63, x * (2**63 + 5), x < 2**63, torch.full_like(x.float(), 2**63)

    x = torch.tensor([1, 2, -3], dtype=dtype)
    for run in (calque.jit(program), torch.compile(program, backend="calque")):
        for got, want in zip(run(x.to("jax")), program(x), strict=True):
            assert torch.equal(got.cpu(), want)
