"""ONNX converters of pointwise operators: the name of an ONNX operator, or a function."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from calque.convert.onnx_calls import OnnxCall, kind_of

UNARY = {
    **{name: name.title() for name in ("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh")},
    **{name: name.title() for name in ("ceil", "cos", "cosh", "erf", "exp", "floor", "log", "neg")},
    **{name: name.title() for name in ("reciprocal", "relu", "sigmoid", "sin")},
    **{name: name.title() for name in ("sinh", "sqrt", "tan", "tanh")},
    "hardswish": "HardSwish",
    "isnan": "IsNaN",
    "isinf": "IsInf",
    "logical_not": "Not",
    "bitwise_not": "Not",
}
BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "pow": "Pow",
    "maximum": "Max",
    "minimum": "Min",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "bitwise_and": "And",
    "bitwise_or": "Or",
    "bitwise_xor": "Xor",
}
LOGICAL = ("And", "Or", "Not", "Xor")
BOOLEAN = {"Add": "Or", "Max": "Or", "Mul": "And", "Min": "And"}
"""The logical operators that replace arithmetic on booleans."""
COMPARISONS = {"gt": "Greater", "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual"}
COMPARISONS["eq"] = "Equal"
IDENTITIES = ("clone", "detach", "alias", "lift_fresh_copy", "dropout")


def _named(kind: str) -> Callable[[OnnxCall], None]:
    def convert(c: OnnxCall) -> None:
        asks = kind in ("IsNaN", "IsInf")
        if "float" not in str(c["self"].dtype) and kind in _OF_FLOATS:
            _of_whole(c, kind)
            return
        c.add(_of_bits(c, kind), [c.name("self", None if asks else c.out.dtype)])

    return convert


_OF_FLOATS = ("IsNaN", "IsInf", "Ceil", "Floor", "Relu")
"""Operators that ONNX or its runtime supports for floating-point numbers only."""


def _of_whole(c: OnnxCall, kind: str) -> None:
    """Handles integers, which are unchanged by rounding, and finite."""
    if kind == "Relu":
        c.add("Max", [c.name("self"), c.named(0, c.out.dtype)])
    elif kind.startswith("Is"):
        c.add("Identity", [c.graph.constant(np.zeros(c.shape, bool))])
    else:
        c.add("Identity", [c.name("self")])


def _of_bits(c: OnnxCall, kind: str) -> str:
    """Returns the operator, which differs between integers and booleans."""
    return f"Bitwise{kind}" if kind in LOGICAL and c.out.dtype != "bool" else kind


def _binary(kind: str) -> Callable[[OnnxCall], None]:
    def convert(c: OnnxCall) -> None:
        dtype = c.out.dtype
        own = BOOLEAN.get(kind, kind) if dtype == "bool" else _of_bits(c, kind)
        if dtype == "bool" and own not in LOGICAL:
            c.refuse("arithmetic on booleans")
        if "exponent" in c.call.arguments:
            _power(c)
            return
        right = c.name("other", dtype)
        if c.get("alpha") not in (None, 1):
            right = c.graph.value("Mul", [right, c.named(c["alpha"], dtype)])
        left = c.name("self", dtype)
        rounding = c.get("rounding_mode")
        if rounding is None:
            c.add(own, [left, right])
        elif not c.is_floating():
            _divide_whole(c, left, right, rounding)
        elif rounding == "trunc":
            _truncate(c, c.graph.value("Div", [left, right]))
        else:
            _divide_down(c, left, right)

    return convert


def _divide_whole(c: OnnxCall, left: str, right: str, rounding: str) -> None:
    """Adjusts for ONNX, which truncates quotients but gives remainders the sign of the divisor."""
    if rounding == "floor":
        left = c.graph.value("Sub", [left, c.graph.value("Mod", [left, right])])
    c.add("Div", [left, right])


def _divide_down(c: OnnxCall, left: str, right: str) -> None:
    """Divides like Python: 1.0 // 0.1 is 9, although 1.0 / 0.1 rounds to 10."""
    value, zero, one = c.graph.value, c.named(0, c.out.dtype), c.named(1, c.out.dtype)
    rest = value("Mod", [left, right], fmod=1)
    exact = value("Div", [value("Sub", [left, rest]), right])
    other_side = value("Xor", [value("Less", [right, zero]), value("Less", [rest, zero])])
    is_down = value("And", [other_side, value("Not", [value("Equal", [rest, zero])])])
    exact = value("Where", [is_down, value("Sub", [exact, one]), exact])
    down = value("Floor", [exact])
    is_low = value("Greater", [value("Sub", [exact, down]), c.named(0.5, c.out.dtype)])
    down = value("Where", [is_low, value("Add", [down, one]), down])
    by_zero = value("Equal", [right, zero])
    c.add("Where", [by_zero, value("Div", [left, right]), down])


