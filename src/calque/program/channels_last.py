"""Keeps images with their channels last throughout a program, on CPUs.

XLA's CPU convolutions expect the channels last, PyTorch has them second, so every convolution
transposes its image back and forth. Here, the second transpose is deferred: elementwise operations,
sums, windows and slices work on the transposed image too, and most images are never transposed
back. The jaxpr is interpreted with values that record their transposition; operations that do not
support it get the original image.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

from calque.device.memory.cell import x64
from calque.ops.table.unsharded_axes import undivided_p
from calque.program.jaxprs import build, distinct_params, every
from calque.upstream.jax_internals import jaxprs_in_params, source_info_util

Order = tuple[int, ...]


@dataclass(frozen=True)
class Transposed:
    """A value with reordered axes: `array` is `transpose(value, order)`."""

    array: Any
    order: Order


def channels_last(closed: ClosedJaxpr, stored: dict[int, Order] | None = None) -> ClosedJaxpr:
    """Returns an equivalent jaxpr in which images keep their channels last.

    Args:
        closed: the program.
        stored: the inputs that are passed transposed, with their axis order.
    """
    stored = stored or {}
    if jax.default_backend() != "cpu" or not (stored or _has_images(closed.jaxpr)):
        return closed
    avals = []
    for index, variable in enumerate(closed.jaxpr.invars):
        shape, dtype = variable.aval.shape, variable.aval.dtype
        if index in stored:
            shape = tuple(shape[axis] for axis in stored[index])
        weak = variable.aval.weak_type
        avals.append(jax.ShapeDtypeStruct(shape, dtype, weak_type=weak))

    def run(*arrays: Any) -> list[Any]:
        inputs = [_turned(a, stored[i]) if i in stored else a for i, a in enumerate(arrays)]
        return [_plain(one) for one in _evaluate(closed.jaxpr, closed.consts, inputs)]

    with x64():
        made = jax.make_jaxpr(run)(*avals)
    inner = made.jaxpr
    return build(made, inner.invars, inner.outvars, inner.eqns)


def kernels(closed: ClosedJaxpr) -> dict[int, Order]:
    """Returns the inputs that are used only as kernels of convolutions, and the order they need."""
    found: dict[int, Order] = {}
    others: set[int] = set()
    _find_kernels(closed.jaxpr, list(range(len(closed.jaxpr.invars))), found, others)
    return {index: order for index, order in found.items() if index not in others}


def _find_kernels(
    jaxpr: Any, sources: list[int | None], found: dict[int, Order], others: set[int]
) -> None:
    known = dict(zip(jaxpr.invars, sources, strict=True))
    for equation in jaxpr.eqns:
        given = [None if isinstance(v, Literal) else known.get(v) for v in equation.invars]
        if equation.primitive.name == "jit":
            _find_kernels(equation.params["jaxpr"].jaxpr, given, found, others)
            continue
        if equation.primitive is undivided_p:
            known[equation.outvars[0]] = given[0]
            continue
        if equation.primitive.name == "conv_general_dilated" and given[1] is not None:
            numbers = equation.params["dimension_numbers"]
            if _keeps_batch(numbers):
                made, read, *space = numbers.rhs_spec
                found[given[1]] = (*space, read, made)
                given[1] = None
        others.update(index for index in given if index is not None)
    given = [None if isinstance(v, Literal) else known.get(v) for v in jaxpr.outvars]
    others.update(index for index in given if index is not None)


def _has_images(jaxpr: object) -> bool:
    """Returns True if there are convolutions, because attention also transposes arrays with four
    axes.
    """
    return any(
        any(e.primitive is lax.conv_general_dilated_p and _ndim_of(e) > 3 for e in inner.eqns)
        or any(
            "convolution" in str(params.get("name"))  # may be a product
            for params in distinct_params(inner.eqns)
        )
        for inner in every(jaxpr)
    )


def _ndim_of(equation: Any) -> int:
    return len(equation.invars[0].aval.shape)


def _convolves(jaxpr: Any) -> bool:
    """Returns True if there are images that a convolution, or an equivalent product, transposes."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "conv_general_dilated":
            if _ndim_of(equation) > 3:
                return True
        elif equation.primitive.name == "transpose":
            if _moves_channels(equation.params["permutation"]):
                return True
        elif any(_convolves(inner) for inner in _inner(equation)):
            return True
    return False


