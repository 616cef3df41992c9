"""A graph of AOTAutograd with symbols for the varying sizes, for `bucketed_graph`."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import torch
from jax import Array
from torch import fx

from calque.device.runtime.dtypes import to_numpy
from calque.dynamo.buckets.options import Buckets, symbol_of
from calque.dynamo.buckets.padding import Unpaddable
from calque.dynamo.buckets.padding.padded import Layout, divided, joined
from calque.errors.handlers import is_of_handler
from calque.graph.array_graph import ArrayNodes
from calque.graph.dimensions import Dimensions
from calque.graph.node_location import line_of
from calque.program.jaxprs import prune
from calque.program.lifted import lift
from calque.program.lifting import Input, Lifting
from calque.program.sources import ArgumentSource
from calque.upstream.jax_internals import is_symbolic_dim
from calque.upstream.torch_internals import OpOverload

Tensor = torch.Tensor


class FunctionalGraph:
    """A graph whose final writes have become results.

    Attributes:
        nodes: runs the graph on arrays.
        placeholders: its inputs.
        results: the nodes of its results, or constants.
        written: the inputs that are written; their new values come after the results.
        returned: how many of the results the user gets.
        others: the inputs that are neither tensors nor sizes.
        symbols: the symbols whose sizes are padded.
        orders: see `Buckets`.

    Raises:
        Unpaddable: it has other effects than its results, or none of its sizes vary.
    """

    def __init__(self, graph: fx.GraphModule, buckets: Buckets, returned: int | None) -> None:
        copied = fx.Graph()
        output = copied.graph_copy(graph.graph, {})
        found = list(output) if isinstance(output, tuple | list) else [output]
        values: list[Any] = []
        self.placeholders: list[Any] = [node for node in copied.nodes if node.op == "placeholder"]
        self.written: list[int] = []
        for node in list(copied.nodes):
            if node.op != "call_function" or not _is_mutable(node.target):
                continue
            target = node.args[0]
            if str(node.target) != "aten.copy_.default" or target not in self.placeholders:
                raise Unpaddable(f"{_place(node)}{node.target} writes to a tensor")
            if node.users:
                raise Unpaddable(f"{_place(node)}a tensor that is written to is used afterwards")
            self.written.append(self.placeholders.index(target))
            values.append(node.args[1])
            copied.erase_node(node)
        self.results: list[Any] = found
        self.returned: int = len(found) if returned is None else returned
        self._check(found)
        copied.output((*found, *values))
        self.nodes: _Named = _Named(fx.GraphModule(graph, copied))
        kinds = Tensor | torch.SymInt
        found = [not isinstance(node.meta.get("val"), kinds) for node in self.placeholders]
        self.others: list[int] = [index for index, other in enumerate(found) if other]
        self._sources = self._find_sources()
        self.orders: dict[str, list[list[str]]] = buckets.orders
        self.symbols: list[str] = [s for s in buckets.rules if s in self._sources]
        if not self.symbols:
            raise Unpaddable("no dynamic size belongs to an input")
        shape_env = next(_symbols(self.placeholders)).node.shape_env
        self.ranges: Any = shape_env.var_to_range
        self._ranges = {str(symbol): bounds for symbol, bounds in self.ranges.items()}

    def _check(self, found: Sequence[Any]) -> None:
        memory = [n.meta["val"].untyped_storage()._cdata for n in self.placeholders if is_tensor(n)]
        seen = set(memory)
        for node in found[: self.returned]:
            if not is_tensor(node):
                continue
            value = node.meta["val"]
            place = value.untyped_storage()._cdata
            if place not in memory and (value.is_conj() or value.is_neg()):
                raise Unpaddable(f"{_place(node)}a result is a lazy conjugate or negative")
            if place in seen and place not in memory:
                raise Unpaddable(f"{_place(node)}two results share memory")
            seen.add(place)

    def _find_sources(self) -> dict[str, tuple[int, int | None]]:
        """Returns the input and dimension in which each symbol's size is found."""
        found: dict[str, tuple[int, int | None]] = {}
        for index, node in enumerate(self.placeholders):
            value = node.meta.get("val")
            symbol = symbol_of(value)
            if symbol is not None:
                found[symbol] = (index, None)
            for dimension, size in enumerate(value.shape if isinstance(value, Tensor) else ()):
                symbol = symbol_of(size)
                if symbol is not None:
                    found.setdefault(symbol, (index, dimension))
        missing = {str(s) for n in _symbols(self.placeholders) for s in n.node.expr.free_symbols}
        if missing - set(found):
            raise Unpaddable("a dynamic size is not the size of an input itself")
        return found

    def sizes(self, inputs: Sequence[Any]) -> dict[str, int]:
        """Returns the values of the symbols in a call."""
        return {
            symbol: inputs[index] if dimension is None else inputs[index].shape[dimension]
            for symbol, (index, dimension) in self._sources.items()
        }

    def most(self, symbol: str) -> int | None:
        """Returns the greatest size for which the graph is valid."""
        bounds = self._ranges.get(symbol)
        upper = None if bounds is None else bounds.upper
        return int(upper) if upper is not None and upper.is_Integer else None


