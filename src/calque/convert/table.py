"""A table of layers with their shapes, parameters and costs."""

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.convert.calls import Call, Calls
from calque.convert.counting import flops_of, macs_singly
from calque.convert.tensor_infos import TensorInfo
from calque.errors import with_user_frames
from calque.errors.printable import printable
from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.core.origins import origin_of
from calque.tracing.graph.purity import TracedGraph
from calque.tracing.graph.value_guards import expect_one
from calque.tracing.record import Recording
from calque.tracing.record.recording import lowered


@dataclass
class Layer:
    """A row: a call of a layer or a function.

    Attributes:
        name: the path of the module, or the name of the call.
        kind: the class of the module, or the function.
        output: the shapes of its results.
        parameters: the number of elements of its parameters, without those counted in a row above.
        macs: multiply-accumulate operations, in matrix products and convolutions.
        activation_bytes: the bytes of its results.
        source: the line of the program.
    """

    name: str
    kind: str
    output: str
    parameters: int
    macs: int
    activation_bytes: int
    source: str


class LayerTable:
    """The rows, as data, as text (`str`) and as CSV."""

    def __init__(self, rows: Iterable[Layer]) -> None:
        self.rows: list[Layer] = list(rows)

    def __str__(self) -> str:
        names = [f.name for f in fields(Layer)][:-1]
        cells = [[_shown(getattr(row, name)) for name in names] for row in self.rows]
        totals = (_shown(self.total(name)) for name in names[3:])
        cells.append(["total", "", "", *totals])
        head = [name.replace("_", " ") for name in names]
        widths = [max(len(line[i]) for line in (head, *cells)) for i in range(len(head))]

        def aligned(line: list[str]) -> str:
            left = [cell.ljust(width) for cell, width in zip(line[:3], widths)]
            right = [cell.rjust(width) for cell, width in zip(line[3:], widths[3:])]
            return "  ".join((*left, *right)).rstrip()

        return "\n".join(map(aligned, (head, *cells)))

    def total(self, column: str) -> int:
        """Returns the sum of a column of numbers.

        Raises:
            ValueError: the column does not exist.
        """
        numbers = [f.name for f in fields(Layer) if f.type in (int, "int")]
        if column not in numbers:
            raise ValueError(f"the numeric columns are {', '.join(numbers)}, not {column!r}")
        return sum(getattr(row, column) for row in self.rows)

    def to_csv(self) -> str:
        """Returns the rows as CSV, with a header; names that contain commas or quotes are quoted.

        A name that a spreadsheet would interpret as a formula gets an apostrophe in front.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = [f.name for f in fields(Layer)]
        writer.writerow(names)
        writer.writerows([_cell(getattr(row, name)) for name in names] for row in self.rows)
        return text.getvalue()


@with_user_frames
def layer_table(recording: Recording) -> LayerTable:
    """Returns the layers of a recorded program, in the order in which it calls them.

    A PyTorch layer is one row, and so is a function call outside such a layer. MACs are counted in
    the program's operators, by the formulas of `torch.utils.flop_counter`. Those of gradients that
    it computes (`backward`, `torch.autograd.grad`) are not counted.

    Raises:
        TraceError: no graph of the recording would be right, or the operations of a call cannot be
            counted.

    >>> import calque, torch
    >>> recording = calque.record(torch.nn.Linear(3, 2), torch.ones(5, 3))
    >>> (row,) = layer_table(recording).rows
    >>> row.parameters, row.macs, row.activation_bytes
    (8, 30, 40)
    """
    graph = recording.graph("module", follow=False)
    calls = Calls(graph)
    macs = _macs(graph)
    held: set[int] = set()
    return LayerTable(_row(graph, call, macs.get(call.name, 0), held) for call in calls)


def _row(graph: GraphModule, call: Call, macs: int, held: set[int]) -> Layer:
    parameters = [p for p in _parameters(graph, call) if id(p) not in held]
    held.update(map(id, parameters))
    kind = call.op.rpartition(".")[2]
    return Layer(
        name=call.path if call.kind == "module" else call.name,
        kind=kind,
        output=" ".join("x".join(map(str, out.shape or ())) or "-" for out in call.outputs),
        parameters=sum(p.numel() for p in parameters),
        macs=macs,
        activation_bytes=sum(map(_bytes, call.outputs)),
        source=str(call.source or ""),
    )


def _parameters(graph: GraphModule, call: Call) -> list[torch.nn.Parameter]:
    if call.kind == "module":
        return list(call.target.parameters())
    known = dict(graph.named_parameters(remove_duplicate=False))
    return [known[name] for name in call.weights if name in known]


def _bytes(info: TensorInfo) -> int:
    if info.shape is None or info.dtype is None:
        return 0
    return math.prod(info.shape) * getattr(torch, info.dtype).itemsize


def _macs(graph: GraphModule) -> dict[str, int]:
    """Returns the MACs of each call of a graph, by the name of its node."""
    try:
        with torch.no_grad():  # gradients are not counted
            operators = lowered(_marked(graph))
    except SymbolicTraceError:
        singly = macs_singly(graph)
        if singly is None:
            raise
        return singly
    found: dict[str, int] = {}
    for node in operators.graph.nodes:
        if node.op != "call_function":
            continue
        flops, origin = flops_of(node), origin_of(node)
        if flops is not None and origin is not None:
            found[origin.function] = found.get(origin.function, 0) + flops // 2
    return found


def _marked(graph: GraphModule) -> GraphModule:
    """Returns a copy of a graph whose nodes have their own names as their origins.

    Two inputs that are the same tensor become two, which does not affect the counts.
    """
    made = TracedGraph()
    made._codegen = graph.graph._codegen
    nodes: dict[Node, Node] = {}
    for node in graph.graph.nodes:
        if node.target is expect_one:
            continue
        copied = nodes[node] = made.node_copy(node, nodes.__getitem__)
        origin = node.meta.get("origin")
        if origin is not None:
            copied.meta["origin"] = origin._replace(function=node.name)
    module = GraphModule(graph, made)
    module.training = graph.training
    return module


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def _cell(value: Any) -> Any:
    """Returns a value for CSV, escaped so that it is neither a formula nor a terminal sequence."""
    if isinstance(value, int):
        return value
    text = printable(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") and text != "-" else text
