"""What operators of PyTorch are in ONNX: a name, or a function where it is more."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from calque.convert.calls import Call, array_of
from calque.convert.onnx_calls import OnnxCall, kind_of
from calque.convert.registry import Converters

UNARY = {
    **{name: name.title() for name in ("abs", "ceil", "cos", "erf", "exp", "floor", "log", "neg")},
    **{name: name.title() for name in ("reciprocal", "relu", "sigmoid", "sin", "sqrt", "tanh")},
    "hardswish": "HardSwish",
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
    "bitwise_and": "And",
    "bitwise_or": "Or",
}
LOGICAL = ("And", "Or", "Not")
COMPARISONS = {"gt": "Greater", "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual"}
COMPARISONS["eq"] = "Equal"
IDENTITIES = ("clone", "detach", "alias", "lift_fresh_copy", "dropout")
RESHAPES = ("view", "reshape", "_unsafe_view", "expand", "unsqueeze", "squeeze")
REDUCTIONS = {"mean": "ReduceMean", "sum": "ReduceSum", "amax": "ReduceMax", "amin": "ReduceMin"}
CREATIONS = ("arange", "full", "zeros", "ones", "scalar_tensor", "eye")


def converters_for(graph: Any) -> Converters:
    """Converters that add nodes to an `OnnxGraph`."""
    made = Converters(level="aten")
    table: dict[str, Callable[[OnnxCall], None]] = {
        **{name: _named(kind) for name, kind in UNARY.items()},
        **{name: _binary(kind) for name, kind in BINARY.items()},
        **{name: _comparison(kind) for name, kind in COMPARISONS.items()},
        **dict.fromkeys(IDENTITIES, _identity),
        **dict.fromkeys(RESHAPES, _reshape),
        **{name: _reduction(kind) for name, kind in REDUCTIONS.items()},
        **dict.fromkeys(CREATIONS, _creation),
        **_OTHERS,
    }

    def converter(convert: Callable[[OnnxCall], None]) -> Callable[[Call], None]:
        return lambda call: convert(OnnxCall(call, graph))

    for name, convert in table.items():
        packet = getattr(torch.ops.aten, name)
        overloads = [f"aten.{name}.{each}" for each in packet.overloads() if each != "dtype"]
        made.operator(*overloads)(converter(convert))
    return made


def _named(kind: str) -> Callable[[OnnxCall], None]:
    def convert(c: OnnxCall) -> None:
        _refuse_bits(c, kind)
        c.add(kind, [c.name("self", c.out.dtype)])

    return convert


def _refuse_bits(c: OnnxCall, kind: str) -> None:
    if kind in LOGICAL and c.out.dtype != "bool":
        c.refuse("a logical operation on the bits of numbers")


def _binary(kind: str) -> Callable[[OnnxCall], None]:
    def convert(c: OnnxCall) -> None:
        _refuse_bits(c, kind)
        if c.get("rounding_mode") is not None:
            c.refuse("division that rounds")
        dtype = c.out.dtype
        if dtype == "bool" and kind not in LOGICAL:
            c.refuse("arithmetic on booleans")
        other = "exponent" if "exponent" in c.call.arguments else "other"
        right = c.name(other, dtype)
        if c.get("alpha") not in (None, 1):
            right = c.graph.value("Mul", [right, c.named(c["alpha"], dtype)])
        c.add(kind, [c.name("self", dtype), right])

    return convert


def _comparison(kind: str) -> Callable[[OnnxCall], None]:
    return lambda c: c.add(kind, _sides(c))


def _sides(c: OnnxCall) -> list[str]:
    """What is compared, in the dtype in which PyTorch compares it."""
    sides = [c["self"], c["other"]]
    dtype = torch.result_type(*map(_example, sides))
    if dtype == torch.bool:
        dtype = torch.int32  # ONNX has no order of booleans
    return [c.named(side, str(dtype).removeprefix("torch.")) for side in sides]


def _example(side: Any) -> Any:
    dtype = getattr(side, "dtype", None)
    return (
        side if dtype is None else torch.empty((1,) * len(side.shape), dtype=getattr(torch, dtype))
    )


def _identity(c: OnnxCall) -> None:
    c.add("Identity", [c.name("self")])


def _reshape(c: OnnxCall) -> None:
    kind = "Expand" if ".expand." in c.call.op else "Reshape"
    c.add(kind, [c.name("self"), c.graph.constant(c.shape, np.int64)])


def _reduction(kind: str) -> Callable[[OnnxCall], None]:
    def convert(c: OnnxCall) -> None:
        dims = c.get("dim")
        dims = list(range(c.rank())) if dims is None or dims == [] else dims
        dims = [dims] if isinstance(dims, int) else dims
        keeps = int(bool(c.get("keepdim")))
        inputs = [c.name("self", c.out.dtype), c.graph.constant(dims, np.int64)]
        c.add(kind, inputs, keepdims=keeps)

    return convert


def _creation(c: OnnxCall) -> None:
    arguments = {name: value for name, value in c.call.arguments.items() if name != "device"}
    made = array_of(c.call.target(**arguments))
    c.add("Identity", [c.graph.constant(made)])


def _transpose(c: OnnxCall) -> None:
    order = list(range(c.rank()))
    if "dims" in c.call.arguments:
        order = [dim % len(order) for dim in c["dims"]]
    else:
        first, second = (c["dim0"], c["dim1"]) if "dim0" in c.call.arguments else (0, -1)
        order[first], order[second] = order[second], order[first]
    c.add("Transpose", [c.name("self")], perm=order)


def _cat(c: OnnxCall) -> None:
    parts = [p for p in c["tensors"] if p.shape != (0,)]
    c.add("Concat", [c.named(part, c.out.dtype) for part in parts], axis=c["dim"])


def _stack(c: OnnxCall) -> None:
    dim = c["dim"] % len(c.shape)
    shape = c.graph.constant([*c.shape[:dim], 1, *c.shape[dim + 1 :]], np.int64)
    parts = [c.named(part, c.out.dtype) for part in c["tensors"]]
    c.add("Concat", [c.graph.value("Reshape", [p, shape]) for p in parts], axis=dim)


def _slice(c: OnnxCall) -> None:
    limits = (c["start"] or 0, min(c["end"] if c["end"] is not None else 2**62, 2**62))
    numbers = [c.graph.constant([n], np.int64) for n in (*limits, c["dim"], c["step"])]
    c.add("Slice", [c.name("self"), *numbers])


def _select(c: OnnxCall) -> None:
    c.add("Gather", [c.name("self"), c.graph.constant(c["index"], np.int64)], axis=c["dim"])


def _split(c: OnnxCall) -> None:
    dim = c["dim"]
    sizes = c.get("split_sizes")
    if sizes is None:
        total, size = c["self"].shape[dim], c["split_size"]
        sizes = [min(size, total - start) for start in range(0, total, size)]
    names = [f"{c.call.name}.{i}" for i in range(len(sizes))]
    c.graph.add("Split", [c.name("self"), c.graph.constant(sizes, np.int64)], names, axis=dim)


def _unbind(c: OnnxCall) -> None:
    for index in range(c["self"].shape[c["dim"]]):
        place = c.graph.constant(index, np.int64)
        name = f"{c.call.name}.{index}"
        c.graph.add("Gather", [c.name("self"), place], [name], axis=c["dim"])


def _product(c: OnnxCall) -> None:
    c.add("MatMul", [c.name("self"), c.name("mat2")])


def _addmm(c: OnnxCall) -> None:
    c.add(
        "Gemm",
        [c.name("mat1"), c.name("mat2"), c.name("self")],
        alpha=float(c["alpha"]),
        beta=float(c["beta"]),
    )


def _convolution(c: OnnxCall) -> None:
    inputs = [c.name("input"), c.name("weight")]
    if c["bias"] is not None:
        inputs.append(c.name("bias"))
    options = {"strides": c["stride"], "dilations": c["dilation"], "group": c["groups"]}
    options["pads"] = [*c["padding"], *c["padding"]]
    if c["transposed"]:
        c.add("ConvTranspose", inputs, output_padding=c["output_padding"], **options)
    else:
        c.add("Conv", inputs, **options)


def _batch_norm(c: OnnxCall) -> None:
    if c.get("training"):
        c.refuse("batch normalization in training")
    channels = c["input"].shape[1]
    scale = c["weight"] if c["weight"] is not None else np.ones(channels)
    shift = c["bias"] if c["bias"] is not None else np.zeros(channels)
    names = [c.named(value) for value in (scale, shift, c["running_mean"], c["running_var"])]
    c.add("BatchNormalization", [c.name("input"), *names], epsilon=c["eps"])


def _layer_norm(c: OnnxCall) -> None:
    shape = c["normalized_shape"]
    names = [c.name("input")]
    names.append(c.named(c["weight"] if c["weight"] is not None else np.ones(shape)))
    if c["bias"] is not None:
        names.append(c.name("bias"))
    c.add("LayerNormalization", names, axis=-len(shape), epsilon=c["eps"])


def _max_pool(c: OnnxCall) -> None:
    _pool(c, "MaxPool", dilations=c["dilation"])


def _average_pool(c: OnnxCall) -> None:
    if c["divisor_override"] is not None:
        c.refuse("average pooling with a divisor of its own")
    _pool(c, "AveragePool", count_include_pad=int(c["count_include_pad"]))


def _pool(c: OnnxCall, kind: str, **options: Any) -> None:
    both = [c["padding"] * 2 if len(c["padding"]) == 1 else c["padding"]][0]
    c.add(
        kind,
        [c.name("self")],
        kernel_shape=_two(c["kernel_size"]),
        strides=_two(c["stride"] or c["kernel_size"]),
        pads=[*both, *both],
        ceil_mode=int(c["ceil_mode"]),
        **{key: _two(value) if key == "dilations" else value for key, value in options.items()},
    )


def _two(value: list[int]) -> list[int]:
    return list(value) * 2 if len(value) == 1 else list(value)


def _adaptive_pool(c: OnnxCall) -> None:
    if tuple(c["output_size"]) != (1, 1):
        c.refuse("adaptive pooling to more than one element")
    c.add("GlobalAveragePool", [c.name("self")])


def _softmax(c: OnnxCall) -> None:
    kind = "LogSoftmax" if "log" in c.call.op else "Softmax"
    c.add(kind, [c.name("self", c.out.dtype)], axis=c["dim"])


def _gelu(c: OnnxCall) -> None:
    c.add("Gelu", [c.name("self")], approximate=c["approximate"])


def _silu(c: OnnxCall) -> None:
    x = c.name("self")
    c.add("Mul", [x, c.graph.value("Sigmoid", [x])])


def _rsqrt(c: OnnxCall) -> None:
    c.add("Reciprocal", [c.graph.value("Sqrt", [c.name("self", c.out.dtype)])])


def _not_equal(c: OnnxCall) -> None:
    c.add("Not", [c.graph.value("Equal", _sides(c))])


def _where(c: OnnxCall) -> None:
    dtype = c.out.dtype
    c.add("Where", [c.name("condition"), c.name("self", dtype), c.name("other", dtype)])


def _masked_fill(c: OnnxCall) -> None:
    dtype = c.out.dtype
    c.add("Where", [c.name("mask"), c.name("value", dtype), c.name("self", dtype)])


def _clamp(c: OnnxCall) -> None:
    dtype = c.out.dtype
    low, high = (c.get(n) for n in (("min", "max") if "min" in c.call.arguments else _HARDTANH))
    x = c.name("self", dtype)
    if high is None:
        c.add("Max", [x, c.named(low, dtype)])
        return
    if low is not None:
        x = c.graph.value("Max", [x, c.named(low, dtype)])
    c.add("Min", [x, c.named(high, dtype)])


_HARDTANH = ("min_val", "max_val")


def _embedding(c: OnnxCall) -> None:
    c.add("Gather", [c.name("weight"), c.name("indices")], axis=0)


def _cast(c: OnnxCall) -> None:
    c.add("Cast", [c.name("self")], to=kind_of(c.out.dtype))


def _attention(c: OnnxCall) -> None:
    """Softmax of the scaled products of queries and keys, by the values."""
    graph, dtype = c.graph, c.out.dtype
    queries, keys = c["query"].shape, c["key"].shape
    if queries[1] != keys[1]:
        c.refuse("attention with fewer heads for keys than for queries")
    scale = c.get("scale")
    scale = 1 / math.sqrt(queries[-1]) if scale is None else scale
    turned = graph.value("Transpose", [c.name("key")], perm=[0, 1, 3, 2])
    scores = graph.value("MatMul", [c.name("query"), turned])
    scores = graph.value("Mul", [scores, graph.constant(scale, np.dtype(str(dtype)))])
    if c.get("is_causal"):
        above = np.triu(np.full((queries[-2], keys[-2]), -np.inf), 1)
        scores = graph.value("Add", [scores, graph.constant(above, np.dtype(str(dtype)))])
    if c.get("attn_mask") is not None:
        scores = graph.value("Add", [scores, c.name("attn_mask", dtype)])
    weights = graph.value("Softmax", [scores], axis=-1)
    if c.get("attn_mask") is not None:  # a query that may look at nothing gets zeros
        highest = graph.value("ReduceMax", [scores, graph.constant([-1], np.int64)], keepdims=1)
        none = graph.value("Equal", [highest, graph.constant(-np.inf, np.dtype(str(dtype)))])
        weights = graph.value("Where", [none, graph.constant(0, np.dtype(str(dtype))), weights])
    c.add("MatMul", [weights, c.name("value")])


_OTHERS: dict[str, Callable[[OnnxCall], None]] = {
    **dict.fromkeys(("permute", "transpose", "t"), _transpose),
    "cat": _cat,
    "stack": _stack,
    "slice": _slice,
    "select": _select,
    "unbind": _unbind,
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    "mm": _product,
    "bmm": _product,
    "addmm": _addmm,
    "convolution": _convolution,
    "native_batch_norm": _batch_norm,
    "native_layer_norm": _layer_norm,
    "max_pool2d_with_indices": _max_pool,
    "avg_pool2d": _average_pool,
    "_adaptive_avg_pool2d": _adaptive_pool,
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "gelu": _gelu,
    "silu": _silu,
    "rsqrt": _rsqrt,
    "ne": _not_equal,
    "where": _where,
    "masked_fill": _masked_fill,
    "clamp": _clamp,
    "hardtanh": _clamp,
    "_to_copy": _cast,
    "embedding": _embedding,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
}
