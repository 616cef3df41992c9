"""Compiles an ATen-level graph to one XLA program for each set of shapes."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import torch
from jax import Array
from jax.extend.core import ClosedJaxpr
from torch import fx

from calque.device.memory.cell import Cell, active, cell_of, current, read, x64
from calque.device.memory.geometry import Ints
from calque.device.memory.host import host_array
from calque.device.memory.wrapping import wrap, wrap_strided
from calque.device.runtime.dtypes import to_numpy
from calque.device.runtime.placement import placements_of, spread
from calque.dynamo.graphs.aliasing import Aliases
from calque.dynamo.graphs.inputs import arrays_of, length, order_of
from calque.dynamo.graphs.outputs import GraphOutputs, device_of, resizable
from calque.dynamo.graphs.rebinding import rebound
from calque.dynamo.graphs.remat import in_order
from calque.dynamo.graphs.scratch import Scratch
from calque.dynamo.graphs.sinks import HostSink, InputSink, ordered, placement_of_tensor
from calque.dynamo.graphs.static_inputs import StaticInputs
from calque.graph.interpreter import Nodes
from calque.program.channels_last import channels_last
from calque.program.compared_extrema import computed_once
from calque.program.direct_call import compile_checked
from calque.program.jaxprs import constant, prune
from calque.program.lifted import lift
from calque.program.lifting import Lifting
from calque.program.program import Program
from calque.program.sinks import targets
from calque.program.sources import ArgumentSource, CellSource
from calque.program.transposed_operands import materialized
from calque.program.value_checks import Checks
from calque.program.view_arguments import offset_place, window_of
from calque.upstream import torch_c

Tensor = torch.Tensor
Call = Callable[[list[Any]], list[Any]]
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def boxed(run: Call) -> Call:
    """Returns a function of one list, which it clears, marked as such for AOTAutograd."""

    def call(inputs: list[Any]) -> list[Any]:
        return run(inputs)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


class CompiledGraph:
    """A graph as a function of a list of tensors and Python numbers, which it clears.

    Args:
        graph: a graph from AOTAutograd: functional, except for `copy_` and `set_` of inputs at its
            end.
        most: the maximum number of programs to keep, one for each set of shapes.
        checks: whether bad values raise PyTorch's errors, as in `calque.jit(checks=True)`.
        aliases: the results of which AOTAutograd only uses the geometry.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        most: int = 64,
        checks: bool = False,
        aliases: Aliases | None = None,
    ) -> None:
        graph, self._rebound = rebound(in_order(graph))
        (output,) = (n for n in graph.graph.nodes if n.op == "output")
        found = output.args[0] if isinstance(output.args[0], tuple | list) else [output.args[0]]
        self._results = list(found)
        self._aliases = Aliases() if aliases is None else aliases
        graph = self._aliases.with_values(graph)
        self._graph = graph
        self._nodes = Nodes(graph, differentiable=False)
        self._calls: OrderedDict[Any, Call] = OrderedDict()
        self._only: Call | None = None  # set if one program serves every call
        self._static = StaticInputs()
        self._most, self._checks = most, checks
        dynamic = any(_is_dynamic(n.meta.get("val")) for n in graph.graph.nodes)
        reaching = any(map(_is_reaching, graph.graph.nodes))
        self._key = _place_key if reaching else _shape_key if dynamic else None
        self._reaching = reaching

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Returns the graph's results, on the devices it was traced for."""
        if isinstance(active.trace, Lifting):
            return self._rebinding(self._in_trace, inputs)
        call = self._only
        if call is None or spread.exists or self._static.differ(inputs):
            call = self._call_for(inputs)
        try:
            return self._rebinding(call, inputs) if self._rebound else call(inputs)
        except NotImplementedError:
            if self._rebound or not any(map(_is_batched, inputs)):
                raise
        return self._mapped(inputs)

    def _mapped(self, inputs: list[Any]) -> list[Any]:
        """Runs the operators one by one for tensors of `torch.vmap`, which `is_grads_batched`
        passes to a backward.
        """
        found = fx.Interpreter(self._graph).run(*inputs)[: len(self._results)]
        inputs.clear()
        return list(found)

    def _in_trace(self, inputs: list[Any]) -> list[Any]:
        """Returns the results inside an enclosing trace, as part of its program."""
        found = self._nodes.results(inputs)[: len(self._results)]
        inputs.clear()
        return found

    def _rebinding(self, call: Call, inputs: list[Any]) -> list[Any]:
        targets = [inputs[index] for index in self._rebound]
        results = call(inputs)
        for target in reversed(targets):
            target.set_(results.pop())
        return results

    def _call_for(self, inputs: list[Any]) -> Call:
        self._static.remember(inputs)
        key = self._key_of(inputs)
        call = self._calls.get(key)
        if call is None:
            program = GraphProgram(
                self._nodes, inputs, self._results, self._aliases, self._reaching, self._checks
            )
            call = program.call()
            # The call may have placed some inputs on a mesh.
            self._calls[self._key_of(inputs)] = call
            if len(self._calls) > self._most:
                self._calls.popitem(last=False)
        if self._key is None and not spread.exists:
            self._only = call
        return call

    def _key_of(self, inputs: list[Any]) -> Any:
        sizes = tuple(map(self._key, inputs)) if self._key is not None else None
        key: Any = (sizes, *self._static.kinds(inputs))
        return (key, tuple(map(placement_of_tensor, inputs))) if spread.exists else key