def _inner(equation: Any) -> Sequence[Any]:
    """Returns the jaxprs of a call; none for loops and other equations."""
    if equation.primitive.name in _CALLS:
        return [getattr(one, "jaxpr", one) for one in jaxprs_in_params(equation.params)]
    return []


_CALLS = {"jit": "jaxpr", "custom_jvp_call": "call_jaxpr"}


# Values -------------------------------------------------------------------------------------------


def _inverse(order: Sequence[int]) -> Order:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _last(ndim: int) -> Order:
    return (0, *range(2, ndim), 1)


def _moves_channels(permutation: Sequence[int]) -> bool:
    last = _last(len(permutation))
    return len(last) > 3 and tuple(permutation) in (last, _inverse(last))


def _turned(array: object, order: Sequence[int]) -> Any:
    """Returns the value whose transpose an array is."""
    return array if list(order) == sorted(order) else Transposed(array, tuple(order))


def _plain(value: object) -> Any:
    if not isinstance(value, Transposed):
        return value
    return lax.transpose(value.array, _inverse(value.order))


def _as(value: Any, order: Order) -> Any:
    """Returns the array of a value with its axes in the given order."""
    if isinstance(value, Transposed):
        if value.order == order:
            return value.array
        between = tuple(value.order.index(axis) for axis in order)
        return lax.transpose(value.array, between)
    return lax.transpose(value, order)


def _order(values: Sequence[Any]) -> Order:
    """Returns the axis order for an equation: that of its largest transposed operand."""
    turned = [v for v in values if isinstance(v, Transposed)]
    return max(turned, key=lambda v: v.array.size).order


# The interpreter ----------------------------------------------------------------------------------


