"""Runs a graph of AOTAutograd for varying sizes, with one XLA program for each set of buckets."""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import Array
from jax.errors import JaxRuntimeError
from jax.extend.core import ClosedJaxpr
from torch import fx

from calque.device.memory import rng
from calque.device.memory.cell import cell_of, read, write, x64
from calque.dynamo.buckets import transfers
from calque.dynamo.buckets.options import Buckets, number
from calque.dynamo.buckets.padding import Padded, Sizes, Unpaddable, run
from calque.dynamo.buckets.padding.padded import Layout, settled
from calque.dynamo.buckets.symbolic_shapes import (
    FunctionalGraph,
    ResultIndex,
    SymbolicProgram,
    is_tensor,
)
from calque.dynamo.graphs.aliasing import Aliases
from calque.dynamo.graphs.graph import CompiledGraph
from calque.errors.handlers import settles
from calque.program.call_serialization import Turn
from calque.program.compiler_options import schedule
from calque.program.direct_call import compile_checked, direct
from calque.program.execution import cause_of
from calque.program.lifting import Input
from calque.program.shared_memory import KeptArray
from calque.program.sources import ArgumentSource, RandomSource
from calque.upstream.jax_internals import is_symbolic_dim

Tensor = torch.Tensor
logger: logging.Logger = logging.getLogger("calque.compile")

unpadded: deque[str] = deque(maxlen=64)
"""Why graphs are compiled for each size although buckets are requested, the latest last."""


class BucketedGraph:
    """Like `CompiledGraph`, but varying sizes are padded, and one program serves a whole bucket.

    A graph whose results would change by padding is compiled for each size instead; `unpadded` says
    why.

    Args:
        graph: a graph from AOTAutograd.
        most: the maximum number of programs to keep.
        buckets: the sizes to pad to.
        returned: how many of the graph's results the user gets; the rest are for its backward.
        aliases: the results of which AOTAutograd only uses the geometry.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        most: int,
        buckets: Buckets,
        returned: int | None,
        aliases: Aliases,
    ) -> None:
        self._exact = CompiledGraph(graph, most, aliases=aliases)
        self._most, self._buckets = most, buckets
        self._programs: OrderedDict[Any, BucketProgram] = OrderedDict()
        self._traced: OrderedDict[Any, SymbolicProgram] = OrderedDict()
        self._graph: FunctionalGraph | None = None
        self._merging = False
        try:
            if aliases:
                raise Unpaddable("a result is a view whose offset varies")
            self._graph = FunctionalGraph(graph, buckets, returned)
        except Unpaddable as reason:
            self._refuse(reason)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Returns the graph's results, on the devices it was traced for."""
        if self._graph is not None:
            program = self._program(self._graph, inputs)
            if program is not None:
                return program(inputs)
        return self._exact(inputs)

    def _program(self, graph: FunctionalGraph, inputs: list[Any]) -> "BucketProgram | None":
        sizes = graph.sizes(inputs)
        if any(size < 1 for size in sizes.values()):
            return None
        padded = {
            symbol: self._buckets.padded(symbol, sizes[symbol], graph.most(symbol))
            for symbol in graph.symbols
        }
        fixed = {symbol: size for symbol, size in sizes.items() if symbol not in padded}
        others = tuple(inputs[index] for index in graph.others)
        key = (tuple(padded.values()), tuple(fixed.values()), others)
        if self._merging:
            key = (*key, _partition(sizes[symbol] for symbol in graph.symbols))
        program = self._programs.get(key)
        if program is not None:
            return program
        try:
            program = BucketProgram(self._symbolic(graph, inputs, sizes, fixed, key), padded)
        except Unpaddable as reason:
            if not self._merging and len({sizes[s] for s in graph.symbols}) < len(graph.symbols):
                self._merging = True  # an operator needs equal sizes to have the same symbol
                return self._program(graph, inputs)
            self._refuse(reason)
            return None
        self._programs[key] = program
        if len(self._programs) > self._most:
            self._programs.popitem(last=False)
        return program

    def _symbolic(
        self, graph: FunctionalGraph, inputs: list[Any], sizes: dict[str, int], fixed: Any, key: Any
    ) -> SymbolicProgram:
        key = key[1:]
        found = self._traced.get(key)
        if found is None:
            same = {}
            if self._merging:
                first = {sizes[symbol]: symbol for symbol in reversed(graph.symbols)}
                same = {symbol: first[sizes[symbol]] for symbol in graph.symbols}
            found = self._traced[key] = SymbolicProgram(graph, inputs, fixed, same)
            if len(self._traced) > self._most:
                self._traced.popitem(last=False)
        return found

    def _refuse(self, reason: Exception) -> None:
        self._graph = None
        said = str(reason).strip().partition("\n")[0]
        unpadded.append(said)
        logger.info("a graph is compiled for each size instead of for buckets: %s", said)