def _is_batched(value: object) -> bool:
    """Returns True for a tensor of `torch.vmap` or of its predecessor."""
    functorch = torch_c.functorch
    return isinstance(value, Tensor) and (
        functorch.is_functorch_wrapped_tensor(value) or functorch.is_legacy_batchedtensor(value)
    )


def _is_dynamic(value: object) -> bool:
    """Returns True if a node's value depends on dynamic sizes or numbers."""
    if isinstance(value, _SYMBOLS):
        return True
    if isinstance(value, tuple | list):
        return any(map(_is_dynamic, value))
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return False
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    return any(isinstance(number, _SYMBOLS) for number in numbers)


def _is_reaching(node: fx.Node) -> bool:
    """Returns True if a node may access any part of a storage."""
    return offset_place(node.target) is not None or any(
        n.endswith("_storage_offset") for n in node.kwargs
    )


def _shape_key(value: object) -> Any:
    return (value.shape, value.stride()) if isinstance(value, Tensor) else value


def _kept(inputs: Sequence[Any], written: Sequence[int]) -> list[Cell]:
    """Returns the memory of the arguments that are state: parameters and written arguments."""
    on_device = [
        value
        for index, value in enumerate(inputs)
        if (index in written or isinstance(value, torch.nn.Parameter))
        and value.device.type == "jax"
    ]
    return list(map(cell_of, on_device))


def _place_key(value: object) -> Any:
    if not isinstance(value, Tensor):
        return value
    return (value.shape, value.stride(), value.storage_offset(), length(value))


