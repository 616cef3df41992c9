"""Operators on complex numbers, written with real ones."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calque.upstream.torch_internals import pytree


class Pair(NamedTuple):
    """The real and the imaginary part of a complex tensor or number."""

    re: Any
    im: Any

    def joined(self) -> Tensor:
        """Returns a tensor with the parts along a new last axis."""
        return torch.stack(torch.broadcast_tensors(self.re, self.im), -1)


def _pair(value: Any) -> Pair:
    if isinstance(value, Pair):
        return value
    return Pair(value.real, value.imag) if isinstance(value, complex) else Pair(value, 0)


def _filled(like: Any, pair: Pair) -> Pair:
    """Returns the pair with tensors, of the shape and dtype of `like`, in place of numbers."""
    return Pair(*(p if isinstance(p, Tensor) else torch.full_like(like, p) for p in pair))


def _each(change: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Returns the rule of an operator that treats the two parts alike and separately."""

    def rule(target: Any, *args: Any, **kwargs: Any) -> Any:
        run = change or target

        def part(place: int) -> Any:
            def of(leaf: Any) -> Any:
                if isinstance(leaf, Pair):
                    return leaf[place]
                return _real_dtype(leaf) if isinstance(leaf, torch.dtype) else leaf

            is_pair = lambda leaf: isinstance(leaf, Pair)  # noqa: E731
            given = pytree.tree_map(of, (args, kwargs), is_leaf=is_pair)
            return run(*given[0], **given[1])

        re, im = part(0), part(1)
        return list(map(Pair, re, im)) if isinstance(re, (tuple, list)) else Pair(re, im)

    return rule


def _listed(target: Any, tensors: list[Any], dim: int = 0) -> Pair:
    pairs = [_filled(_pair(each).re, _pair(each)) for each in tensors]
    return Pair(*(target(list(parts), dim) for parts in zip(*pairs)))


def _where(target: Any, condition: Tensor, self: Any, other: Any) -> Pair:
    a, b = _pair(self), _pair(other)
    return Pair(torch.where(condition, a.re, b.re), torch.where(condition, a.im, b.im))


def _product(a: Pair, b: Pair) -> Pair:
    if type(b.im) is not int and type(a.im) is not int:
        return Pair(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)
    real, other = (a, b) if type(a.im) is int else (b, a)
    return Pair(other.re * real.re, other.im * real.re)


def _mul(target: Any, self: Any, other: Any) -> Pair:
    return _product(_pair(self), _pair(other))


def _div(target: Any, self: Any, other: Any) -> Pair:
    a, b = _pair(self), _pair(other)
    if type(b.im) is int:
        return Pair(a.re / b.re, a.im / b.re)
    largest = _largest(b)
    b = Pair(b.re / largest, b.im / largest)
    found = _product(a, Pair(b.re, -b.im))
    length = (b.re * b.re + b.im * b.im) * largest
    return Pair(found.re / length, found.im / length)


def _largest(pair: Pair) -> Any:
    return torch.maximum(*(torch.as_tensor(part).abs() for part in pair))


def _add(sign: int) -> Callable[..., Pair]:
    def rule(target: Any, self: Any, other: Any, *, alpha: Any = 1) -> Pair:
        a, b = _pair(self), _product(_pair(other), _pair(sign * alpha))
        like = next(p for p in (*a, *b) if isinstance(p, Tensor))
        return _filled(like, Pair(a.re + b.re, a.im + b.im))

    return rule


def _abs(target: Any, self: Pair) -> Tensor:
    largest = _largest(self)
    scale = torch.where((largest == 0) | largest.isinf(), 1, largest)
    re, im = self.re / scale, self.im / scale
    return scale * (re * re + im * im).sqrt()


def _angle(target: Any, self: Pair) -> Tensor:
    return torch.atan2(self.im, self.re)


def _exp(target: Any, self: Pair) -> Pair:
    size = self.re.exp()
    return Pair(size * self.im.cos(), size * self.im.sin())


def _log(target: Any, self: Pair) -> Pair:
    return Pair(_abs(target, self).log(), _angle(target, self))