def _partition(sizes: Any) -> tuple[int, ...]:
    """Returns which of the sizes are equal."""
    found: dict[int, int] = {}
    return tuple(found.setdefault(size, len(found)) for size in sizes)


class BucketProgram:
    """A graph compiled for some buckets."""

    def __init__(self, symbolic: SymbolicProgram, padded: Mapping[str, int]) -> None:
        self._symbolic = symbolic
        graph = self._graph = symbolic.graph
        self._padded = {str(symbolic.dimensions.known[s]): padded[s] for s in padded}
        self._names = list(self._padded)
        self._symbol_of = {str(symbolic.dimensions.known[s]): s for s in reversed(list(padded))}
        self._sources: list[Callable[[list[Any], Any], Any]] = []
        random = [0]
        self._layouts: list[tuple[Layout, ...]] = []
        avals = [jax.ShapeDtypeStruct((len(self._names),), np.int64)]
        fixed = Sizes(self._padded, {})
        for place, one in enumerate(symbolic.sources, 1):
            orders = self._orders(one)
            layout = tuple(map(symbolic.layout, one.shape, orders))
            self._layouts.append(layout)
            held = tuple(map(fixed.padded, one.shape))
            avals.append(jax.ShapeDtypeStruct(held, one.dtype))
            self._sources.append(_array_of(one, layout, fixed))
            if isinstance(one.source, RandomSource):
                random.append(place)
        with x64():
            lowered = jax.jit(self._body, compiler_options=schedule()).lower(*avals)
            self._run = direct(compile_checked(lowered), random).call
        self._store_orders()
        self._devices = [
            node.meta["val"].device if is_tensor(node) else None for node in graph.results
        ]
        self._known: OrderedDict[tuple[int, ...], list[Any]] = OrderedDict()

    def _orders(self, one: Input) -> Sequence[Sequence[str]]:
        """Returns the symbols in each axis of an input, in the order in which its program joined
        them.
        """
        none = ((),) * len(one.shape)
        if not isinstance(one.source, ArgumentSource):
            return none
        found = self._graph.orders.get(self._graph.placeholders[one.source.index].name, none)
        return found if len(found) == len(none) else none

    def _store_orders(self) -> None:
        """Store the order in which axes of results were joined, for the backward pass."""
        for value, node in zip(self._symbolic.results, self._graph.results, strict=False):
            if isinstance(value, ResultIndex):
                self._graph.orders[node.name] = [
                    [self._symbol_of[n] for size in axis or () for n in _names(size)]
                    for axis in self._found[value]
                ]

    def _body(self, true: Array, *arrays: Array) -> list[Array]:
        sizes = Sizes(self._padded, {n: true[i] for i, n in enumerate(self._names)})
        pairs = zip(arrays, self._layouts, strict=True)
        values = [Padded(array, layout) for array, layout in pairs]
        closed: ClosedJaxpr = self._symbolic.closed
        found = run(sizes, closed, values, self._symbolic.place_of)
        shapes = self._symbolic.shapes
        found = [settled(sizes, v, shape) for v, shape in zip(found, shapes, strict=True)]
        self._found = [value.layout for value in found]
        return [value.array for value in found]

    @settles
    def __call__(self, inputs: list[Any]) -> list[Any]:
        graph = self._graph
        sizes = graph.sizes(inputs)
        true = tuple(sizes[self._symbol_of[name]] for name in self._names)
        env = dict(zip(self._names, true, strict=True))

        def gather() -> list[Any]:
            arrays = [source(inputs, env) for source in self._sources]
            return [np.array(true, np.int64), *arrays]

        read = [x for x in inputs if isinstance(x, Tensor) and x.device.type == "jax"]
        changed = [inputs[i] for i in graph.written if inputs[i].device.type == "jax"]
        turn = Turn(list(dict.fromkeys(map(cell_of, changed))))
        try:
            arguments = turn.take(list(map(cell_of, read)), False, False, gather)
            outputs = jax.block_until_ready(self._run(arguments))
            return self._results(inputs, sizes, true, env, outputs)
        except JaxRuntimeError as error:
            raise cause_of(error) from None
        finally:
            turn.give_back()

    def _results(
        self, inputs: list[Any], sizes: Any, true: tuple[int, ...], env: Any, outputs: list[Array]
    ) -> list[Any]:
        graph, symbolic = self._graph, self._symbolic
        if symbolic.draws:
            rng.state.take(symbolic.draws)
        geometry = self._geometry(sizes, env, true)
        found: list[Any] = []
        made: dict[int, Tensor] = {}  # a tensor that is passed twice stays one tensor
        for place, (value, node) in enumerate(zip(symbolic.results, graph.results, strict=False)):
            if isinstance(node, fx.Node) and node.op == "placeholder":
                found.append(inputs[graph.placeholders.index(node)])
            elif isinstance(value, ResultIndex):
                device = self._devices[place]
                own = place < graph.returned
                parts, shape, stride = geometry[value]
                if value not in made:
                    array = outputs[value]
                    made[value] = transfers.taken(array, parts, shape, stride, device, own)
                found.append(made[value])
            else:
                found.append(_evaluated(value, env))
        for index, value in zip(graph.written, symbolic.results[len(graph.results) :], strict=True):
            parts, shape, stride = geometry[value]
            target = inputs[index]
            new = transfers.taken(outputs[value], parts, shape, stride, target.device, True)
            if target.device.type == "jax":
                write(target, cell_of(new).array)
                torch.autograd.graph.increment_version(target)
            else:
                target.copy_(new)
        inputs.clear()
        return found

    def _geometry(
        self, sizes: Mapping[str, int], env: Mapping[str, int], true: tuple[int, ...]
    ) -> list[Any]:
        """Returns the parts, shape and strides of the output arrays, for the true sizes."""
        found = self._known.get(true)
        if found is None:
            found = []
            strides = self._strides(sizes)
            for layouts, shape, stride in zip(
                self._found, self._symbolic.shapes, strides, strict=True
            ):
                parts = transfers.parts_of(layouts, shape, Sizes(self._padded, env), env)
                own = tuple(_evaluated(n, env) for n in shape)
                found.append((parts, own, stride))
            self._known[true] = found
            if len(self._known) > 1024:
                self._known.popitem(last=False)
        return found

    def _strides(self, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
        nodes = [*self._graph.results, *(self._graph.placeholders[i] for i in self._graph.written)]
        pairs = zip(self._symbolic.results, nodes, strict=True)
        values = {
            value: node.meta["val"] for value, node in pairs if isinstance(value, ResultIndex)
        }
        return [tuple(number(n, sizes) for n in values[place].stride()) for place in sorted(values)]


def _names(size: Any) -> list[str]:
    return sorted(size._get_vars()) if is_symbolic_dim(size) else []


def _evaluated(size: Any, env: Mapping[str, int]) -> Any:
    return int(size._evaluate(env)) if is_symbolic_dim(size) else size


def _array_of(
    one: Input, layout: tuple[Layout, ...], fixed: Sizes
) -> Callable[[list[Any], Any], Any]:
    """Returns a function from the inputs and the true sizes to the array for one input of a
    program.
    """
    source = one.source
    if not isinstance(source, ArgumentSource):
        return lambda inputs, env: source.array(inputs)
    index = source.index
    if any(layout):
        give = transfers.Padding(layout, one.shape, fixed)
        return lambda inputs, env: give(inputs[index], env)
    kept = KeptArray(index)

    def array(inputs: list[Any], env: Any) -> Array:
        given = inputs[index]
        return kept(inputs) if given.device.type == "cpu" else read(given)

    return array
