"""Comparisons, logic and bits."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from calque.ops.table.facts import facts, senseless
from calque.ops.table.promotion import BOOL, COMPLEX, FLOAT, is_integral, promote, refuse
from calque.ops.table.registry import op

ORDER = {
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}
EQUALITY = {"eq": jnp.equal, "ne": jnp.not_equal}
COMPARING: frozenset[str] = frozenset((*ORDER, *EQUALITY, "_cdist_backward", "_pdist_backward"))
"""Operators whose results depend on the last bits of their operands."""
LOGIC = {
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
}
BITS = {
    "bitwise_and": jnp.bitwise_and,
    "bitwise_or": jnp.bitwise_or,
    "bitwise_xor": jnp.bitwise_xor,
}


def _comparison(name: str, function: Any, refused: tuple[int, ...]) -> Callable[..., Array]:
    def rule(self: Any, other: Any) -> Array:
        x, y = promote(self, other)
        refuse(f"{name}_cpu", x.dtype, *refused)
        return function(x, y)

    return rule


for _name, _function in ORDER.items():
    op(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_name, _function, (COMPLEX,)))
for _name, _function in EQUALITY.items():
    op(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_name, _function, ()))
for _name, _function in BITS.items():
    op(f"{_name}.Tensor", f"{_name}.Scalar", f"{_name}.Scalar_Tensor")(
        _comparison(_name, _function, (FLOAT, COMPLEX))
    )


def _logic(function: Any) -> Callable[..., Array]:
    def rule(self: Array, other: Array) -> Array:
        return function(self != 0, other != 0)

    return rule


for _name, _function in LOGIC.items():
    op(_name)(_logic(_function))


@op("logical_not")
def logical_not(self: Array) -> Array:
    return self == 0


@op("bitwise_not", writes=("exact_dtype",))
def bitwise_not(self: Array) -> Array:
    refuse("bitwise_not_cpu", self.dtype, FLOAT, COMPLEX)
    return jnp.bitwise_not(self)


# Shifts: a negative distance, or one of all bits or more, shifts out every bit -----------------


def _shift_left(x: Array, y: Array) -> Array:
    bits = x.dtype.itemsize * 8
    out = (y < 0) | (y >= bits)
    return jnp.where(out, jnp.zeros((), x.dtype), jnp.left_shift(x, jnp.where(out, 0, y)))


def _shift_right(x: Array, y: Array) -> Array:
    last = x.dtype.itemsize * 8 - 1
    if jnp.issubdtype(x.dtype, jnp.signedinteger):
        return jnp.right_shift(x, jnp.where((y < 0) | (y > last), last, y))
    out = y > last
    return jnp.where(out, jnp.zeros((), x.dtype), jnp.right_shift(x, jnp.where(out, 0, y)))


def _shift(kernel: str, function: Any) -> Callable[..., Array]:
    def rule(self: Any, other: Any) -> Array:
        x, y = promote(self, other)
        refuse(kernel, x.dtype, BOOL, FLOAT, COMPLEX)
        return function(x, y)

    return rule


for _name, _dunder, _kernel, _function in (
    ("bitwise_left_shift", "__lshift__", "lshift_cpu", _shift_left),
    ("bitwise_right_shift", "__rshift__", "rshift_cpu", _shift_right),
):
    _rule = _shift(_kernel, _function)
    op(f"{_name}.Tensor", f"{_name}.Tensor_Scalar", f"{_name}.Scalar_Tensor")(_rule)
    op(f"{_dunder}.Tensor", f"{_dunder}.Scalar")(_rule)


# Kinds of numbers ---------------------------------------------------------------------------------

KINDS = {
    "isnan": jnp.isnan,
    "isinf": jnp.isinf,
    "isposinf": jnp.isposinf,
    "isneginf": jnp.isneginf,
    "signbit": jnp.signbit,
}


def _kind(name: str, function: Any) -> Callable[..., Array]:
    def rule(self: Array) -> Array:
        if name in ("isposinf", "isneginf", "signbit"):
            refuse(name, self.dtype, COMPLEX)
        if not is_integral(self.dtype):
            return function(self)
        if name == "signbit" and self.dtype != jnp.bool_:
            return self < 0
        return jnp.zeros(self.shape, jnp.bool_)

    return rule


for _name, _function in KINDS.items():
    op(_name)(_kind(_name, _function))


@op("_is_all_true")
def is_all_true(self: Array) -> Array:
    return jnp.all(self)


@op("_is_any_true")
def is_any_true(self: Array) -> Array:
    return jnp.any(self)


facts("__lshift__.Scalar", in_place="__ilshift__.Scalar")
facts("__lshift__.Tensor", in_place="__ilshift__.Tensor")
facts("__rshift__.Scalar", in_place="__irshift__.Scalar")
facts("__rshift__.Tensor", in_place="__irshift__.Tensor")
facts(
    "isneginf",
    writes=("exact_dtype",),
    refuses=senseless("isneginf does not support complex inputs.", COMPLEX),
)
facts(
    "isposinf",
    writes=("exact_dtype",),
    refuses=senseless("isposinf does not support complex inputs.", COMPLEX),
)
facts("signbit", writes=("exact_dtype",))