def _evaluate(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, inputs, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else known[variable]

    stack = source_info_util.current_name_stack()
    for equation in jaxpr.eqns:
        source = equation.source_info
        scope = source_info_util.user_context(
            source.traceback, name_stack=stack + source.name_stack
        )
        with scope, equation.ctx.manager:
            results = _step(equation, [read(v) for v in equation.invars])
        known.update(zip(equation.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _step(equation: Any, values: list[Any]) -> Sequence[Any]:
    name = equation.primitive.name
    if name == "transpose":
        return [_transpose(equation, values[0])]
    if name == "conv_general_dilated" and _ndim(values[0]) > 3:
        return [_convolution(equation, values[0], values[1])]
    anything = any(isinstance(v, Transposed) for v in values)
    if name in _CALLS and (anything or any(map(_convolves, _inner(equation)))):
        inner = equation.params[_CALLS[name]]
        return _evaluate(inner.jaxpr, inner.consts, values)
    if anything:
        rule = _elementwise if name in _ELEMENTWISE else _RULES.get(name)
        if rule is not None:
            return rule(equation, values)
    return _bind(equation, [_plain(v) for v in values])


def _bind(equation: Any, arrays: Sequence[Any], **changed: Any) -> Sequence[Any]:
    params: Any = equation.primitive.get_bind_params({**equation.params, **changed})
    functions, params = params if isinstance(params, tuple) else ((), params)  # in older releases
    found = equation.primitive.bind(*functions, *arrays, **params)
    return found if equation.primitive.multiple_results else [found]


def _transpose(equation: Any, value: object) -> Any:
    permutation = equation.params["permutation"]
    if not isinstance(value, Transposed) and not _moves_channels(permutation):
        return _bind(equation, [value])[0]
    array, order = value, tuple(range(len(permutation)))
    if isinstance(value, Transposed):
        array, order = value.array, value.order
    back = _inverse(permutation)
    return _turned(array, [back[axis] for axis in order])


def _keeps_batch(numbers: Any) -> bool:
    return numbers.lhs_spec[:2] == (0, 1) == numbers.out_spec[:2]


def _convolution(equation: Any, image: object, kernel: object) -> Any:
    numbers = equation.params["dimension_numbers"]
    order = _last(len(numbers.lhs_spec))
    operands, specs = [], []
    forward = _keeps_batch(numbers)
    for value, spec in ((image, numbers.lhs_spec), (kernel, numbers.rhs_spec)):
        array = value
        if isinstance(value, Transposed):
            array, own = value.array, value.order
        elif forward and value is image:
            array, own = _as(value, order), order
        else:
            own = tuple(range(len(spec)))
        operands.append(array)
        specs.append(tuple(own.index(axis) for axis in spec))
    out = tuple(order.index(axis) for axis in numbers.out_spec) if forward else numbers.out_spec
    numbers = lax.ConvDimensionNumbers(*specs, out)  # pyright: ignore[reportCallIssue]
    (found,) = _bind(equation, operands, dimension_numbers=numbers)
    return _turned(found, order) if forward else found


# Equations on transposed operands: the results, or None if they need the original operands --------


def _elementwise(equation: object, values: list[Any]) -> Sequence[Any]:
    order = _order(values)
    arrays = [v if _ndim(v) == 0 else _as(v, order) for v in values]
    return [_turned(one, order) for one in _bind(equation, arrays)]


def _ndim(value: object) -> int:
    return len(value.order) if isinstance(value, Transposed) else getattr(value, "ndim", 0)


def _barrier(equation: object, values: list[Any]) -> Sequence[Any]:
    arrays = [v.array if isinstance(v, Transposed) else v for v in values]
    rows = zip(_bind(equation, arrays), values, strict=True)
    return [_turned(a, v.order) if isinstance(v, Transposed) else a for a, v in rows]


def _permuted(*names: str) -> Callable[[Any, list[Any]], Sequence[Any]]:
    """Handles equations whose parameters have an entry for each axis, or None."""

    def rule(equation: Any, values: list[Any]) -> Sequence[Any]:
        order = _order(values)
        params = {name: equation.params[name] for name in names}
        changed = {n: p if p is None else tuple(p[a] for a in order) for n, p in params.items()}
        arrays = [v if _ndim(v) == 0 else _as(v, order) for v in values]
        return [_turned(one, order) for one in _bind(equation, arrays, **changed)]

    return rule


def _reduced(equation: Any, values: list[Any]) -> Sequence[Any]:
    (value,) = values
    axes = equation.params["axes"]
    within = tuple(value.order.index(axis) for axis in axes)
    kept = [axis for axis in value.order if axis not in axes]
    (found,) = _bind(equation, [value.array], axes=within)
    ranks = sorted(kept)
    return [_turned(found, [ranks.index(axis) for axis in kept])]


def _broadcast(equation: Any, values: list[Any]) -> Sequence[Any]:
    value, shape = values[0], equation.params["shape"]
    dimensions = equation.params["broadcast_dimensions"]
    if tuple(dimensions) != tuple(range(len(shape))):
        return _bind(equation, [_plain(v) for v in values])
    (found,) = _bind(equation, [value.array], shape=tuple(shape[axis] for axis in value.order))
    return [_turned(found, value.order)]


def _along(name: str) -> Callable[[Any, list[Any]], Sequence[Any]]:
    """Handles equations that work along axes named by a parameter."""

    def rule(equation: Any, values: list[Any]) -> Sequence[Any]:
        order, axes = _order(values), equation.params[name]
        several = isinstance(axes, tuple)
        within = tuple(map(order.index, axes)) if several else order.index(axes)
        arrays = [_as(v, order) for v in values]
        return [_turned(one, order) for one in _bind(equation, arrays, **{name: within})]

    return rule


_WINDOWS = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
_RULES: dict[str, Callable[[Any, list[Any]], Sequence[Any]]] = {
    "optimization_barrier": _barrier,
    "slice": _permuted("start_indices", "limit_indices", "strides"),
    "pad": _permuted("padding_config"),
    "reduce_window_sum": _permuted(*_WINDOWS),
    "reduce_window_max": _permuted(*_WINDOWS),
    "reduce_window_min": _permuted(*_WINDOWS),
    "broadcast_in_dim": _broadcast,
    "concatenate": _along("dimension"),
    "rev": _along("dimensions"),
    "undivided": _along("axes"),
    "reduce_sum": _reduced,
    "reduce_max": _reduced,
    "reduce_min": _reduced,
}
_ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt",
    "ceil", "clamp", "convert_element_type", "copy", "copy_p", "cos", "cosh", "div", "eq",
    "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow",
    "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg",
    "nextafter", "not", "or", "pow", "reduce_precision", "rem", "round", "rsqrt", "select_n",
    "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor",
})  # fmt: skip
