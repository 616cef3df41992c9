"""ONNX converters of operators that arrange, select and create elements."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from calque.convert.calls import array_of
from calque.convert.onnx_calls import OnnxCall, kind_of

RESHAPES = ("view", "reshape", "_unsafe_view", "expand", "unsqueeze", "squeeze")
CREATIONS = ("arange", "full", "zeros", "ones", "scalar_tensor", "eye", "linspace", "logspace")
FILLED_LIKE = {"zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1}
FILLED_LIKE |= dict.fromkeys(("empty", "empty_like", "new_empty"), 0)


def _reshape(c: OnnxCall) -> None:
    c.shown("size", "shape", "dim", "implicit")
    kind = "Expand" if ".expand." in c.call.op else "Reshape"
    c.add(kind, [c.name("self"), c.graph.constant(c.shape, np.int64)])


def _creation(c: OnnxCall) -> None:
    c.shown(*c.call.arguments)
    if c.call.inputs:
        c.refuse("a tensor whose limits are tensors")
    arguments = {name: value for name, value in c.call.arguments.items() if name != "device"}
    made = array_of(c.call.target(**arguments))
    c.add("Identity", [c.graph.constant(made)])


def _transpose(c: OnnxCall) -> None:
    order = list(range(c.rank()))
    if "dims" in c.call.arguments:
        order = [dim % len(order) for dim in c["dims"]]
    else:
        first, second = (c["dim0"], c["dim1"]) if "dim0" in c.call.arguments else (0, -1)
        if len(order) > 1:  # `t` also takes vectors and scalars
            order[first], order[second] = order[second], order[first]
    x = [c.name("self")]
    if order:
        c.add("Transpose", x, perm=order)
    else:
        c.add("Identity", x)


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


def _filled_like(c: OnnxCall) -> None:
    c.shown("self", "size")
    packet = c.call.op.split(".")[1]
    value: Any = FILLED_LIKE[packet] if packet in FILLED_LIKE else c["fill_value"]
    made = torch.full(c.shape, value, dtype=getattr(torch, str(c.out.dtype)))
    c.add("Identity", [c.graph.constant(array_of(made))])


def _flip(c: OnnxCall) -> None:
    dims = [dim % c.rank() for dim in c["dims"]]
    limits = ([-1] * len(dims), [-(2**62)] * len(dims), dims, [-1] * len(dims))
    c.add("Slice", [c.name("self"), *(c.graph.constant(n, np.int64) for n in limits)])


def _pad(c: OnnxCall) -> None:
    before, after = [0] * c.rank(), [0] * c.rank()
    for i, start in enumerate(range(0, len(c["pad"]), 2)):
        before[-1 - i], after[-1 - i] = c["pad"][start : start + 2]
    pads = c.graph.constant([*before, *after], np.int64)
    c.add("Pad", [c.name("self"), pads, c.named(c["value"], c.out.dtype)], mode="constant")


def _triangle(c: OnnxCall) -> None:
    """Uses a mask, because `Trilu` does not support every dtype."""
    mask = np.ones(c.shape[-2:], bool)
    mask = np.triu(mask, c["diagonal"]) if "triu" in c.call.op else np.tril(mask, c["diagonal"])
    x = c.name("self")
    c.add_choice(c.graph.constant(mask), x, c.named(0, c.out.dtype))


def _gather(c: OnnxCall) -> None:
    c.shown("sparse_grad")
    c.add("GatherElements", [c.name("self"), c.name("index")], axis=c["dim"])


def _roll(c: OnnxCall) -> None:
    x, dims, shape = c.name("self"), c["dims"], c["self"].shape
    if not dims:
        x, shape, dims = c.graph.value("Reshape", [x, _whole(c, [-1])]), (c.size(),), [0]
    for shift, dim in zip(c["shifts"], dims, strict=True):
        cut = -shift % shape[dim] if shape[dim] else 0
        front = c.graph.value("Slice", [x, _whole(c, [0]), _whole(c, [cut]), _whole(c, [dim])])
        ends = [_whole(c, [cut]), _whole(c, [2**62]), _whole(c, [dim])]
        x = c.graph.value("Concat", [c.graph.value("Slice", [x, *ends]), front], axis=dim)
    c.add("Reshape", [x, _whole(c, c.shape)])


def _whole(c: OnnxCall, numbers: Any) -> str:
    return c.graph.constant(numbers, np.int64)


def _copy(c: OnnxCall) -> None:
    c.shown("self")
    c.add("Expand", [c.name("src", c.out.dtype), _whole(c, c.shape)])


def _fill(c: OnnxCall) -> None:
    c.shown("self")
    c.add("Expand", [c.name("value", c.out.dtype), _whole(c, c.shape)])


def _scatter(c: OnnxCall) -> None:
    _refuse_numbers(c)
    index, reduction = c["index"], _REDUCTIONS[c.get("reduce")]
    if reduction != "none" and c.out.dtype == "bool":
        c.refuse("a scatter that reduces booleans")
    if "src" in c.call.arguments:
        taken = [c.name("src"), *(_whole(c, n) for n in _corner(index.shape))]
        values = c.graph.value("Slice", taken)
    else:
        values = c.graph.value("Expand", [c.name("value", c.out.dtype), _whole(c, index.shape)])
    inputs = [c.name("self"), c.name("index"), values]
    c.add("ScatterElements", inputs, axis=c["dim"], reduction=reduction)


_REDUCTIONS = {None: "none", "add": "add", "multiply": "mul", "sum": "add", "prod": "mul"}
_REDUCTIONS |= {"amax": "max", "amin": "min"}


def _refuse_numbers(c: OnnxCall) -> None:
    if not c.rank():
        c.refuse("a scatter into a number")


def _scatter_reduce(c: OnnxCall) -> None:
    """Also handles the mean, and `include_self=False`."""
    _refuse_numbers(c)
    kind, dtype = c["reduce"], str(c.out.dtype)
    if dtype == "bool" or (kind == "mean" and not c.is_floating()):
        c.refuse(f"a scatter that reduces by {kind}, of {dtype}")
    index, axis = c["index"], {"axis": c["dim"]}
    value, shape = c.graph.value, index.shape
    source = value("Slice", [c.name("src"), *(_whole(c, n) for n in _corner(shape))])
    places, x = c.name("index"), c.name("self")
    if not c["include_self"]:
        start = c.graph.constant(np.full(shape, _neutral(kind, dtype), np.dtype(dtype)))
        x = value("ScatterElements", [x, places, start], **axis)
    if kind != "mean":
        c.add("ScatterElements", [x, places, source], reduction=_REDUCTIONS[kind], **axis)
        return
    total = value("ScatterElements", [x, places, source], reduction="add", **axis)
    counts = c.graph.constant(np.full(c.shape, float(c["include_self"]), np.dtype(dtype)))
    ones = c.graph.constant(np.ones(shape, np.dtype(dtype)))
    counts = value("ScatterElements", [counts, places, ones], reduction="add", **axis)
    c.add("Div", [total, value("Max", [counts, c.named(1, dtype)])])


def _neutral(kind: str, dtype: str) -> Any:
    """Returns the initial value of a reduction."""
    if kind in ("sum", "mean", "prod"):
        return float(kind == "prod")
    limits: Any = np.iinfo(dtype) if "int" in dtype else None
    if limits is None:
        return -np.inf if kind == "amax" else np.inf
    return limits.min if kind == "amax" else limits.max


def _scatter_add(c: OnnxCall) -> None:
    _refuse_numbers(c)
    if c.out.dtype == "bool":
        c.refuse("a scatter that adds booleans")
    index = c["index"]
    values = c.graph.value("Slice", [c.name("src"), *(_whole(c, n) for n in _corner(index.shape))])
    inputs = [c.name("self"), c.name("index"), values]
    c.add("ScatterElements", inputs, axis=c["dim"], reduction="add")


def _corner(shape: tuple[int, ...]) -> tuple[list[int], list[int], list[int]]:
    return [0] * len(shape), list(shape), list(range(len(shape)))


def _index_put(c: OnnxCall) -> None:
    """`x[mask] = 0` and `x[:, i, j] = y`."""
    given, rank = c["indices"], c.rank()
    dims = [dim for dim, index in enumerate(given) if index is not None]
    adds = bool(c["accumulate"])
    if adds and (c.out.dtype == "bool" or any(given[dim].dtype == "bool" for dim in dims)):
        c.refuse("an assignment that adds, of booleans or where a mask holds")
    if any(given[dim].dtype in ("bool", "uint8") for dim in dims):
        _put_by_mask(c, given, dims)
        return
    shape = np.broadcast_shapes(*(given[dim].shape for dim in dims))
    rest = [dim for dim in range(rank) if dim not in dims]
    together = dims[-1] - dims[0] == len(dims) - 1
    before = len([dim for dim in rest if dim < dims[0]]) if together else 0
    kept = [c["self"].shape[dim] for dim in rest]
    whole = _whole(c, (*kept[:before], *shape, *kept[before:]))
    values = c.graph.value("Expand", [c.name("values"), whole])
    moved = [*range(before, before + len(shape)), *range(before)]
    moved += range(before + len(shape), len(shape) + len(kept))
    values = c.graph.value("Transpose", [values], perm=moved)
    spread = _whole(c, [*shape, 1])
    places = [_column(c, given[dim], shape, spread) for dim in dims]
    places = c.graph.value("Concat", places, axis=len(shape))
    order = [*dims, *rest]
    turned = c.graph.value("Transpose", [c.name("self")], perm=order)
    reduction = "add" if adds else "none"
    found = c.graph.value("ScatterND", [turned, places, values], reduction=reduction)
    c.add("Transpose", [found], perm=[order.index(dim) for dim in range(rank)])


def _put_by_mask(c: OnnxCall, given: list[Any], dims: list[int]) -> None:
    if len(dims) != 1 or dims[0] or given[0].dtype != "bool" or np.prod(c["values"].shape) != 1:
        c.refuse("several values where a mask holds")
    shape = [*given[0].shape, *[1] * (c.rank() - len(given[0].shape))]
    mask = c.graph.value("Reshape", [c.named(given[0]), _whole(c, shape)])
    value = c.graph.value("Reshape", [c.name("values"), _whole(c, [1])])
    c.add_choice(c.graph.value("Expand", [mask, _whole(c, c.shape)]), value, c.name("self"))


def _sort(c: OnnxCall) -> None:
    c.shown("stable")  # the conversion is always stable
    if not c.rank():
        c.refuse("the order of a number")
    names = [out.name for out in c.call.outputs]
    count = _whole(c, [c["self"].shape[c["dim"]]])
    options = {"axis": c["dim"], "largest": int(c["descending"]), "sorted": 1}
    if c.out.dtype != "bool":
        c.graph.add("TopK", [c.name("self"), count], names, **options)
        return
    wide = f"{c.graph.fresh()}.wide"  # ONNX does not order booleans
    c.graph.add("TopK", [c.name("self", "int32"), count], [wide, *names[1:]], **options)
    c.add("Cast", [wide], to=kind_of("bool"))


def _index_select(c: OnnxCall) -> None:
    c.add("Gather", [c.name("self"), c.name("index")], axis=c["dim"])


def _index(c: OnnxCall) -> None:
    """`x[:, i, j]`: moves the indexed dimensions first, then gathers elements."""
    given, rank = c["indices"], c.rank()
    dims = [dim for dim, index in enumerate(given) if index is not None]
    if any(given[dim].dtype in ("bool", "uint8") for dim in dims):
        c.refuse("indices that are a mask")
    if len(dims) == 1:
        c.add("Gather", [c.name("self"), c.named(given[dims[0]], "int64")], axis=dims[0])
        return
    rest = [dim for dim in range(rank) if dim not in dims]
    shape = np.broadcast_shapes(*(given[dim].shape for dim in dims))
    turned = c.graph.value("Transpose", [c.name("self")], perm=[*dims, *rest])
    spread = c.graph.constant([*shape, 1], np.int64)
    parts = [_column(c, given[dim], shape, spread) for dim in dims]
    places = c.graph.value("Concat", parts, axis=len(shape))
    together = dims[-1] - dims[0] == len(dims) - 1
    before = len([dim for dim in rest if dim < dims[0]]) if together else 0
    found = c.graph.value("GatherND", [turned, places])
    count = len(shape)
    order = [*range(count, count + before), *range(count), *range(count + before, len(c.shape))]
    c.add("Transpose", [found], perm=order)


def _column(c: OnnxCall, index: object, shape: tuple[int, ...], spread: str) -> str:
    sizes = c.graph.constant(shape, np.int64)
    full = c.graph.value("Expand", [c.named(index, "int64"), sizes])
    return c.graph.value("Reshape", [full, spread])


INDEXING: dict[str, Callable[[OnnxCall], None]] = {
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(CREATIONS, _creation),
    **dict.fromkeys((*FILLED_LIKE, "full_like", "new_full"), _filled_like),
    **dict.fromkeys(("permute", "transpose", "t"), _transpose),
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    **dict.fromkeys(("tril", "triu"), _triangle),
    **dict.fromkeys(("index", "_unsafe_index"), _index),
    "cat": _cat,
    "constant_pad_nd": _pad,
    "copy": _copy,
    "fill": _fill,
    "index_put": _index_put,
    "roll": _roll,
    "scatter": _scatter,
    "scatter_add": _scatter_add,
    "scatter_reduce": _scatter_reduce,
    "sort": _sort,
    "flip": _flip,
    "gather": _gather,
    "index_select": _index_select,
    "select": _select,
    "slice": _slice,
    "stack": _stack,
    "unbind": _unbind,
}
