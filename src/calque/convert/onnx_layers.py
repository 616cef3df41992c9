"""ONNX converters of layers: convolutions, normalization, pooling, resizing, attention."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from calque.convert.onnx_calls import OnnxCall


def _product(c: OnnxCall) -> None:
    c.add("MatMul", [c.name("self"), c.name("mat2")])


def _addmm(c: OnnxCall) -> None:
    if not c.is_floating():  # ONNX Runtime supports only products
        found = c.graph.value("MatMul", [c.name("mat1"), c.name("mat2")])
        found = c.graph.value("Mul", [found, c.named(c["alpha"])])
        rest = c.graph.value("Mul", [c.name("self"), c.named(c["beta"])])
        c.add("Add", [found, rest])
        return
    c.add(
        "Gemm",
        [c.name("mat1"), c.name("mat2"), c.name("self")],
        alpha=float(c["alpha"]),
        beta=float(c["beta"]),
    )


def _convolution(c: OnnxCall) -> None:
    inputs, count = [c.name("input"), c.name("weight")], c.rank("input") - 2

    def each(name: str) -> list[int]:  # one number stands for all dimensions
        given = c[name]
        return [*given] * count if len(given) == 1 else [*given]

    if c["bias"] is not None:
        inputs.append(c.name("bias"))
    options = {"strides": each("stride"), "dilations": each("dilation"), "group": c["groups"]}
    options["pads"] = [*each("padding"), *each("padding")]
    padding = each("output_padding")
    if c["transposed"]:
        c.add("ConvTranspose", inputs, output_padding=padding, **options)
    else:
        c.add("Conv", inputs, **options)


def _batch_norm(c: OnnxCall) -> None:
    c.shown("momentum", "cudnn_enabled")  # they concern the running statistics, which do not change
    channels = c["input"].shape[1]
    scale = c["weight"] if c["weight"] is not None else np.ones(channels)
    shift = c["bias"] if c["bias"] is not None else np.zeros(channels)
    if c.get("training"):
        _batch_norm_of_the_batch(c, scale, shift)
        return
    names = [c.named(value) for value in (scale, shift, c["running_mean"], c["running_var"])]
    c.add("BatchNormalization", [c.name("input"), *names], epsilon=c["eps"])


def _batch_norm_of_the_batch(c: OnnxCall, scale: Any, shift: Any) -> None:
    if c["running_mean"] is not None:
        c.refuse("batch normalization in training")
    graph, x, rank = c.graph, c.name("input"), c.rank("input")
    axes = graph.constant([dim for dim in range(rank) if dim != 1], np.int64)
    column = graph.constant([-1, *[1] * (rank - 2)], np.int64)
    apart = graph.value("Sub", [x, graph.value("ReduceMean", [x, axes])])
    variance = graph.value("ReduceMean", [graph.value("Mul", [apart, apart]), axes])
    moved = graph.value("Add", [variance, c.named(c["eps"], c.out.dtype)])
    normal = graph.value("Div", [apart, graph.value("Sqrt", [moved])])
    scale, shift = (graph.value("Reshape", [c.named(v), column]) for v in (scale, shift))
    c.add("Add", [graph.value("Mul", [normal, scale]), shift])


def _group_norm(c: OnnxCall) -> None:
    """Uses `InstanceNormalization` with the groups as channels, then scale and shift."""
    graph, groups = c.graph, c["group"]
    rank, channels = c.rank("input"), c["C"]
    c.shown("HxW")
    dtype = np.dtype(str(c.out.dtype))
    rows = graph.constant([c["N"], groups, -1], np.int64)
    ones, zeros = (graph.constant(make(groups), dtype) for make in (np.ones, np.zeros))
    x = graph.value("Reshape", [c.name("input"), rows])
    x = graph.value("InstanceNormalization", [x, ones, zeros], epsilon=c["eps"])
    x = graph.value("Reshape", [x, graph.constant(c.shape, np.int64)])
    column = graph.constant([channels, *[1] * (rank - 2)], np.int64)
    if c["weight"] is not None:
        x = graph.value("Mul", [x, graph.value("Reshape", [c.name("weight"), column])])
    if c["bias"] is not None:
        x = graph.value("Add", [x, graph.value("Reshape", [c.name("bias"), column])])
    c.add("Identity", [x])


def _layer_norm(c: OnnxCall) -> None:
    shape = c["normalized_shape"]
    names = [c.name("input")]
    names.append(c.named(c["weight"] if c["weight"] is not None else np.ones(shape)))
    if c["bias"] is not None:
        names.append(c.name("bias"))
    c.add("LayerNormalization", names, axis=-len(shape), epsilon=c["eps"])


def _max_pool(c: OnnxCall) -> None:
    dilations = _each(c, c["dilation"])
    sizes, x, count = _windows(c, dilations), _batched(c), len(dilations)
    if any(pad >= size for pad, size in zip(sizes["pads"][count:], sizes["kernel_shape"])):
        # ONNX requires padding smaller than a window.
        after = [*[0] * (2 + count), 0, 0, *sizes["pads"][count:]]
        lowest = -np.inf if c.is_floating() else np.iinfo(str(c.out.dtype)).min
        sizes["pads"] = [*sizes["pads"][:count], *[0] * count]
        x = c.graph.value("Pad", [x, c.graph.constant(after, np.int64), c.named(lowest)])
    found, places = c.graph.fresh(), f"{c.graph.fresh()}.places"
    c.graph.add("MaxPool", [x], [found, places], dilations=dilations, **sizes)
    _pooled(c, found)
    if any(after != before for before, after in zip(sizes["pads"], sizes["pads"][count:])):
        return  # the indices in the padded image differ from PyTorch's
    plane = int(np.prod(c["self"].shape[-count:]))
    inside = c.graph.value("Mod", [places, c.graph.constant(plane, np.int64)])
    shape = c.graph.constant(c.shape, np.int64)
    c.graph.add("Reshape", [inside, shape], [c.call.outputs[1].name])


def _average_pool(c: OnnxCall) -> None:
    """PyTorch divides by the size of the part of a window in the image and its padding."""
    sizes, padded = _windows(c), bool(c["count_include_pad"])
    divisor, kernel = c["divisor_override"], sizes["kernel_shape"]
    counted = int(padded or divisor is not None)
    factor = _part_inside(c, sizes) if divisor is None else np.prod(kernel) / divisor
    found = c.graph.value("AveragePool", [_batched(c)], count_include_pad=counted, **sizes)
    if counted and not np.all(factor == 1):
        found = c.graph.value("Mul", [found, c.graph.constant(factor, str(c.out.dtype))])
    _pooled(c, found)


def _batched(c: OnnxCall) -> str:
    """Returns the images to pool, as a batch."""
    return _with_batch(c, len(_each(c, c["kernel_size"])))


def _with_batch(c: OnnxCall, count: int) -> str:
    """Returns images of a number of dimensions, as a batch."""
    shape = c["self"].shape
    if len(shape) == count + 2:
        return c.name("self")
    return c.graph.value("Reshape", [c.name("self"), c.graph.constant([1, *shape], np.int64)])


def _pooled(c: OnnxCall, found: str) -> None:
    c.add("Reshape", [found, c.graph.constant(c.shape, np.int64)])


def _part_inside(c: OnnxCall, sizes: dict[str, Any]) -> Any:
    """Returns each window's size divided by the size of its part in the image and its padding."""
    factor, count = np.ones(()), len(sizes["kernel_shape"])
    padding = _each(c, c["padding"])
    for i, (kernel, stride) in enumerate(zip(sizes["kernel_shape"], sizes["strides"])):
        end = c["self"].shape[i - count] + 2 * padding[i]
        starts = np.arange(c.shape[i - count]) * stride
        factor = factor[..., None] * (kernel / (np.minimum(starts + kernel, end) - starts))
    return factor