def _power(c: OnnxCall) -> None:
    root = {0.5: "Sqrt", -0.5: "Reciprocal"}.get(_number(c["exponent"]))
    if root and c.out.dtype in ("float32", "float64"):  # as PyTorch: matters for -0.0 and -inf
        x = c.name("self", c.out.dtype)
        c.add(root, [x if root == "Sqrt" else c.graph.value("Sqrt", [x])])
    elif c.is_floating():
        c.add("Pow", [c.name("self", c.out.dtype), c.name("exponent", c.out.dtype)])
    else:
        power = _power_of_whole(c, c.name("self", "int64"), c["exponent"])
        c.add("Cast", [power], to=kind_of(c.out.dtype))


def _number(value: Any) -> Any:
    return value if isinstance(value, (int, float)) else None


def _power_of_whole(c: OnnxCall, base: str, exponent: Any) -> str:
    """Squares repeatedly, modulo 2**64, because the runtime's own operator uses float64."""
    value, zero, one, two = c.graph.value, *(c.named(n, "int64") for n in (0, 1, 2))
    kind = getattr(exponent, "dtype", None)
    bits = _BITS[kind] if kind is not None else int(exponent).bit_length()
    power, square = value("Add", [value("Mul", [base, zero]), one]), base
    given = c.name("exponent", "int64")
    rest = value("Max", [given, zero])
    for bit in range(bits):
        if kind is not None:
            is_set = value("Equal", [value("Mod", [rest, two]), one])
            power = value("Where", [is_set, value("Mul", [power, square]), power])
            rest = value("Div", [rest, two])
        elif int(exponent) >> bit & 1:
            power = value("Mul", [power, square])
        if bit < bits - 1:
            square = value("Mul", [square, square])
    if kind is None:
        return power
    # Negative exponents: powers of 1 and -1 are integers, others are truncated to 0.
    sign = value("Where", [value("Equal", [value("Mod", [given, two]), one]), base, one])
    is_unit = value("Equal", [value("Abs", [base]), one])
    inverse = value("Where", [is_unit, sign, zero])
    return value("Where", [value("Less", [given, zero]), inverse, power])


_BITS = {"bool": 1, "uint8": 8, "int8": 7, "int16": 15, "int32": 31, "int64": 63}
"""The number of bits of an exponent, without its sign."""


def _truncate(c: OnnxCall, value: str) -> None:
    size = c.graph.value("Floor", [c.graph.value("Abs", [value])])
    c.add("Mul", [size, c.graph.value("Sign", [value])])


def _remainder(c: OnnxCall) -> None:
    """Has the sign of the divisor, as in Python."""
    sides = [c.name("self", c.out.dtype), c.name("other", c.out.dtype)]
    if not c.is_floating():
        c.add("Mod", sides)
        return
    zero, value = c.named(0, c.out.dtype), c.graph.value
    left = value("Mod", sides, fmod=1)
    differs = value("Xor", [value("Less", [left, zero]), value("Less", [sides[1], zero])])
    moves = value("And", [differs, value("Not", [value("Equal", [left, zero])])])
    c.add("Where", [moves, value("Add", [left, sides[1]]), left])


def _fmod(c: OnnxCall) -> None:
    c.add("Mod", [c.name("self", c.out.dtype), c.name("other", c.out.dtype)], fmod=1)


def _trunc(c: OnnxCall) -> None:
    _truncate(c, c.name("self"))


def _comparison(kind: str) -> Callable[[OnnxCall], None]:
    return lambda c: c.add(kind, _sides(c))


def _sides(c: OnnxCall) -> list[str]:
    """Returns both operands, in the dtype in which PyTorch compares them."""
    sides = [c["self"], c["other"]]
    dtype = torch.result_type(*map(_example, sides))
    if dtype == torch.bool:
        dtype = torch.int32  # ONNX does not order booleans
    return [c.named(side, str(dtype).removeprefix("torch.")) for side in sides]


def _example(side: Any) -> Any:
    dtype = getattr(side, "dtype", None)
    return (
        side if dtype is None else torch.empty((1,) * len(side.shape), dtype=getattr(torch, dtype))
    )


def _round(c: OnnxCall) -> None:
    """Rounds to a number of decimals, half to even."""
    decimals, x = int(c.get("decimals") or 0), c.name("self")
    if not decimals or not c.is_floating():
        c.add("Round" if c.is_floating() else "Identity", [x])
        return
    factor = c.named(10.0 ** abs(decimals), c.out.dtype)
    there, back = ("Mul", "Div") if decimals > 0 else ("Div", "Mul")
    c.add(back, [c.graph.value("Round", [c.graph.value(there, [x, factor])]), factor])


def _identity(c: OnnxCall) -> None:
    c.shown("p")
    c.add("Identity", [c.name("self")])


def _gelu(c: OnnxCall) -> None:
    c.add("Gelu", [c.name("self")], approximate=c["approximate"])


def _leaky_relu(c: OnnxCall) -> None:
    c.add("LeakyRelu", [c.name("self")], alpha=float(c["negative_slope"]))


def _silu(c: OnnxCall) -> None:
    x = c.name("self")
    c.add("Mul", [x, c.graph.value("Sigmoid", [x])])


