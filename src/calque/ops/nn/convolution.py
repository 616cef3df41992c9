"""Convolution of every kind, and its gradients, on `lax.conv_general_dilated`.

A transposed convolution is the gradient of a convolution: the input is dilated by the stride, and
the kernel is flipped and its channels are exchanged.
"""

import string
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from calque.ops.nn import convolution_forms as forms
from calque.ops.table import precision
from calque.ops.table.facts import facts, no_kernel
from calque.ops.table.promotion import BOOL
from calque.ops.table.registry import op
from calque.ops.table.unsharded_axes import undivided

_OPERANDS = (0, 1, *range(3, 9))
"""The places of a convolution's input, kernel and options, of which its layout is a function."""


def _each(value: Any, ndim: int) -> tuple[int, ...]:
    value = (value,) if isinstance(value, int) else tuple(value)
    return value * ndim if len(value) == 1 else value


def _check(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    groups: int,
) -> None:
    if groups <= 0:
        raise RuntimeError("non-positive groups is not supported")
    if min(stride, default=1) <= 0:
        raise RuntimeError("non-positive stride is not supported")
    if min(padding, default=0) < 0:
        raise RuntimeError("negative padding is not supported")
    if min(dilation, default=1) <= 0:
        raise RuntimeError("dilation should be greater than zero")
    shapes = f"given weight of size {list(weight.shape)}, input of size {list(x.shape)}"
    if weight.ndim != x.ndim:
        raise RuntimeError(f"Expected {weight.ndim}-dimensional input: {shapes}")
    if x.dtype != weight.dtype or (bias is not None and bias.dtype != x.dtype):
        other = weight.dtype if x.dtype != weight.dtype else bias.dtype  # type: ignore[union-attr]
        raise RuntimeError(
            f"Input type ({x.dtype}) and weight or bias type ({other}) should be the same"
        )
    if weight.shape[0] < groups or weight.shape[0] % groups:
        raise RuntimeError(f"groups={groups} does not divide the weight's channels: {shapes}")
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    if x.shape[1] != channels:
        raise RuntimeError(
            f"{shapes[0].upper()}{shapes[1:]} and groups={groups}, expected input to have "
            f"{channels} channels, but got {x.shape[1]} channels instead"
        )
    made = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and bias.shape != (made,):
        raise RuntimeError(
            f"{shapes[0].upper()}{shapes[1:]}, expected bias to be 1-dimensional with {made} "
            f"elements, but got bias of size {list(bias.shape)} instead"
        )
    if not transposed:
        padded = [n + 2 * p for n, p in zip(x.shape[2:], padding, strict=True)]
        kernel = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
        if any(k > n for k, n in zip(kernel, padded, strict=True)):
            raise RuntimeError(
                f"Calculated padded input size per channel: {tuple(padded)}. Kernel size: "
                f"{tuple(kernel)}. Kernel size can't be greater than actual input size"
            )


