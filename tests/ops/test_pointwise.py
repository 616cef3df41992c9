"""Arithmetic, comparison, rounding, special functions and activations against CPU PyTorch."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import calque
from tests.ops.conformance import cases, compare_with_cpu

NAMES = [
    "abs",
    "add",
    "addcdiv",
    "addcmul",
    "angle",
    "atan2",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_not",
    "clamp",
    "clamp_max",
    "copysign",
    "deg2rad",
    "digamma",
    "div",
    "eq",
    "erfinv",
    "exp",
    "expm1",
    "float_power",
    "floor",
    "floor_divide",
    "fmod",
    "frac",
    "frexp",
    "gcd",
    "ge",
    "heaviside",
    "hypot",
    "igamma",
    "isin",
    "isnan",
    "lcm",
    "lerp",
    "lgamma",
    "log1p",
    "logaddexp",
    "logical_and",
    "logit",
    "maximum",
    "mul",
    "nan_to_num",
    "neg",
    "nextafter",
    "nn.functional.celu",
    "nn.functional.elu",
    "nn.functional.gelu",
    "nn.functional.glu",
    "nn.functional.hardshrink",
    "nn.functional.hardsigmoid",
    "nn.functional.hardswish",
    "nn.functional.hardtanh",
    "nn.functional.leaky_relu",
    "nn.functional.logsigmoid",
    "nn.functional.mish",
    "nn.functional.prelu",
    "nn.functional.relu",
    "nn.functional.relu6",
    "nn.functional.silu",
    "nn.functional.softplus",
    "nn.functional.softshrink",
    "nn.functional.threshold",
    "polygamma",
    "pow",
    "reciprocal",
    "remainder",
    "round",
    "rsub",
    "sgn",
    "sigmoid",
    "sign",
    "signbit",
    "sinc",
    "sqrt",
    "sub",
    "tanh",
    "where",
    "xlogy",
    "special.entr",
    "special.erfcx",
    "special.ndtri",
    "special.xlog1py",
    "special.zeta",
    "special.hermite_polynomial_h",
    "special.shifted_chebyshev_polynomial_t",
]

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]
HALVES = {torch.complex32, getattr(torch, "bcomplex32", None)}
"""Complex numbers of half precision, those of bfloat16 from PyTorch 2.15 on."""

OPERANDS = st.one_of(
    st.tuples(st.sampled_from(DTYPES), st.sampled_from([(), (1,), (2, 3)])),
    st.sampled_from([True, 2, 2.5, 1 + 1j]),
)


@pytest.mark.sampled(35)
@pytest.mark.parametrize(("op", "dtype", "mode"), cases(NAMES))
def test_agrees_with_cpu(op: object, dtype: torch.dtype, mode: str) -> None:
    compare_with_cpu(op, dtype, mode)


def _operand(description: object, device: str) -> object:
    if isinstance(description, tuple):
        dtype, shape = description
        return torch.ones(shape, dtype=dtype).to(device)
    return description


@settings(max_examples=40, deadline=None)
@given(left=OPERANDS.filter(lambda x: isinstance(x, tuple)), right=OPERANDS)
def test_dtype_of_a_product_is_torch_result_type(left: object, right: object) -> None:
    host = [_operand(x, "cpu") for x in (left, right)]
    device = [_operand(x, "jax") for x in (left, right)]
    expected = torch.result_type(*host)
    assume(expected not in HALVES)  # JAX does not have these
    assert (device[0] * device[1]).dtype == expected
    assert (device[0] == device[1]).dtype == torch.bool
    quotient = (host[0] / host[1]).dtype
    assert (device[0] / device[1]).dtype == quotient


@settings(max_examples=40, deadline=None)
@given(
    target=st.sampled_from(DTYPES),
    source=OPERANDS,
    name=st.sampled_from(["add_", "mul_", "div_"]),
)
def test_in_place_cast_is_refused_where_pytorch_refuses(
    target: torch.dtype, source: object, name: str
) -> None:
    kind = source[0] if isinstance(source, tuple) else source
    if isinstance(kind, complex) or kind == torch.complex64:
        assume(torch.result_type(torch.ones(1, dtype=target), 1j) not in HALVES)
    outcomes = []
    for device in ("cpu", "jax"):
        tensor = torch.ones((2, 3), dtype=target).to(device)
        try:
            outcomes.append(getattr(tensor, name)(_operand(source, device)).dtype)
        except RuntimeError as error:
            outcomes.append(str(error).split("\n")[0])
    assert outcomes[0] == outcomes[1]


def test_in_place_broadcast_is_refused() -> None:
    x = torch.ones(3).to("jax")
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x.add_(torch.ones(2, 3).to("jax"))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x - x,
        lambda x: -x,
        lambda x: torch.rsub(x, True),
    ],
)
def test_bool_arithmetic_raises(program: object) -> None:
    with pytest.raises(RuntimeError, match="bool tensor"):
        program(torch.ones(2, dtype=torch.bool).to("jax"))


def test_integers_refuse_negative_powers_and_float_alpha() -> None:
    x = torch.ones(2, dtype=torch.int64).to("jax")
    with pytest.raises(RuntimeError, match="negative integer powers"):
        x**-1
    with pytest.raises(RuntimeError, match="alpha must not be a floating point"):
        torch.add(x, x, alpha=0.5)


def test_number_is_not_rounded_to_half_precision() -> None:
    x = torch.arange(1, 257).to(torch.bfloat16)
    torch.testing.assert_close((x.to("jax") * 0.999).cpu(), x * 0.999, rtol=0, atol=0)


def test_half_precision_rounds_once() -> None:
    x = torch.linspace(-4, 4, 101).to(torch.bfloat16)
    for name in ("gelu", "silu", "mish", "softplus"):
        function = getattr(torch.nn.functional, name)
        torch.testing.assert_close(function(x.to("jax")).cpu(), function(x), rtol=8e-3, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_functions_of_all_numbers_of_half_precision(dtype: torch.dtype) -> None:
    numbers = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    x = numbers[(numbers.abs() < 40) & (numbers.abs() > 1e-4)]
    eps = torch.finfo(dtype).eps
    for name in ("exp2", "expm1", "log2", "log10", "log1p", "tan", "asinh", "acosh", "atanh"):
        function = getattr(torch, name)
        exact = function(x.double()).to(dtype)
        found = function(x.to("jax")).cpu()
        torch.testing.assert_close(found, exact, rtol=eps, atol=1e-5, equal_nan=True, msg=name)


@pytest.mark.parametrize("mode", ["trunc", "floor"])
def test_rounded_division_of_signed_operands(mode: str) -> None:
    x = torch.tensor([7.0, -7.0, 7.0, -7.0, 1.0, -0.0, 5.0])
    y = torch.tensor([2.0, 2.0, -2.0, -2.0, 0.0, 3.0, torch.inf])
    expected = torch.div(x, y, rounding_mode=mode)
    actual = torch.div(x.to("jax"), y.to("jax"), rounding_mode=mode)
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)


def test_shift_by_all_bits() -> None:
    x = torch.tensor([-5, 5], dtype=torch.int32)
    for count in (0, 31, 32, 40):
        assert torch.equal((x.to("jax") >> count).cpu(), x >> count)
        assert torch.equal((x.to("jax") << count).cpu(), x << count)


def test_in_place_relatives_under_other_names() -> None:
    x = torch.tensor([3, 5]).to("jax")
    x <<= 2
    x >>= 1
    assert x.tolist() == [6, 10]


def test_dtype_without_the_operation_is_named() -> None:
    x = torch.ones(2, dtype=torch.complex64).to("jax")
    with pytest.raises(NotImplementedError, match="ComplexFloat"):
        torch.lt(x, x)


REFUSED = {
    "clamp_": lambda x: x.clamp_(-300, 300),
    "add": lambda x: torch.add(x, x, alpha=300),
    "hardtanh": lambda x: torch.nn.functional.hardtanh(x, -300, 300),
    "index_add": lambda x: x.index_add(0, torch.tensor([0], device=x.device), x[:1], alpha=300),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=300),
    "shift_of_booleans": lambda x: x.bool() << x.bool(),
    "power_of_booleans": lambda x: x.bool() ** x.bool(),
    "isin_booleans": lambda x: torch.isin(x, True),
    "a_boolean_less_booleans": lambda x: torch.rsub(x.bool(), True),
    "another_dtype": lambda x: torch.sum(
        x, dtype=torch.int32, out=torch.zeros((), dtype=torch.int64, device=x.device)
    ),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_the_cpu_refuses_is_refused_and_writes_nothing(call):
    found = []
    for device in ("cpu", "jax"):
        x = torch.tensor([1, 2, 3], dtype=torch.int8, device=device)
        try:
            found.append(call(x).tolist())  # PyTorch 2.15 accepts wide limits
        except (RuntimeError, TypeError, NotImplementedError) as error:
            found.append(type(error))
        assert x.tolist() == [1, 2, 3]
    assert found[0] == found[1]


LIMITS = [(-1, 2), (-1, 300), (-300, None), (300, None), (None, -1), (None, 300), (-3, -2)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64], ids=str)
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_limits_beyond_a_dtype_are_those_of_pytorch(limits, dtype):
    """Releases differ: before 2.15 limits are refused, and -1 is 255 in bytes."""
    hardtanh = torch.nn.functional.hardtanh
    calls = [lambda x: x.clamp(*limits)]
    if None not in limits:
        calls += [lambda x: hardtanh(x, *limits), calque.jit(lambda x: x.clamp(*limits))]
    for call in calls:
        found = []
        for device in ("cpu", "jax"):
            try:
                found.append(call(torch.tensor([1, 126, 3], dtype=dtype, device=device)).tolist())
            except RuntimeError as error:
                found.append(type(error))
        assert found[0] == found[1]


def test_a_sequence_keeps_the_shape_of_its_out():
    for device in ("cpu", "jax"):
        out = torch.zeros(2, 3, device=device)
        assert torch.linspace(0, 5, 6, out=out) is out
        assert out.shape == (2, 3)
        assert out.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_cpu_tensor_that_was_copied_can_be_resized():
    x = torch.arange(4.0)
    y = x.to("jax")
    x.resize_(8).zero_()
    assert y.tolist() == [0, 1, 2, 3]


def test_booleans_are_limited_by_one_tensor_only() -> None:
    b = torch.tensor([True, False])
    for device in ("cpu", "jax"):
        x = b.to(device)
        assert x.clamp(min=x).tolist() == torch.clamp_max(x, x).tolist() == [True, False]
        with pytest.raises(NotImplementedError, match="clamp_cpu.*Bool"):
            x.clamp(x, x)
        for bounds in ({"min": True}, {"max": False}, {"min": False, "max": True}):
            with pytest.raises(NotImplementedError, match="clamp_.*scalar_cpu.*Bool"):
                x.clamp(**bounds)
        assert x.clamp(min=0, max=1).dtype == torch.int64


def test_alpha_is_rounded_to_the_dtype_of_the_operands() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.bfloat16, torch.float16):
        x, y = (torch.randn(1024, generator=generator).to(dtype) for _ in range(2))
        for combine in (torch.add, torch.sub):
            found = combine(x.to("jax"), y.to("jax"), alpha=0.3).cpu()
            assert (found != combine(x, y, alpha=0.3)).sum() < 8  # of 1024; 240 with a float's 0.3


UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
PAIRED = (torch.uint8, torch.int8, torch.int64, torch.bool, *UNSIGNED, torch.complex64)


@pytest.mark.parametrize(
    "call", [torch.add, torch.eq, torch.maximum, torch.div, lambda x, y: torch.cat([x, y])]
)
def test_wide_unsigned_integers_have_a_common_dtype_with_floats_only(call):
    for unsigned in UNSIGNED:
        x = torch.ones(2, dtype=unsigned, device="jax")
        for dtype in PAIRED:
            y = torch.ones(2, dtype=dtype, device="jax")
            if dtype != unsigned:
                for pair in ((x, y), (y, x)):
                    with pytest.raises(RuntimeError, match="Promotion for uint16|for complex"):
                        call(*pair)
    with pytest.raises(RuntimeError, match="attempted to promote Bool and UInt16"):
        torch.ones(2, dtype=torch.bool, device="jax") + torch.ones(
            (), dtype=torch.uint16, device="jax"
        )
    x = torch.tensor([1, 2], dtype=torch.uint16, device="jax")
    assert (x + torch.ones(2, device="jax")).dtype == torch.float32
    assert (x + torch.ones((), dtype=torch.int64, device="jax")).dtype == torch.uint16
    assert (x + 1).dtype == torch.uint16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ldexp_scales_without_the_power_that_overflows(dtype):
    numbers = torch.tensor([1e-3, 3.0, math.nan, math.inf, 0.0, -0.0], dtype=dtype)
    exponents = torch.tensor([20, 200, -200, 2**33 + 1, -(2**62), 2**31])[:, None].expand(6, 6)
    numbers = numbers.expand(6, 6)
    found = torch.ldexp(numbers.to("jax"), exponents.to("jax")).cpu()
    torch.testing.assert_close(
        found, torch.ldexp(numbers, exponents), rtol=0, atol=0, equal_nan=True
    )


def test_ldexp_refuses_what_the_cpu_refuses():
    x = torch.ones(2, device="jax")
    with pytest.raises(NotImplementedError, match="ldexp_cpu_exp"):
        torch.ldexp(x, x > 0)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x.ldexp_(torch.ones(2, 2, device="jax", dtype=torch.int64))
    assert torch.ldexp(x, x).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_float_of_eight_bits_has_no_complex_dtype(dtype):
    x = torch.ones(2, device="jax").to(dtype)
    with pytest.raises(RuntimeError, match="Unknown Complex ScalarType for Float8"):
        x + 1j


def test_complex_numbers_have_no_absolute_value_in_place():
    for x in (torch.tensor([3 + 4j], device="jax"), torch.tensor([3 + 4j])):
        for change in (x.abs_, lambda x=x: torch._foreach_abs_([x])):
            with pytest.raises(RuntimeError, match="In-place abs is not supported for complex"):
                change()
        assert x.cpu().tolist() == [3 + 4j]
