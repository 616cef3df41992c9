"""ONNX converters of scans along a dimension: a loop that carries a value.

Partial results in a different order may overflow, or lose small numbers.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from calque.convert.onnx_calls import OnnxCall, kind_of, library

Step = Callable[["Body", dict[str, str]], dict[str, str]]
"""A function from the carried values and `each` to the new carried values."""


class Body:
    """Nodes of the loop."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def value(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node, and return the name of its result."""
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(library().helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any, dtype: str) -> str:
        """Returns the name of a number."""
        name = f"constant_{len(self.constants)}"
        array = np.asarray(value, np.dtype(dtype))
        self.constants.append(library().numpy_helper.from_array(array, name))
        return name


def _scan(c: OnnxCall, starts: dict[str, np.ndarray], step: Step, shown: list[str]) -> None:
    """Add the loop; its results are the carried values at each step.

    Args:
        starts: the initial carried values, by name.
        shown: the names of the values that are results.
    """
    helper, body, dim = library().helper, Body(), c["dim"] % c.rank()
    shape = [size for i, size in enumerate(c.shape) if i != dim]

    def info(name: str, like: np.ndarray, shape: object) -> Any:
        return helper.make_tensor_value_info(name, kind_of(like.dtype.name), shape)

    after = step(body, {**{name: name for name in starts}, "each": "each"})
    given = [info(name, start, start.shape) for name, start in starts.items()]
    own = starts[shown[0]].dtype
    given.append(helper.make_tensor_value_info("each", kind_of(own.name), shape))
    made = [(f"next_{name}", after[name], name) for name in starts]
    made += [(f"shown_{name}", after[name], name) for name in shown]
    for name, value, _ in made:
        body.nodes.append(helper.make_node("Identity", [value], [name]))
    results = [info(name, starts[of], starts[of].shape) for name, _, of in made]
    loop = helper.make_graph(body.nodes, "scan", given, results, body.constants)
    inputs = [c.graph.constant(start) for start in starts.values()] + [c.name("self", own.name)]
    ends = [f"{c.graph.fresh()}.{name}" for name in starts]
    results = [out.name for out in c.call.outputs]
    is_narrow = own.name != c.out.dtype
    first = f"{c.graph.fresh()}.first" if is_narrow else results[0]
    axes = {"scan_input_axes": [dim], "scan_output_axes": [dim] * len(shown)}
    names = [*ends, first, *results[1:]]
    c.graph.add("Scan", inputs, names, body=loop, num_scan_inputs=1, **axes)
    if is_narrow:
        c.add("Cast", [first], to=kind_of(c.out.dtype))


def _start(c: OnnxCall, value: object) -> np.ndarray:
    shape = [size for i, size in enumerate(c.shape) if i != c["dim"] % c.rank()]
    return np.full(shape, value, np.dtype(str(c.out.dtype)))


def _is_trivial(c: OnnxCall) -> bool:
    """Adds the result and returns True if there is nothing to loop over."""
    if c.rank() and c.size():
        return False
    c.add("Identity", [c.name("self", c.out.dtype)])
    for out in c.call.outputs[1:]:
        zeros = c.graph.constant(np.zeros(c.shape), np.int64)
        c.graph.add("Identity", [zeros], [out.name])
    return True


def _running_product(c: OnnxCall) -> None:
    def step(body: Body, v: dict[str, str]) -> dict[str, str]:
        return {"product": body.value("Mul", v["product"], v["each"])}

    c.shown("dim")
    if not _is_trivial(c):
        _scan(c, {"product": _start(c, 1)}, step, ["product"])


def _running_extreme(kind: str) -> Callable[[OnnxCall], None]:
    """Implements `cummax` and `cummin`: the last of equal elements, and NaN from the first NaN
    on.
    """

    def convert(c: OnnxCall) -> None:
        c.shown("dim")
        # ONNX does not order booleans.
        dtype = "int32" if c.out.dtype == "bool" else str(c.out.dtype)
        if _is_trivial(c):
            return

        def step(body: Body, v: dict[str, str]) -> dict[str, str]:
            takes = body.value(f"{kind}OrEqual", v["each"], v["best"])
            if "float" in dtype:
                holds = body.value("Not", body.value("IsNaN", v["best"]))
                takes = body.value("And", takes, holds)
                takes = body.value("Or", takes, body.value("IsNaN", v["each"]))
            first = body.value("Equal", v["step"], body.constant(0, "int64"))
            takes = body.value("Or", takes, first)
            return {
                "best": body.value("Where", takes, v["each"], v["best"]),
                "place": body.value("Where", takes, v["step"], v["place"]),
                "step": body.value("Add", v["step"], body.constant(1, "int64")),
            }

        best = _start(c, 0).astype(dtype)
        starts = {"best": best, "place": np.zeros(best.shape, np.int64)}
        _scan(c, {**starts, "step": np.zeros((), np.int64)}, step, ["best", "place"])

    return convert


def _running_logarithm(c: OnnxCall) -> None:
    def step(body: Body, v: dict[str, str]) -> dict[str, str]:
        high = body.value("Max", v["sum"], v["each"])
        parts = [body.value("Exp", body.value("Sub", v[n], high)) for n in ("sum", "each")]
        found = body.value("Add", high, body.value("Log", body.value("Add", *parts)))
        return {"sum": body.value("Where", body.value("IsInf", high), high, found)}

    c.shown("dim")
    if not _is_trivial(c):
        _scan(c, {"sum": _start(c, -np.inf)}, step, ["sum"])


SCANS: dict[str, Callable[[OnnxCall], None]] = {
    "cummax": _running_extreme("Greater"),
    "cummin": _running_extreme("Less"),
    "cumprod": _running_product,
    "logcumsumexp": _running_logarithm,
}