def _flipped(weight: Array, groups: int) -> Array:
    """Returns the kernel of the transposed convolution: (out, in/groups, *kernel),
    reversed in space.
    """
    channels, made, *kernel = weight.shape
    weight = weight.reshape(groups, channels // groups, made, *kernel).swapaxes(1, 2)
    weight = weight.reshape(groups * made, channels // groups, *kernel)
    return lax.rev(weight, range(2, weight.ndim))


def _convolve(
    x: Array,
    weight: Array,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
) -> Array:
    how = forms.Sliding(stride, padding, dilation, groups)
    if transposed:
        like = _result_of_transposed(x, weight, how, output_padding)
        made = forms.input_gradient(x, like, weight, how) if like is not None else None
    else:
        made = forms.forward(x, weight, how) if forms.applies(x, weight) else None
    if made is not None:
        return made
    letters = "NC" + "".join(c for c in string.ascii_uppercase if c not in "NCIO")[: x.ndim - 2]
    dimensions = lax.conv_dimension_numbers(
        x.shape, weight.shape, (letters, "OI" + letters[2:], letters)
    )
    reach = [d * (k - 1) for k, d in zip(weight.shape[2:], dilation, strict=True)]
    if transposed:
        extents = zip(reach, padding, output_padding, strict=True)
        return lax.conv_general_dilated(
            x,
            _flipped(weight, groups),
            (1,) * len(stride),
            [(r - p, r - p + o) for r, p, o in extents],
            lhs_dilation=stride,
            rhs_dilation=dilation,
            dimension_numbers=dimensions,
            feature_group_count=groups,
            precision=precision.of_convolutions(),
        )
    return lax.conv_general_dilated(
        x,
        weight,
        stride,
        [(p, p) for p in padding],
        rhs_dilation=dilation,
        dimension_numbers=dimensions,
        feature_group_count=groups,
        precision=precision.of_convolutions(),
    )


def _result_of_transposed(
    x: Array, weight: Array, how: forms.Sliding, output_padding: tuple[int, ...]
) -> jax.ShapeDtypeStruct | None:
    """Returns the shape of the input of the convolution whose transpose this is; None if there is
    none."""
    if not forms.applies(x, weight) or any(
        extra >= step for extra, step in zip(output_padding, how.stride, strict=True)
    ):
        return None
    each = zip(
        x.shape[2:],
        weight.shape[2:],
        how.stride,
        how.padding,
        how.dilation,
        output_padding,
        strict=True,
    )
    size = [(n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in each]
    like = jax.ShapeDtypeStruct((x.shape[0], weight.shape[1] * how.groups, *size), x.dtype)
    return like if forms.applies(like, weight) else None


def _convolution_condition(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> None:
    if 0 in weight.shape[2:]:
        raise RuntimeError(
            f"kernel size should be greater than zero, but got {list(weight.shape[2:])}"
        )
    if not transposed:
        return
    count = weight.ndim - 2
    extra, step, gap, cut = (
        list(v) * count if len(v) == 1 else list(v)
        for v in (output_padding, stride, dilation, padding)
    )
    if any(e >= max(s, g) for e, s, g in zip(extra, step, gap, strict=False)):
        raise RuntimeError(
            "output padding must be smaller than either stride or dilation, but got "
            f"output_padding {extra}, stride {step}, dilation {gap}"
        )
    size = input.shape[input.ndim - count :]
    each = zip(size, weight.shape[2:], step, cut, gap, extra, strict=False)
    out = [(n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, d, e in each]
    if any(n < 0 for n in out):
        raise RuntimeError(
            f"Given input size per channel: ({' x '.join(map(str, size))}). Calculated output size "
            f"per channel: ({' x '.join(map(str, out))}). Output size is too small"
        )


def _whole_images(x: Array) -> Array:
    """Returns images, or kernels, sharded at most by batch and channels: for some convolutions of
    images sharded along other axes, XLA's partitioner gives wrong numbers or ends the process."""
    return undivided(x, range(2, x.ndim))


@op("convolution", "convolution_overrideable", condition=_convolution_condition)
def convolution(
    input: Array,
    weight: Array,
    bias: Array | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Array:
    ndim = weight.ndim - 2
    stride, padding, dilation = (_each(v, ndim) for v in (stride, padding, dilation))
    _check(input, weight, bias, stride, padding, dilation, transposed, groups)
    input, weight = _whole_images(input), _whole_images(weight)
    out = _convolve(
        input, weight, stride, padding, dilation, transposed, _each(output_padding, ndim), groups
    )
    out = _whole_images(out)
    return out if bias is None else out + bias.reshape(-1, *(1,) * ndim)


facts(
    "convolution",
    layout="convolution",
    laid_by=_OPERANDS,
    autocast="lower",
    refuses=no_kernel("slow_conv2d_cpu", BOOL),
)
facts(
    "convolution_overrideable",
    layout="convolution",
    laid_by=_OPERANDS,
    refuses=no_kernel("slow_conv2d_cpu", BOOL),
)


@op("convolution_backward_overrideable", layout="convolution", laid_by=(1, 2, *range(3, 9)))
def convolution_backward_overrideable(
    grad_output: Array,
    input: Array,
    weight: Array,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Any,
) -> tuple[Array | None, Array | None, Array | None]:
    return convolution_backward(
        grad_output,
        input,
        weight,
        None,
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
        output_mask,
    )


@op("convolution_backward", layout="convolution", laid_by=(1, 2, *range(4, 10)))
def convolution_backward(
    grad_output: Array,
    input: Array,
    weight: Array,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Any,
) -> tuple[Array | None, Array | None, Array | None]:
    """Returns the gradients selected by `output_mask`; a convolution is linear in each operand."""
    ndim = weight.ndim - 2
    stride, padding, dilation = (_each(v, ndim) for v in (stride, padding, dilation))
    output_padding = _each(output_padding, ndim)

    def forward(x: Array, w: Array) -> Array:
        return _convolve(x, w, stride, padding, dilation, transposed, output_padding, groups)

    for_input = for_weight = for_bias = None
    input, weight = _whole_images(input), _whole_images(weight)
    grad_output = _whole_images(grad_output)
    if jnp.iscomplexobj(grad_output):
        input, weight = jnp.conj(input), jnp.conj(weight)
    how = forms.Sliding(stride, padding, dilation, groups)
    small, large = (grad_output, input) if not transposed else (input, grad_output)
    usual = not transposed or _result_of_transposed(input, weight, how, output_padding) is not None
    if usual and forms.applies(large, weight):
        if output_mask[0] and transposed:
            for_input = forms.forward(large, weight, how)
        elif output_mask[0]:
            for_input = forms.input_gradient(small, large, weight, how)
        if output_mask[1]:
            for_weight = forms.weight_gradient(small, large, weight, how)
    if output_mask[0] and for_input is None:
        (for_input,) = jax.linear_transpose(lambda x: forward(x, weight), input)(grad_output)
    if output_mask[1] and for_weight is None:
        (for_weight,) = jax.linear_transpose(lambda w: forward(input, w), weight)(grad_output)
    if output_mask[2]:
        for_bias = jnp.sum(grad_output, axis=(0, *range(2, grad_output.ndim)))
    if for_input is not None:
        for_input = _whole_images(for_input)
    if for_weight is not None:
        for_weight = _whole_images(for_weight)
    return for_input, for_weight, for_bias


@op("conv_tbc", autocast="lower")
def conv_tbc(self: Array, weight: Array, bias: Array, pad: int = 0) -> Array:
    """Returns the 1-d convolution of (time, batch, channels) with (kernel, in, out)."""
    numbers = lax.conv_dimension_numbers(self.shape, weight.shape, ("WNC", "WIO", "WNC"))
    self, weight = undivided(self, (0,)), undivided(weight, (0,))
    out = lax.conv_general_dilated(
        self,
        weight,
        (1,),
        [(pad, pad)],
        dimension_numbers=numbers,
        precision=precision.of_convolutions(),
    )
    return undivided(out, (0,)) + bias


@op("conv_tbc_backward")
def conv_tbc_backward(
    self: Array, input: Array, weight: Array, bias: Array, pad: int
) -> tuple[Array, Array, Array]:
    _, pull = jax.vjp(lambda x, w, b: conv_tbc(x, w, b, pad), input, weight, bias)
    return pull(self)


facts(
    "_convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d.input",
    "conv_transpose3d.input",
    autocast="lower",
)