def _windows(c: OnnxCall, dilation: list[int] | None = None) -> dict[str, Any]:
    """Returns the attributes of pooling; with `ceil_mode`,
    they include the padding that the last window needs.
    """
    kernel, padding = (_each(c, c[name]) for name in ("kernel_size", "padding"))
    strides = _each(c, c["stride"]) if c["stride"] else kernel
    after, count = list(padding), len(kernel)
    for i in range(count) if c["ceil_mode"] else ():
        reach = (dilation[i] if dilation else 1) * (kernel[i] - 1) + 1
        needed = (c.shape[i - count] - 1) * strides[i] + reach - c["self"].shape[i - count]
        after[i] = max(padding[i], needed - padding[i])
    return {"kernel_shape": kernel, "strides": strides, "pads": [*padding, *after]}


def _each(c: OnnxCall, value: Any) -> list[int]:
    """Returns a number for each pooled dimension, repeating a single one."""
    count = {"1d": 1, "2d": 2, "3d": 3}[c.call.op.split(".")[1].removesuffix(_WITH)[-2:]]
    return list(value) * count if len(value) == 1 else list(value)


_WITH = "_with_indices"


def _adaptive_pool(c: OnnxCall) -> None:
    if tuple(c["output_size"]) == (1, 1):
        axes = c.graph.constant([-2, -1], np.int64)
        if c.rank() == 4:
            c.add("GlobalAveragePool", [c.name("self")])
        else:
            c.add("ReduceMean", [c.name("self"), axes], keepdims=1)
        return
    pool: Any = c.call.target
    matrices = []
    for size, wanted in zip(c["self"].shape[-2:], c["output_size"], strict=True):
        matrices.append(pool(torch.eye(size)[None, :, :, None], [wanted, 1])[0, :, :, 0])
    _along_each(c, matrices)