def _pow(target: Any, self: Pair, exponent: Any) -> Pair:
    if exponent not in (1, 2, 3):
        raise NotImplementedError("a power of complex numbers")
    found = self
    for _ in range(int(exponent) - 1):
        found = _product(found, self)
    return found


def _matmul(target: Any, self: Any, other: Any) -> Pair:
    if not isinstance(self, Pair):
        return Pair(target(self, other.re), target(self, other.im))
    if not isinstance(other, Pair):
        return Pair(target(self.re, other), target(self.im, other))
    re = target(self.re, other.re) - target(self.im, other.im)
    return Pair(re, target(self.re, other.im) + target(self.im, other.re))


def _real_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    return dtype.to_real() if dtype is not None and dtype.is_complex else dtype


def _copied(target: Any, self: Any, *, dtype: torch.dtype | None = None, **rest: Any) -> Any:
    re, im = _pair(self)
    real = _real_dtype(dtype)
    re = re if real is None else re.to(real)
    if dtype is not None and not dtype.is_complex:
        return re
    return Pair(re, torch.zeros_like(re) if type(im) is int else im.to(re.dtype))


def _full(target: Any, size: list[int], value: Any, *, dtype: Any = None, **rest: Any) -> Pair:
    dtype = _real_dtype(dtype) or torch.get_default_dtype()
    number = complex(value)
    return Pair(*(torch.full(size, part, dtype=dtype) for part in (number.real, number.imag)))


def _all(value: complex) -> Callable[..., Pair]:
    def rule(target: Any, size: list[int], *, dtype: Any = None, **rest: Any) -> Pair:
        return _full(target, size, value, dtype=dtype)

    return rule


def _polar(target: Any, abs: Tensor, angle: Tensor) -> Pair:
    return Pair(abs * angle.cos(), abs * angle.sin())


def _turned(x: Pair, size: int, sign: int) -> Pair:
    """Returns the Fourier transform of the last axis.

    A size that has factors is transformed in two steps (Cooley and Tukey, 1965), which are exact
    to more digits than one product with a large matrix.
    """
    first = next((f for f in range(math.isqrt(size), 1, -1) if size % f == 0), 1)
    if size <= _PLAIN or (first == 1 and size <= _LARGEST):
        turns = np.outer(np.arange(size), np.arange(size))
        return _matmul(torch.matmul, x, _roots(x, turns, size, sign))
    if first == 1:
        raise NotImplementedError("a Fourier transform of a large prime size")
    rest = size // first
    grid = Pair(*(part.reshape(*part.shape[:-1], first, rest) for part in x))
    inner = _turned(Pair(*(part.transpose(-1, -2) for part in grid)), first, sign)
    turns = np.outer(np.arange(rest), np.arange(first))
    inner = _product(inner, _roots(x, turns, size, sign))
    outer = _turned(Pair(*(part.transpose(-1, -2) for part in inner)), rest, sign)
    return Pair(*(part.transpose(-1, -2).reshape(*x.re.shape[:-1], size) for part in outer))


_PLAIN, _LARGEST = 32, 2048
"""Sizes up to which one matrix is used: always, and for those without factors."""


def _roots(x: Pair, turns: np.ndarray, size: int, sign: int) -> Pair:
    """Returns the powers of a root of one, as constants."""
    angles = sign * 2 * np.pi * (turns % size) / size
    kind = str(x.re.dtype).removeprefix("torch.")
    return Pair(*(torch.from_numpy(f(angles).astype(kind)) for f in (np.cos, np.sin)))


def _along(x: Pair, dim: int, change: Callable[[Pair], Pair]) -> Pair:
    moved = change(Pair(*(part.movedim(dim, -1) for part in x)))
    return Pair(*(part.movedim(-1, dim) for part in moved))


def _scaled(found: Pair, sizes: list[int], normalization: int) -> Pair:
    scale = {0: 1.0, 1: math.prod(sizes) ** -0.5, 2: 1 / math.prod(sizes)}[normalization]
    return found if scale == 1 else Pair(found.re * scale, found.im * scale)