class GraphProgram(Program[list[Any]]):
    """A graph compiled for some shapes.

    Args:
        nodes: the graph.
        inputs: the inputs of the first call.
        results: the nodes of its results.
        aliases: the results of which AOTAutograd only uses the geometry.
        reaching: whether the graph accesses memory around its inputs, which are then passed as
            whole storages.
        checks: whether it checks values.
    """

    traced = False

    def __init__(
        self,
        nodes: Nodes,
        inputs: Sequence[Any],
        results: Sequence[Any],
        aliases: Aliases,
        reaching: bool,
        checks: bool,
    ) -> None:
        self._lifting = Lifting(checks if checks or nodes.asserts else None)
        self._reaching = reaching
        lifted = lift(self._lifting, lambda: self._body(nodes, inputs, results, aliases))
        pruned, kept = prune(lifted.closed)
        self._own_constants(pruned)
        pruned = materialized(computed_once(channels_last(pruned), has_backward=True))
        given = [lifted.inputs[i] for i in kept]
        scratch = self._scratch = self._scratch_of(pruned)
        if scratch:
            pruned, given = scratch.given_to(pruned, given)
        self.form(pruned, given, self._sinks, keeps=bool(self._checks.failures))
        self.overwritten: Sequence[int] = range(len(kept), len(given))
        self.draws: int = self._lifting.draws
        sources = [one.source for one in given[: len(kept)]]
        self.gather: Callable[[list[Any]], list[Any]] = arrays_of(
            sources, inputs, reaching, self._orders
        )
        with x64():
            state = [one.cell for one in sources if isinstance(one, CellSource)]
            state += _kept(inputs, [sink.index for sink in self._sinks])
            arrays = self.gather(list(inputs)) if spread.exists else [None] * len(given)
            if scratch:
                gather = self.gather
                self.gather = lambda inputs: [*gather(inputs), *scratch.take()]
            self.place(state, placements_of(arrays))
            self.run_by(compile_checked(self.lowered(pruned)))
        devices = [device_of(node) for node in results]
        devices += [x.device for x in inputs if isinstance(x, Tensor)]
        self._host = any(d is not None and d.type == "cpu" for d in devices)
        self._functional = self._separate and not (
            self._host or self.draws or self.sinks or self._checks.failures or self.may_raise
        )
        del self._lifting

    def _body(
        self, nodes: Nodes, inputs: Sequence[Any], results: Sequence[Any], aliases: Aliases
    ) -> list[Array]:
        given, before = [], []
        self._orders: dict[int, Ints] = {}  # the order of an argument's axes, if it is not its own
        for index, value in enumerate(inputs):
            if not isinstance(value, Tensor):
                given.append(value)
                before.append(None)
                continue
            given.append(self._stand_in(index, value))
            before.append(current(cell_of(given[-1])))
        found = [_on_device(value) for value in nodes.results(given)]
        arrays: list[Array] = []
        self._sinks: list[InputSink | HostSink] = []
        for index, array in enumerate(before):
            if array is not None and current(cell_of(given[index])) is not array:
                order = self._orders.get(index)
                self._sinks.append(self._sink(index, inputs[index], order))
                arrays.append(read(ordered(given[index], order)))
        returned = GraphOutputs(found, given, inputs, results, aliases)
        arrays += returned.arrays
        self._makers, self._results = returned.makers, returned.results
        self._separate = returned.separate
        self._checks = Checks.of(self._lifting, _Outputs(arrays))
        return arrays

    def _scratch_of(self, closed: ClosedJaxpr) -> Scratch:
        first = takewhile(lambda sink: isinstance(sink, HostSink), self._sinks)
        return Scratch(closed, 0 if spread.exists else len(list(first)))

    def _sink(self, index: int, value: Tensor, order: Ints | None) -> InputSink | HostSink:
        if value.device.type == "cpu":
            return HostSink(index, order)
        where = placement_of_tensor(value)
        return InputSink(index, order, is_replaced=not self._reaching, placement=where)

    def _stand_in(self, index: int, value: Tensor) -> Tensor:
        dtype, shape, stride = to_numpy(value.dtype), tuple(value.shape), value.stride()
        if self._reaching:
            base = wrap(self._lifting.new_input(ArgumentSource(index), (length(value),), dtype))
            return base.as_strided(shape, stride, value.storage_offset())
        order = order_of(value)
        if order is not None:
            self._orders[index] = order
            moved = tuple(shape[axis] for axis in order)
            base = wrap(self._lifting.new_input(ArgumentSource(index), moved, dtype))
            return base.as_strided(shape, stride, 0)
        array = self._lifting.new_input(ArgumentSource(index), shape, dtype)
        own = tuple(slice(1 if step == 0 else n) for n, step in zip(shape, stride, strict=True))
        window = window_of(array[own] if 0 in stride else array, value)
        return wrap_strided(array, stride) if window is None else window

    def _own_constants(self, closed: ClosedJaxpr) -> None:
        """Let PyTorch allocate the memory of constants.

        The user may resize it as the `out=` of an operator, which is impossible with memory of XLA.
        """
        empty = [i for i, v in enumerate(closed.jaxpr.outvars) if 0 in v.aval.shape]
        for index in {*constant(closed), *empty}:
            place = index - len(self._sinks)
            if 0 <= place < len(self._makers):
                self._makers[place] = resizable(self._makers[place])

    def call(self) -> Call:
        """Returns the program as a function of the inputs."""
        if not self._functional:
            return self.step
        run, arrays_of, makers = self.execution.call, self.gather, self._makers

        def call(inputs: list[Any]) -> list[Any]:
            outputs = run(arrays_of(inputs))
            inputs.clear()
            return [make(array) for make, array in zip(makers, outputs, strict=True)]

        return call

    def reads(self, call: list[Any]) -> list[Cell]:
        """Returns the cells that the inputs come from."""
        sources = [one.source for one in self.inputs]
        cells = [one.cell for one in sources if isinstance(one, CellSource)]
        given = [call[one.index] for one in sources if isinstance(one, ArgumentSource)]
        return cells + [cell_of(tensor) for tensor in given if tensor.device.type == "jax"]

    def changes(self, call: list[Any]) -> list[Cell]:
        """Returns the cells that the call changes."""
        written = [call[sink.index] for sink in self._sinks]
        return list({cell_of(t): None for t in written if t.device.type == "jax"})

    def look(self, call: list[Any], outputs: list[Array]) -> None:
        """Raise the errors of failed value checks."""
        if self._checks.failures:
            self._checks.look(outputs, 0)
        if self._host:  # PyTorch may overwrite memory that the program still reads
            for array in outputs:
                array.block_until_ready()

    def finish(self, call: list[Any], outputs: list[Array]) -> list[Any]:
        """Write to parts of storages, and return the results."""
        for sink, array in zip(self.sinks, outputs, strict=False):
            sink.store(call, array)
        if self._scratch:
            self._scratch.give_back(outputs)
        fresh = outputs[len(self.sinks) :]
        made = [make(array) for make, array in zip(self._makers, fresh, strict=False)]
        results = [result(call, made) for result in self._results]
        call.clear()
        return results

    def targets(self, call: list[Any]) -> list[Cell]:
        """Returns the cells that the outputs are written to."""
        return targets(self.sinks, call)


class _Outputs:
    """Collects the outputs of a program."""

    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = arrays

    def add(self, array: Array) -> int:
        self._arrays.append(array)
        return len(self._arrays) - 1


def _on_device(value: Any) -> Any:
    """Returns a result on the device; operators with only numbers as arguments (`aten.add(1, 2)`)
    return CPU tensors.
    """
    is_host = isinstance(value, Tensor) and value.device.type == "cpu"
    return wrap(host_array(value)) if is_host else value
