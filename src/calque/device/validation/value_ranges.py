"""Values that PyTorch refuses: probabilities, rates, labels and numbers out of range.

As with indices, the values of a tensor are looked at where the host can read them without a copy,
and in a trace only where it asks for that.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jax import Array
from jax.core import Tracer

from calque.device.kernels import trace_checks
from calque.device.kernels.binding import Kernel, derived
from calque.device.kernels.indices import host_view
from calque.device.memory.cell import read, x64
from calque.ops.table.helpers import names

Tensor = torch.Tensor
Good = Callable[[Any], Any]


def _unit(p: Any) -> Any:
    return (p >= 0) & (p <= 1)


def _weights(p: Any) -> Any:
    return (p >= 0) & (p < np.inf)


def _finite(x: Any) -> Any:
    return abs(x) < np.inf


def _none_below(x: Any) -> Any:
    return ~(x < 0)


Row = tuple[str, Good, type[Exception], str]
_P = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."
_TENSORS: dict[str, Row] = {
    "bernoulli": ("self", _unit, RuntimeError, _P),
    "bernoulli.out": ("self", _unit, RuntimeError, _P),
    "bernoulli.Tensor": ("p", _unit, RuntimeError, _P),
    "bernoulli_.Tensor": ("p", _unit, RuntimeError, _P),
    "multinomial": (
        "self",
        _weights,
        RuntimeError,
        "probability tensor contains either `inf`, `nan` or element < 0",
    ),
    "poisson": (
        "self",
        _none_below,
        RuntimeError,
        "invalid Poisson rate, expected rate to be non-negative",
    ),
    "normal.float_Tensor": (
        "std",
        _none_below,
        RuntimeError,
        "normal expects all elements of std >= 0.0",
    ),
    "normal.Tensor_Tensor": (
        "std",
        _none_below,
        RuntimeError,
        "normal expects all elements of std >= 0.0",
    ),
    "binary_cross_entropy": (
        "self",
        _unit,
        RuntimeError,
        "all elements of input should be between 0 and 1",
    ),
    "linalg_eig": (
        "self",
        _finite,
        RuntimeError,
        "torch.linalg.eig: input tensor should not contain infs or NaNs.",
    ),
    "_linalg_svd": (
        "A",
        _finite,
        torch.linalg.LinAlgError,
        (
            "linalg.svd: The algorithm failed to converge because the input matrix contained "
            "non-finite values."
        ),
    ),
}
"""By operator: the argument, what is good in it, and what is raised for anything else."""


def _require(tensor: Tensor, good: Good, error: Exception) -> None:
    if tensor.numel() == 0 or tensor.device.type != "jax":
        return
    array = read(tensor)
    if isinstance(array, Tracer):
        with x64():
            trace_checks.collect(~good(array), array, lambda _: error)
        return
    values = host_view(array)
    if values is not None and not good(values).all():
        raise error


def _of_tensor(name: str, row: Row) -> Callable[..., None]:
    parameter, good, kind, text = row
    schema = torch._C._get_schema(f"aten::{name.partition('.')[0]}", name.partition(".")[2])
    position = [a.name for a in schema.arguments].index(parameter)

    def check(*args: Any, **kwargs: Any) -> None:
        value = args[position] if position < len(args) else kwargs[parameter]
        _require(value, good, kind(text))

    return check


def _multinomial(self: Tensor, *args: Any, **kwargs: Any) -> None:
    if self.ndim and self.shape[-1] > 2**24:
        raise RuntimeError("number of categories cannot exceed 2^24")
    _of_weights(self)
    if self.ndim in (1, 2) and self.numel() and self.device.type == "jax":
        array = read(self)
        values = None if isinstance(array, Tracer) else host_view(array)
        if values is not None and not (values.sum(-1) > 0).all():
            raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")


_of_weights = _of_tensor("multinomial", _TENSORS["multinomial"])


def _values(tensor: Tensor | None) -> np.ndarray | None:
    """The values as the host sees them; None in a trace, and where it would take a copy."""
    if tensor is None or tensor.device.type != "jax" or not tensor.numel():
        return None
    array: Array = read(tensor)
    return None if isinstance(array, Tracer) else host_view(array)


def _masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> None:
    if mask.dtype != torch.bool:
        return
    values = _values(mask)
    if values is None:
        return
    rest = torch.broadcast_shapes(self.shape, mask.shape)
    count = int(np.count_nonzero(values)) * (int(np.prod(rest)) // max(values.size, 1))
    if count > source.numel():
        raise RuntimeError(
            "masked_scatter: expected self and source to have same dtypes and source to have as "
            f"many elements as the mask has ones, but got {source.numel()} for {count}"
        )


def _bags(weight: Tensor, indices: Tensor, offsets: Tensor, *rest: Any, **options: Any) -> None:
    found = _values(indices)
    if found is not None and not ((found >= 0) & (found < weight.shape[0])).all():
        at = int(np.flatnonzero((found < 0) | (found >= weight.shape[0]))[0])
        raise RuntimeError(
            f"Index {at} of input takes value {found.flat[at]} which is not in the valid range "
            f"[0, {weight.shape[0]})"
        )
    starts = _values(offsets)
    if starts is None or starts.ndim != 1:
        return
    if starts[0] != 0:
        raise RuntimeError(f"offsets[0] has to be 0. However, got {starts[0]}")
    if starts[-1] > indices.shape[0]:
        raise RuntimeError(
            f"offsets[-1] can not be greater than input's length {indices.shape[0]} but got "
            f"offsets[-1] of {starts[-1]}"
        )


def _classes(name: str, least: int) -> Callable[..., None]:
    def check(self: Tensor, target: Tensor, *rest: Any, **options: Any) -> None:
        labels = _values(target) if self.ndim and not target.dtype.is_floating_point else None
        if labels is not None and not ((labels >= least) & (labels < self.shape[-1])).all():
            raise RuntimeError(f"{name}: target out of range")

    return check


def _unpooled(self: Tensor, indices: Tensor, output_size: Any, *rest: Any) -> None:
    places = _values(indices) if indices.dtype == torch.int64 else None
    volume = int(np.prod(list(output_size)))
    if places is not None and not ((places >= 0) & (places < volume)).all():
        raise RuntimeError(
            f"Found an invalid max index: {places.max()} (output volumes are of size "
            f"{'x'.join(map(str, output_size))})"
        )


# Numbers ------------------------------------------------------------------------------------------


def _overflows(value: Any, dtype: torch.dtype) -> bool:
    """Whether a dtype cannot hold a Python number, as C++ converts it."""
    if isinstance(value, complex):
        return not dtype.is_complex and value.imag != 0
    if dtype == torch.bool or dtype.is_complex or not isinstance(value, int | float):
        return False
    if value != value or value in (float("inf"), -float("inf")):
        return not dtype.is_floating_point
    if dtype.is_floating_point:
        return abs(value) > torch.finfo(dtype).max
    limit = torch.iinfo(dtype)
    return value > limit.max or value < (limit.min or -limit.max)


def _hold(value: Any, dtype: torch.dtype | None) -> None:
    if dtype is not None and _overflows(value, dtype):
        raise RuntimeError(f"value cannot be converted to type {dtype} without overflow")


def _fill(self: Tensor, value: Any) -> None:
    _hold(value, self.dtype)


def _full(size: Any, fill_value: Any, dtype: torch.dtype | None = None, **options: Any) -> None:
    _hold(fill_value, dtype)


def _scalar_tensor(s: Any, dtype: torch.dtype | None = None, **options: Any) -> None:
    _hold(s, dtype)


def _randperm(n: int, dtype: torch.dtype | None = torch.int64, **options: Any) -> None:
    _hold(n, dtype)


def _softshrink(self: Tensor, lambd: Any = 0.5) -> None:
    if not isinstance(lambd, torch.SymFloat) and not lambd >= 0:
        raise RuntimeError(
            f"lambda must be in range [0, {torch.finfo(self.dtype).max}] for input dtype "
            f"{self.dtype}, but found {lambd}"
            if self.is_floating_point()
            else f"lambda must not be negative, but found {lambd}"
        )


def _uniform(self: Tensor, *bounds: Any, **options: Any) -> None:
    low, high = (*bounds, options.get("from", 0.0), options.get("to", 1.0))[:2]
    if self.is_floating_point() and high - low > torch.finfo(self.dtype).max:
        raise RuntimeError(
            "uniform_ expects to-from to be no more than the largest number of the dtype, but "
            f"found to={high} and from={low}"
        )


def _random(self: Tensor, *bounds: Any, **options: Any) -> None:
    if self.dtype == torch.bool or self.is_complex():
        return
    high = options.get("to", bounds[-1] if bounds else None)
    low = bounds[0] if len(bounds) > 1 else options.get("from", 0)
    limit = torch.finfo(self.dtype) if self.is_floating_point() else torch.iinfo(self.dtype)
    if low < limit.min or (high is not None and high - 1 > limit.max):
        raise RuntimeError(f"from or to - 1 is out of bounds for {self.dtype}")


def _histc(self: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> None:
    if min > max:
        raise RuntimeError("torch.histc: max must be larger than min")
    _finite_range("torch.histc:", self, (min, max) if min != max else None)


def _histogram(
    self: Tensor, bins: int = 100, *, range: Any = None, weight: Any = None, density: bool = False
) -> None:
    if range is not None and range[0] > range[1]:
        raise RuntimeError(
            "torch.histogramdd: min should not exceed max, but got min "
            f"{range[0]} max {range[1]} for dimension 0"
        )
    _finite_range("torch.histogramdd: dimension 0's", self, range)


def _finite_range(what: str, self: Tensor, bounds: Any) -> None:
    """Raise RuntimeError where bins would divide an infinite range, or that of a NaN."""
    if bounds is None:
        values = _values(self) if self.is_floating_point() else None
        if values is None:
            return
        bounds = values.min(), values.max()
    if not all(map(math.isfinite, bounds)):
        raise RuntimeError(f"{what} range of [{bounds[0]}, {bounds[1]}] is not finite")


def _select(self: Tensor, src: Tensor, dim: int, index: int) -> None:
    if not -self.ndim <= dim < self.ndim or isinstance(index, torch.SymInt):
        return
    size = self.shape[dim]
    if not -size <= index < size:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(self.shape)} at "
            f"dimension {dim}"
        )


_CHECKS: dict[str, Callable[..., None]] = {
    **{name: _of_tensor(name, row) for name, row in _TENSORS.items()},
    "multinomial": _multinomial,
    "masked_scatter": _masked_scatter,
    "masked_scatter_": _masked_scatter,
    "_embedding_bag": _bags,
    "_embedding_bag_forward_only": _bags,
    "multi_margin_loss": _classes("multi_margin_loss", 0),
    "multilabel_margin_loss_forward": _classes("multilabel_margin_loss", -1),
    "max_unpool2d": _unpooled,
    "max_unpool3d": _unpooled,
    "fill.Scalar": _fill,
    "fill_.Scalar": _fill,
    "full": _full,
    "scalar_tensor": _scalar_tensor,
    "randperm": _randperm,
    "softshrink": _softshrink,
    "uniform_": _uniform,
    "random_.to": _random,
    "random_.from": _random,
    "histc": _histc,
    "histogram.bin_ct": _histogram,
    "select_scatter": _select,
    "select_copy.int": lambda self, dim, index: _select(self, self, dim, index),
}
_CHECKS_NUMBERS = frozenset(
    names(
        "fill.Scalar fill_.Scalar full scalar_tensor randperm softshrink uniform_ random_.to "
        "random_.from histc histogram.bin_ct select_scatter select_copy.int"
    )
)
"""Checks that look at no tensor's values, and so hold in a trace as well."""


def _checked(name: str) -> Kernel | None:
    kernel = derived(f"aten::{name}")
    if kernel is None:
        return None
    check, inner, always = _CHECKS[name], kernel, name in _CHECKS_NUMBERS

    def run(*args: Any, **kwargs: Any) -> Any:
        if always or trace_checks.looking():
            check(*args, **kwargs)
        return inner(*args, **kwargs)

    return run


def _arange_out() -> Kernel:
    """`torch.arange(out=)`, whose step may become zero in the dtype of `out`."""
    inner = derived("aten::arange.start_out")
    if inner is None:
        raise LookupError("no rule serves arange")
    kernel = inner

    def arange(start: Any, end: Any, step: Any = 1, *, out: Tensor) -> Tensor:
        if step and not out.is_floating_point() and int(step) == 0:
            raise ValueError("step must be nonzero")
        return kernel(start, end, step, out=out)

    return arange


def kernels() -> dict[str, Kernel]:
    """The kernels by operator name."""
    found = {name: _checked(name) for name in _CHECKS}
    kept = {name: kernel for name, kernel in found.items() if kernel is not None}
    return {**kept, "arange.start_out": _arange_out()}