def _rsqrt(c: OnnxCall) -> None:
    c.add("Reciprocal", [c.graph.value("Sqrt", [c.name("self", c.out.dtype)])])


def _not_equal(c: OnnxCall) -> None:
    c.add("Not", [c.graph.value("Equal", _sides(c))])


def _where(c: OnnxCall) -> None:
    dtype = c.out.dtype
    c.add_choice(c.name("condition"), c.name("self", dtype), c.name("other", dtype))


def _masked_fill(c: OnnxCall) -> None:
    dtype = c.out.dtype
    c.add_choice(c.name("mask"), c.name("value", dtype), c.name("self", dtype))


def _clamp(c: OnnxCall) -> None:
    dtype = c.out.dtype
    low, high = (c.get(n) for n in (_HARDTANH if "min_val" in c.call.arguments else _CLAMP))
    x = c.name("self", dtype)
    if high is None:
        c.add("Max", [x, c.named(low, dtype)])
        return
    if low is not None:
        x = c.graph.value("Max", [x, c.named(low, dtype)])
    c.add("Min", [x, c.named(high, dtype)])


_CLAMP = ("min", "max")
_HARDTANH = ("min_val", "max_val")


def _elu(c: OnnxCall) -> None:
    x, dtype = c.name("self"), c.out.dtype
    positive = c.graph.value("Mul", [x, c.named(c["scale"], dtype)])
    scaled = c.graph.value("Mul", [x, c.named(c["input_scale"], dtype)])
    below = c.graph.value("Elu", [scaled], alpha=float(c["alpha"]))
    below = c.graph.value("Mul", [below, c.named(c["scale"], dtype)])
    c.add("Where", [c.graph.value("Greater", [x, c.named(0, dtype)]), positive, below])


def _hardsigmoid(c: OnnxCall) -> None:
    c.add("HardSigmoid", [c.name("self")], alpha=1 / 6, beta=0.5)


def _softplus(c: OnnxCall) -> None:
    """Is the identity above the threshold."""
    x, dtype = c.name("self"), c.out.dtype
    scaled = c.graph.value("Mul", [x, c.named(c["beta"], dtype)])
    soft = c.graph.value("Div", [c.graph.value("Softplus", [scaled]), c.named(c["beta"], dtype)])
    beyond = c.graph.value("Greater", [scaled, c.named(c["threshold"], dtype)])
    c.add("Where", [beyond, x, soft])


def _log_of(base: float) -> Callable[[OnnxCall], None]:
    def convert(c: OnnxCall) -> None:
        logarithm = c.graph.value("Log", [c.name("self", c.out.dtype)])
        c.add("Mul", [logarithm, c.named(1 / math.log(base), c.out.dtype)])

    return convert


def _logarithm_near_one(c: OnnxCall) -> None:
    """Implements `log1p` with Kahan's correction, which is accurate for small numbers."""
    x, dtype = c.name("self", c.out.dtype), c.out.dtype
    moved = c.graph.value("Add", [x, c.named(1, dtype)])
    same = c.graph.value("Equal", [moved, c.named(1, dtype)])
    infinite = c.graph.value("Equal", [moved, c.named(math.inf, dtype)])
    plain = c.graph.value("Or", [same, infinite])
    back = c.graph.value("Sub", [moved, c.named(1, dtype)])
    safe = c.graph.value("Where", [plain, c.named(1, dtype), back])
    right = c.graph.value("Mul", [c.graph.value("Log", [moved]), c.graph.value("Div", [x, safe])])
    c.add("Where", [plain, x, right])


def _sign(c: OnnxCall) -> None:
    """Is 0 for NaN, as in PyTorch."""
    x = c.name("self")
    if not c.is_floating():
        c.add("Identity" if c.out.dtype == "bool" else "Sign", [x])
        return
    sign = c.graph.value("Sign", [x])
    c.add("Where", [c.graph.value("IsNaN", [x]), c.named(0, c.out.dtype), sign])


def _cast(c: OnnxCall) -> None:
    c.add("Cast", [c.name("self")], to=kind_of(c.out.dtype))


POINTWISE: dict[str, Callable[[OnnxCall], None]] = {
    **{name: _named(kind) for name, kind in UNARY.items()},
    **{name: _binary(kind) for name, kind in BINARY.items()},
    **{name: _comparison(kind) for name, kind in COMPARISONS.items()},
    **dict.fromkeys(IDENTITIES, _identity),
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "elu": _elu,
    "gelu": _gelu,
    "hardsigmoid": _hardsigmoid,
    "hardtanh": _clamp,
    "leaky_relu": _leaky_relu,
    "log10": _log_of(10),
    "log1p": _logarithm_near_one,
    "log2": _log_of(2),
    "masked_fill": _masked_fill,
    "ne": _not_equal,
    "fmod": _fmod,
    "remainder": _remainder,
    "round": _round,
    "rsqrt": _rsqrt,
    "sign": _sign,
    "silu": _silu,
    "softplus": _softplus,
    "trunc": _trunc,
    "where": _where,
    "_to_copy": _cast,
}