def _whole_pool(kind: str) -> Callable[[OnnxCall], None]:
    """Converts adaptive pooling with equal windows to ordinary pooling."""

    def convert(c: OnnxCall) -> None:
        sizes, wanted = c["self"].shape[-len(c["output_size"]) :], c["output_size"]
        if any(size % count for size, count in zip(sizes, wanted, strict=True)):
            _pool_unevenly(c, "ReduceMax" if kind == "MaxPool" else "ReduceMean", sizes, wanted)
            return
        kernel = [size // count for size, count in zip(sizes, wanted)]
        x = _with_batch(c, len(kernel))
        _pooled(c, c.graph.value(kind, [x], kernel_shape=kernel, strides=kernel))

    return convert


def _pool_unevenly(c: OnnxCall, reduce: str, sizes: list[int], wanted: list[int]) -> None:
    """Pools one dimension after the other, part by part."""
    value, found = c.graph.value, c.name("self")
    for axis, (size, count) in enumerate(zip(sizes, wanted, strict=True), c.rank() - len(sizes)):
        axes, parts = c.graph.constant([axis], np.int64), []
        for i in range(count):
            ends = [i * size // count, -(-(i + 1) * size // count)]
            limits = [c.graph.constant([end], np.int64) for end in ends]
            part = value("Slice", [found, *limits, axes])
            parts.append(value(reduce, [part, axes], keepdims=1))
        found = value("Concat", parts, axis=axis)
    c.add("Identity", [found])


def _along_each(c: OnnxCall, matrices: list[torch.Tensor]) -> None:
    """Applies a linear function along each of the last two dimensions."""
    down, across = (
        c.graph.constant(matrix.numpy(), np.dtype(str(c.out.dtype))) for matrix in matrices
    )
    turned = c.graph.value("MatMul", [c.name("self"), across])
    transposed = c.graph.constant(c.graph.constants[down].T)
    c.add("MatMul", [transposed, turned])


def _resize(mode: str) -> Callable[[OnnxCall], None]:
    def convert(c: OnnxCall) -> None:
        count = c.rank() - 2
        c.shown("output_size")
        scales = c.get("scale_factors") or [c.get(name) for name in _SCALES[-count:]]
        if count == 1 and c.get("scales") is not None:
            scales = [c["scales"]]
        where = "align_corners" if c["align_corners"] else "half_pixel"
        if c["align_corners"] or None in scales:
            sizes = ["", "", c.graph.constant(c.shape, np.int64)]
        else:
            sizes = ["", c.graph.constant([1.0, 1.0, *scales], np.float32)]
        options = {"coordinate_transformation_mode": where, "cubic_coeff_a": -0.75}
        c.add("Resize", [c.name("self"), *sizes], mode=mode, **options)

    return convert


_SCALES = ("scales_d", "scales_h", "scales_w")


def _nearest(c: OnnxCall) -> None:
    """Gathers the elements that PyTorch selects, because ONNX rounds differently."""
    x, count = c.name("self"), c.rank() - 2
    c.shown("output_size", "scales", *_SCALES)
    for dim in range(2, 2 + count):
        size = c["self"].shape[dim]
        shape = [1] * count
        shape[dim - 2] = size
        ramp = torch.arange(size, dtype=torch.float64).view(1, 1, *shape)
        wanted = [1] * count
        wanted[dim - 2] = c.shape[dim]
        places = c.call.target(**{**_resizing(c, dim - 2, count), "self": ramp, _SIZE: wanted})
        places = c.graph.constant(places.flatten().numpy(), np.int64)
        x = c.graph.value("Gather", [x, places], axis=dim)
    c.add("Identity", [x])


_SIZE = "output_size"


def _resizing(c: OnnxCall, place: int, count: int) -> dict[str, Any]:
    """Returns the scale along one dimension, from the operator's arguments; None along others."""
    names = ("scales",) if count == 1 else _SCALES[-count:]
    return {name: c.get(name) if i == place else None for i, name in enumerate(names)}


def _softmax(c: OnnxCall) -> None:
    c.shown("half_to_float")
    kind = "LogSoftmax" if "log" in c.call.op else "Softmax"
    c.add(kind, [c.name("self", c.out.dtype)], axis=c["dim"])


def _safe_softmax(c: OnnxCall) -> None:
    """Gives zeros for rows that contain only minus infinity."""
    dtype = np.dtype(str(c.out.dtype))
    x, graph = c.name("self", c.out.dtype), c.graph
    highest = graph.value("ReduceMax", [x, graph.constant([c["dim"]], np.int64)], keepdims=1)
    none = graph.value("Equal", [highest, graph.constant(-np.inf, dtype)])
    weights = graph.value("Softmax", [x], axis=c["dim"])
    c.add("Where", [none, graph.constant(0, dtype), weights])


def _embedding(c: OnnxCall) -> None:
    c.shown("padding_idx", "scale_grad_by_freq", "sparse")  # they concern the gradient
    c.add("Gather", [c.name("weight"), c.name("indices")], axis=0)


def _repeated(c: OnnxCall, name: str, heads: int) -> str:
    """Repeats keys or values to as many heads as the queries have."""
    batch, own, *rest = c[name].shape
    if own == heads:
        return c.name(name)
    apart = c.graph.constant([batch, own, 1, *rest], np.int64)
    spread = c.graph.constant([batch, own, heads // own, *rest], np.int64)
    joined = c.graph.constant([batch, heads, *rest], np.int64)
    found = c.graph.value("Reshape", [c.name(name), apart])
    return c.graph.value("Reshape", [c.graph.value("Expand", [found, spread]), joined])


def _attention(c: OnnxCall) -> None:
    """Multiplies the softmax of the scaled products of queries and keys by the values."""
    graph, dtype = c.graph, c.out.dtype
    queries, keys = c["query"].shape, c["key"].shape
    key, value = (_repeated(c, name, queries[1]) for name in ("key", "value"))
    scale = c.get("scale")
    scale = 1 / math.sqrt(queries[-1]) if scale is None else scale
    turned = graph.value("Transpose", [key], perm=[0, 1, 3, 2])
    scores = graph.value("MatMul", [c.name("query"), turned])
    scores = graph.value("Mul", [scores, graph.constant(scale, np.dtype(str(dtype)))])
    if c.get("is_causal"):
        above = np.triu(np.full((queries[-2], keys[-2]), -np.inf), 1)
        scores = graph.value("Add", [scores, graph.constant(above, np.dtype(str(dtype)))])
    if c.get("attn_mask") is not None:
        scores = graph.value("Add", [scores, c.name("attn_mask", dtype)])
    weights = graph.value("Softmax", [scores], axis=-1)
    if c.get("attn_mask") is not None:  # a query with no unmasked key gets zeros
        highest = graph.value("ReduceMax", [scores, graph.constant([-1], np.int64)], keepdims=1)
        none = graph.value("Equal", [highest, graph.constant(-np.inf, np.dtype(str(dtype)))])
        weights = graph.value("Where", [none, graph.constant(0, np.dtype(str(dtype))), weights])
    c.add("MatMul", [weights, value])


LAYERS: dict[str, Callable[[OnnxCall], None]] = {
    **dict.fromkeys(("mm", "bmm"), _product),
    "addmm": _addmm,
    "convolution": _convolution,
    "native_batch_norm": _batch_norm,
    "native_group_norm": _group_norm,
    "native_layer_norm": _layer_norm,
    "max_pool2d_with_indices": _max_pool,
    "max_pool3d_with_indices": _max_pool,
    "avg_pool2d": _average_pool,
    "avg_pool3d": _average_pool,
    "_adaptive_avg_pool2d": _adaptive_pool,
    "_adaptive_avg_pool3d": _whole_pool("AveragePool"),
    "adaptive_max_pool2d": _whole_pool("MaxPool"),
    "adaptive_max_pool3d": _whole_pool("MaxPool"),
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_safe_softmax": _safe_softmax,
    "embedding": _embedding,
    "upsample_nearest1d": _nearest,
    "upsample_nearest2d": _nearest,
    "upsample_nearest3d": _nearest,
    "_upsample_nearest_exact1d": _nearest,
    "_upsample_nearest_exact2d": _nearest,
    "_upsample_nearest_exact3d": _nearest,
    "upsample_linear1d": _resize("linear"),
    "upsample_bilinear2d": _resize("linear"),
    "upsample_trilinear3d": _resize("linear"),
    "upsample_bicubic2d": _resize("cubic"),
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
}