def _symbols(nodes: Sequence[fx.Node]) -> Any:
    for node in nodes:
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, Tensor) else [value]
        yield from (size for size in sizes if isinstance(size, torch.SymInt))


def is_tensor(node: Any) -> bool:
    """Returns True if a result or a placeholder is a tensor."""
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), Tensor)


def _is_mutable(target: Any) -> bool:
    return isinstance(target, OpOverload) and target._schema.is_mutable


def _place(node: fx.Node) -> str:
    line = line_of(node)
    return f"{line}: " if line else ""


class _Named(ArrayNodes):
    """Names the equations of each node after it."""

    def run_node(self, n: fx.Node) -> Any:
        with jax.named_scope(n.name):
            return super().run_node(n)


class SymbolicProgram:
    """A graph traced with symbols for the sizes that are padded.

    Attributes:
        closed: the program; its results are those of the graph that are arrays.
        sources: its inputs.
        draws: how many random numbers it draws.
        results: each result of the graph: an array's index, a size, or another value.
        shapes: the shapes of the arrays.
        order: the symbols, outermost first.
    """

    def __init__(
        self,
        graph: FunctionalGraph,
        inputs: list[Any],
        fixed: Mapping[str, int],
        same: Mapping[str, str],
    ) -> None:
        self.graph = graph
        self._same = same
        lifting = Lifting()
        try:
            self.dimensions: Dimensions = Dimensions(graph.placeholders, graph.ranges, fixed, same)
            lifted = lift(lifting, lambda: self._body(lifting, inputs))
        except Exception as error:  # the program's own errors occur unpadded, too
            if is_of_handler(error):
                raise
            raise Unpaddable(str(error)) from error
        self.closed: jax.extend.core.ClosedJaxpr
        self.closed, kept = prune(lifted.closed)
        self.sources: list[Input] = [lifted.inputs[i] for i in kept]
        self.draws: int = lifting.draws

    def _body(self, lifting: Lifting, inputs: list[Any]) -> list[Array]:
        given: list[Any] = []
        for index, node in enumerate(self.graph.placeholders):
            value = node.meta.get("val")
            if isinstance(value, Tensor):
                shape = self.dimensions.of(value.shape)
                given.append(lifting.new_input(ArgumentSource(index), shape, to_numpy(value.dtype)))
            elif isinstance(value, torch.SymInt):
                (size,) = self.dimensions.of([value])
                given.append(size)
            elif isinstance(value, torch.SymFloat | torch.SymBool):
                raise Unpaddable("a dynamic number is not a size")
            else:
                given.append(inputs[index])
        found = self.graph.nodes.results(given)
        arrays: list[Array] = []
        places: dict[fx.Node, ResultIndex] = {}
        self.results: list[Any] = []
        for value, node in itertools.zip_longest(found, self.graph.results):
            if isinstance(node, fx.Node) and node.op == "placeholder":
                self.results.append(None)  # the argument itself
            elif node in places:
                self.results.append(places[node])
            elif isinstance(value, Array):
                self.results.append(ResultIndex(len(arrays)))
                arrays.append(value)
                if isinstance(node, fx.Node):
                    places[node] = self.results[-1]
            elif value is None or isinstance(value, int | float) or is_symbolic_dim(value):
                self.results.append(value)
            else:
                raise Unpaddable(f"a result is of the type {type(value).__name__}")
        self.shapes: list[tuple[int, ...]] = [array.shape for array in arrays]
        return arrays

    def place_of(self, equation: Any) -> str:
        """Returns the operator that an equation belongs to, and the user's line."""
        stack = equation.source_info.name_stack.stack
        module: Any = self.graph.nodes.module
        names = {node.name: node for node in module.graph.nodes}
        for scope in stack:
            node = names.get(getattr(scope, "name", ""))
            if node is not None:
                return f"{_place(node)}{node.target}: "
        return ""

    def layout(self, size: object, order: Sequence[str]) -> Layout:
        """Returns the padded layout of an axis; for a product, its factors in the order of the
        symbols.

        Any order is correct, but the one in which the axis was joined needs no conversion.
        """
        if not is_symbolic_dim(size):
            return None
        parts = []
        for symbol in dict.fromkeys((*order, *self.graph.symbols)):
            known = self.dimensions.known[self._same.get(symbol, symbol)]
            while size != 1 and (quotient := divided(size, known)) is not None:
                parts.append(known)
                size = quotient
        if is_symbolic_dim(size) and parts:
            raise Unpaddable("a size is a product of sums of sizes")
        return joined([*parts, size])


class ResultIndex(int):
    """The index of an array among the results of a program."""
