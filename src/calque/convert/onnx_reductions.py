"""ONNX converters of operators that reduce, search or accumulate along dimensions."""

from collections.abc import Callable

import numpy as np

from calque.convert.onnx_calls import OnnxCall, kind_of


def _dims(c: OnnxCall) -> list[int]:
    dims = c.get("dim")
    dims = list(range(c.rank())) if dims is None or dims == [] else dims
    return [dims] if isinstance(dims, int) else list(dims)


def _reduction(kind: str) -> Callable[[OnnxCall], None]:
    def convert(c: OnnxCall) -> None:
        if kind in ("ReduceMax", "ReduceMin"):
            c.add("Identity", [_reduced(c, kind)])
            return
        if kind in ("ReduceMean", "ReduceLogSumExp") and not np.prod(c["self"].shape):
            # ONNX leaves open what the mean of no elements is.
            c.shown("dim", "keepdim")
            nothing = np.nan if kind == "ReduceMean" else -np.inf
            c.add("Identity", [c.graph.constant(np.full(c.shape, nothing), str(c.out.dtype))])
            return
        inputs = [c.name("self", c.out.dtype), c.graph.constant(_dims(c), np.int64)]
        c.add(kind, inputs, keepdims=int(bool(c.get("keepdim"))))

    return convert


def _reduced(c: OnnxCall, kind: str) -> str:
    """Returns the largest or smallest element, or NaN if there is any,
    which ONNX Runtime ignores.
    """
    return _reduced_over(c, kind, c.name("self"), c.graph.constant(_dims(c), np.int64))


def _reduced_over(c: OnnxCall, kind: str, x: str, axes: str) -> str:
    dtype, keeps = str(c.out.dtype), int(bool(c.get("keepdim")))
    found = c.graph.value(kind, [x, axes], keepdims=keeps)
    if "float" not in dtype:
        return found
    flags = c.cast(c.graph.value("IsNaN", [x]), "int32")
    is_any = c.cast(c.graph.value("ReduceMax", [flags, axes], keepdims=keeps), "bool")
    return c.graph.value("Where", [is_any, c.named(np.nan, dtype), found])


def _any_or_all(kind: str) -> Callable[[OnnxCall], None]:
    """Casts booleans, because ONNX reduces only numbers."""

    def convert(c: OnnxCall) -> None:
        if c.out.dtype != "bool":
            c.refuse("a result that is no boolean")
        truth = c.cast(c.name("self", "bool"), "int32")
        dims = c.graph.constant(_dims(c), np.int64)
        found = c.graph.value(kind, [truth, dims], keepdims=int(bool(c.get("keepdim"))))
        c.add("Cast", [found], to=kind_of("bool"))

    return convert


def _variance(c: OnnxCall) -> None:
    """Computes the variance, followed by the mean for `var_mean`."""
    dims, shape = _dims(c), c["self"].shape
    correction = c.get("correction")
    correction = 1 if correction is None else correction
    if "unbiased" in c.call.arguments:
        correction = int(c["unbiased"])
    count = int(np.prod([shape[dim] for dim in dims]))
    if count <= correction:
        c.refuse("a variance of too few elements")
    keeps, axes = int(bool(c.get("keepdim"))), c.graph.constant(dims, np.int64)
    x = c.name("self")
    apart = c.graph.value("Sub", [x, c.graph.value("ReduceMean", [x, axes], keepdims=1)])
    square = c.graph.value("Mul", [apart, apart])
    mean = c.graph.value("ReduceMean", [square, axes], keepdims=keeps)
    factor = c.named(count / (count - correction), c.out.dtype)
    c.add("Mul", [mean, factor])
    if "var_mean" in c.call.op:
        c.graph.add("ReduceMean", [x, axes], [c.call.outputs[1].name], keepdims=keeps)


def _norm(c: OnnxCall) -> None:
    order = c.get("ord") if "ord" in c.call.arguments else c.get("p")
    order, dtype = 2.0 if order is None else float(order), c.out.dtype
    x, axes = c.name("self", dtype), c.graph.constant(_dims(c), np.int64)
    keeps = int(bool(c.get("keepdim")))
    if order in (1.0, 2.0):
        c.add("ReduceL1" if order == 1 else "ReduceL2", [x, axes], keepdims=keeps)
        return
    size = c.graph.value("Abs", [x])
    if abs(order) == np.inf:
        kind = "ReduceMax" if order > 0 else "ReduceMin"
        c.add("Identity", [_reduced_over(c, kind, size, axes)])
    elif order == 0:
        is_zero = c.graph.value("Equal", [x, c.named(0, dtype)])
        parts = c.cast(c.graph.value("Not", [is_zero]), dtype)
        c.add("ReduceSum", [parts, axes], keepdims=keeps)
    else:
        parts = c.graph.value("Pow", [size, c.named(order, dtype)])
        total = c.graph.value("ReduceSum", [parts, axes], keepdims=keeps)
        c.add("Pow", [total, c.named(1 / order, dtype)])