def _c2c(target: Any, self: Pair, dim: list[int], normalization: int, forward: bool) -> Pair:
    sizes = [self.re.shape[d] for d in dim]
    for d, size in zip(dim, sizes):
        self = _along(self, d, lambda x, n=size: _turned(x, n, -1 if forward else 1))
    return _scaled(self, sizes, normalization)


def _r2c(target: Any, self: Tensor, dim: list[int], normalization: int, onesided: bool) -> Pair:
    last, sizes = dim[-1], [self.shape[d] for d in dim]
    size = sizes[-1]
    is_real = torch.from_numpy(np.arange(size) * 2 % size == 0)  # these have no imaginary part

    def change(x: Pair) -> Pair:
        found = _turned(x, size, -1)
        found = Pair(found.re, torch.where(is_real, 0.0, found.im))
        return Pair(*(part[..., : size // 2 + 1] for part in found)) if onesided else found

    found = _along(Pair(self, torch.zeros_like(self)), last, change)
    return _scaled(_c2c(target, found, dim[:-1], 0, True), sizes, normalization)


def _c2r(target: Any, self: Pair, dim: list[int], normalization: int, size: int) -> Tensor:
    sizes = [*(self.re.shape[d] for d in dim[:-1]), size]
    if dim[:-1]:
        self = _c2c(target, self, dim[:-1], 0, False)

    def whole(x: Pair) -> Pair:
        half = Pair(*(part[..., : size // 2 + 1] for part in x))
        mirrored = [part[..., 1 : (size + 1) // 2].flip(-1) for part in half]
        re = torch.cat([half.re, mirrored[0]], -1)
        return _turned(Pair(re, torch.cat([half.im, -mirrored[1]], -1)), size, 1)

    return _scaled(_along(self, dim[-1], whole), sizes, normalization).re


def _reshape(x: Tensor, size: list[int]) -> Tensor:
    return x.reshape(size)


def _padded(target: Any, self: Pair, pad: list[int], value: Any = 0) -> Pair:
    if value:
        raise NotImplementedError("padding with a complex number")
    return Pair(target(self.re, pad), target(self.im, pad))


_LIKE_REAL = (
    *("permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "slice", "select", "index"),
    *("index_select", "flip", "roll", "gather", "unbind", "split", "split_with_sizes", "clone"),
    *("detach", "alias", "repeat", "lift_fresh_copy", "diagonal", "unfold", "neg", "sum", "mean"),
    *("cumsum", "tril", "triu", "zeros_like"),
)

RULES: dict[str, Callable[..., Any]] = {
    **{name: _each() for name in _LIKE_REAL},
    **{name: _each(_reshape) for name in ("view", "reshape", "_unsafe_view")},
    "_conj": lambda target, x: Pair(x.re, -x.im),
    "_fft_c2c": _c2c,
    "_fft_c2r": _c2r,
    "_fft_r2c": _r2c,
    "_to_copy": _copied,
    "abs": _abs,
    "add": _add(1),
    "angle": _angle,
    "bmm": _matmul,
    "cat": _listed,
    "complex": lambda target, real, imag: Pair(*torch.broadcast_tensors(real, imag)),
    "conj_physical": lambda target, x: Pair(x.re, -x.im),
    "constant_pad_nd": _padded,
    "div": _div,
    "exp": _exp,
    "full": _full,
    "log": _log,
    "masked_fill": lambda target, x, mask, value: _where(target, mask, value, x),
    "mm": _matmul,
    "mul": _mul,
    "ones": _all(1),
    "polar": _polar,
    "pow": _pow,
    "reciprocal": lambda target, x: _div(target, 1, x),
    "resolve_conj": lambda target, x: x,
    "stack": _listed,
    "sub": _add(-1),
    "view_as_complex": lambda target, x: Pair(x.select(-1, 0), x.select(-1, 1)),
    "view_as_real": lambda target, x: x.joined(),
    "where": _where,
    "zeros": _all(0),
}