def _place_of(kind: str) -> Callable[[OnnxCall], None]:
    """Implements `argmax` and `argmin`: as in PyTorch, the first of equal elements, or the first
    NaN.
    """

    def convert(c: OnnxCall) -> None:
        x, dim = _numbers(c), c["dim"]
        if dim is None:
            x = c.graph.value("Reshape", [x, c.graph.constant([-1], np.int64)])
        keeps = int(bool(c.get("keepdim")) and dim is not None)
        extreme = np.inf if kind == "ArgMax" else -np.inf
        if "float" in str(c["self"].dtype):
            # NaN must be distinguished from the largest number.
            x = _nan_first(c, x, 0 if dim is None else dim, extreme)
        places = {"axis": 0 if dim is None else dim, "select_last_index": 0}
        if dim is None and c.get("keepdim"):
            found = c.graph.value(kind, [x], keepdims=0, **places)
            c.add("Reshape", [found, c.graph.constant(c.shape, np.int64)])
        else:
            c.add(kind, [x], keepdims=keeps, **places)

    return convert


def _numbers(c: OnnxCall) -> str:
    return c.name("self", "int32" if c["self"].dtype == "bool" else None)


def _nan_first(c: OnnxCall, x: str, dim: int, extreme: float) -> str:
    """Returns the values or, if they contain NaN, a mask that is largest at the first NaN."""
    dtype = str(c["self"].dtype)
    is_nan = c.graph.value("IsNaN", [x])
    flags = c.cast(is_nan, "int32")
    axes = c.graph.constant([dim], np.int64)
    any_nan = c.cast(c.graph.value("ReduceMax", [flags, axes], keepdims=1), "bool")
    high, low = c.named(extreme, dtype), c.named(-extreme, dtype)
    marked = c.graph.value("Where", [is_nan, high, low])
    return c.graph.value("Where", [any_nan, marked, x])


def _extreme(kind: str) -> Callable[[OnnxCall], None]:
    """Implements `max` and `min`: of all elements, of two tensors, or along a dimension with
    indices.
    """

    def convert(c: OnnxCall) -> None:
        if "other" in c.call.arguments:
            c.add(kind, [c.name("self", c.out.dtype), c.name("other", c.out.dtype)])
            return
        c.add("Identity", [_reduced(c, f"Reduce{kind}")])
        if "dim" in c.call.arguments:
            x, keeps = c.name("self"), int(bool(c.get("keepdim")))
            if c.is_floating():
                x = _nan_first(c, x, c["dim"], np.inf if kind == "Max" else -np.inf)
            places = [c.call.outputs[1].name]
            c.graph.add(f"Arg{kind}", [x], places, axis=c["dim"], keepdims=keeps)

    return convert


def _running_sum(c: OnnxCall) -> None:
    x, dim = c.name("self", c.out.dtype), c.graph.constant(c["dim"], np.int64)
    c.add("CumSum", [x, dim]) if c.rank() else c.add("Identity", [x])


def _largest(c: OnnxCall) -> None:
    c.shown("sorted")
    count = c.graph.constant([c["k"]], np.int64)
    names = [out.name for out in c.call.outputs]
    options = {"largest": int(c["largest"]), "sorted": 1}
    c.graph.add("TopK", [c.name("self"), count], names, axis=c["dim"], **options)


def _at_rank(c: OnnxCall) -> None:
    """Implements `kthvalue` and `median`: NaN is sorted last, and is the median if there is any."""
    c.shown("keepdim")  # reflected in the result's shape
    is_median, dim = ".median." in c.call.op, c.get("dim")
    x, graph, size = c.name("self"), c.graph, c["self"].shape
    if dim is None:
        x = graph.value("Reshape", [x, graph.constant([-1], np.int64)])
        size, dim = (int(np.prod(size)),), 0
    if not size or not size[dim]:
        c.refuse("a choice among no elements, or of a number")
    rank = (size[dim] + 1) // 2 if is_median else c["k"]
    ordered, is_nan = x, ""
    if "float" in str(c["self"].dtype):
        is_nan = graph.value("IsNaN", [x])
        ordered = graph.value("Where", [is_nan, c.named(np.inf, str(c["self"].dtype)), x])
    places = graph.fresh()
    inputs = [ordered, graph.constant([rank], np.int64)]
    graph.add("TopK", inputs, [f"{places}.values", places], axis=dim, largest=0, sorted=1)
    places = graph.value("Gather", [places, graph.constant([rank - 1], np.int64)], axis=dim)
    if is_median and is_nan:
        flags, axes = c.cast(is_nan, "int32"), graph.constant([dim], np.int64)
        is_any = c.cast(graph.value("ReduceMax", [flags, axes], keepdims=1), "bool")
        first = graph.value("ArgMax", [flags], axis=dim, keepdims=1)
        places = graph.value("Where", [is_any, first, places])
    shape = graph.constant(c.shape, np.int64)
    found = graph.value("GatherElements", [x, places], axis=dim)
    c.add("Reshape", [found, shape])
    if len(c.call.outputs) > 1:
        graph.add("Reshape", [places, shape], [c.call.outputs[1].name])


REDUCTIONS: dict[str, Callable[[OnnxCall], None]] = {
    "all": _any_or_all("ReduceMin"),
    "amax": _reduction("ReduceMax"),
    "amin": _reduction("ReduceMin"),
    "any": _any_or_all("ReduceMax"),
    "argmax": _place_of("ArgMax"),
    "argmin": _place_of("ArgMin"),
    "cumsum": _running_sum,
    "kthvalue": _at_rank,
    "linalg_vector_norm": _norm,
    "logsumexp": _reduction("ReduceLogSumExp"),
    "max": _extreme("Max"),
    "mean": _reduction("ReduceMean"),
    "median": _at_rank,
    "min": _extreme("Min"),
    "prod": _reduction("ReduceProd"),
    "sum": _reduction("ReduceSum"),
    "topk": _largest,
    "var": _variance,
    "var_mean": _variance,
}
