"""Compile an ATen-level graph to one XLA program for each set of shapes it is called with."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax import Array
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from torch import fx

from calque.device.memory.cell import (
    Cell,
    active,
    cell_of,
    current,
    is_whole,
    read,
    wrap,
    wrap_strided,
    write,
    x64,
)
from calque.device.memory.geometry import Ints
from calque.device.runtime.dtypes import to_numpy
from calque.device.runtime.placement import placement_of, placements_of, spread
from calque.dynamo.graphs.aliasing import Aliases
from calque.dynamo.graphs.inputs import arrays_of, length, order_of
from calque.dynamo.graphs.outputs import Returned, device_of, resizable
from calque.dynamo.graphs.rebinding import rebound
from calque.dynamo.graphs.remat import in_order
from calque.graph.interpreter import Nodes
from calque.program.channels_last import channels_last
from calque.program.direct_call import compile_checked
from calque.program.execution import Execution
from calque.program.jaxprs import constant, may_raise, prune
from calque.program.lifting import Lifting, close
from calque.program.pinning import avals, constraints, pinned, settled
from calque.program.shared_memory import tensor_over
from calque.program.sources import ArgumentSource, CellSource, RandomSource
from calque.program.stepping import Stepping
from calque.program.transposed_operands import materialized
from calque.program.value_checks import Checks
from calque.program.view_arguments import offset_place, window_of

Tensor = torch.Tensor
Call = Callable[[list[Any]], list[Any]]
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def boxed(run: Call) -> Call:
    """A function of one list, which it empties, marked as such for AOTAutograd."""

    def call(inputs: list[Any]) -> list[Any]:
        return run(inputs)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


class CompiledGraph:
    """A graph as a function of a list of tensors and Python numbers, which it empties.

    Args:
        graph: what AOTAutograd gives: functional, but for `copy_` and `set_` of inputs at its end.
        most: for how many sets of shapes programs are kept.
        checks: whether bad values raise what PyTorch raises, as in `calque.jit(checks=True)`.
        aliases: the results that AOTAutograd takes the geometry of.
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
        self._nodes = Nodes(graph, differentiable=False)
        self._calls: OrderedDict[Any, Call] = OrderedDict()
        self._only: Call | None = None  # where one program serves every call
        self._most, self._checks = most, checks
        dynamic = any(_is_dynamic(n.meta.get("val")) for n in graph.graph.nodes)
        reaching = any(map(_is_reaching, graph.graph.nodes))
        self._key = _place_key if reaching else _shape_key if dynamic else None
        self._reaching = reaching

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """The graph's results, on the devices it was traced for."""
        call = self._only
        if call is None or spread.exists:
            call = self._call_for(inputs)
        return self._rebinding(call, inputs) if self._rebound else call(inputs)

    def _rebinding(self, call: Call, inputs: list[Any]) -> list[Any]:
        targets = [inputs[index] for index in self._rebound]
        results = call(inputs)
        for target in reversed(targets):
            target.set_(results.pop())
        return results

    def _call_for(self, inputs: list[Any]) -> Call:
        key: Any = tuple(map(self._key, inputs)) if self._key is not None else None
        if spread.exists:
            key = key, tuple(map(_placement, inputs))
        call = self._calls.get(key)
        if call is None:
            program = _Program(
                self._nodes, inputs, self._results, self._aliases, self._reaching, self._checks
            )
            call = self._calls[key] = program.call()
            if self._key is None and not spread.exists:
                self._only = call
            if len(self._calls) > self._most:
                self._calls.popitem(last=False)
        return call


def _is_dynamic(value: Any) -> bool:
    """Whether what is known of a node's value holds for some sizes or numbers only."""
    if isinstance(value, _SYMBOLS):
        return True
    if isinstance(value, tuple | list):
        return any(map(_is_dynamic, value))
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return False
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    return any(isinstance(number, _SYMBOLS) for number in numbers)


def _is_reaching(node: fx.Node) -> bool:
    """Whether a node reaches into a storage at will."""
    return offset_place(node.target) is not None or any(
        n.endswith("_storage_offset") for n in node.kwargs
    )


def _shape_key(value: Any) -> Any:
    return (value.shape, value.stride()) if isinstance(value, Tensor) else value


def _placement(value: Any) -> Any:
    on_device = isinstance(value, Tensor) and value.device.type == "jax"
    return placement_of(cell_of(value).array) if on_device else None


def _place_key(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return (value.shape, value.stride(), value.storage_offset(), length(value))


def _ordered(tensor: Tensor, order: Ints | None) -> Tensor:
    """A tensor as it is handed to a program."""
    return tensor if order is None else tensor.detach().permute(order)


class _Program(Stepping[list[Any]]):
    """A graph compiled for some shapes.

    Args:
        nodes: the graph.
        inputs: the first that it is called with.
        results: the nodes of its results.
        aliases: which of them AOTAutograd takes the geometry of.
        reaching: whether the graph reaches around its inputs, which come as whole storages then.
        checks: whether it looks at values.
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
        self._lifting = Lifting(checks or None)
        self._reaching = reaching
        with self._lifting.activated():
            traced = jax.make_jaxpr(lambda: self._body(nodes, inputs, results, aliases))()
        closed, found = close(traced, self._lifting.inputs)
        pruned, kept = prune(closed)
        self._own_constants(pruned)
        pruned = materialized(channels_last(pruned))
        self._sources = [found[i].source for i in kept]
        self.gather = arrays_of(self._sources, inputs, reaching, self._orders)
        self._donated = [
            place
            for place, source in enumerate(self._sources)
            if isinstance(source, ArgumentSource) and self._is_replaced(inputs, source.index)
            # What a failed program would have written stays.
            if not (self._checks.failures or may_raise(pruned.jaxpr))
        ]
        self.random = [i for i, one in enumerate(self._sources) if isinstance(one, RandomSource)]
        self.may_raise, self.draws = may_raise(pruned.jaxpr), self._lifting.draws
        self.donating = bool(self._donated)
        with x64():
            state = [one.cell for one in self._sources if isinstance(one, CellSource)]
            arrays = self.gather(list(inputs)) if spread.exists else [None] * len(kept)
            placements = placements_of(arrays)
            written = [_placement(inputs[index]) for index in self._written]
            known = [*placements, *written, *constraints(pruned.jaxpr)]
            whole = settled(state, known)
            run = jax.jit(
                jaxpr_as_fun(pruned),
                donate_argnums=tuple(self._donated),
                keep_unused=True,
                out_shardings=pinned(written, len(pruned.out_avals), whole),
            )
            lowered = run.lower(*avals([found[i] for i in kept], placements, whole))
            program = compile_checked(lowered)
            self.execution = Execution(program, self.random, self._donated, self.may_raise)
        devices = [device_of(node) for node in results]
        devices += [x.device for x in inputs if isinstance(x, Tensor)]
        self._host = any(d is not None and d.type == "cpu" for d in devices)
        self._functional = self._separate and not (
            self._host or self.draws or self._written or self._checks.failures or self.may_raise
        )
        del self._lifting

    def _body(
        self, nodes: Nodes, inputs: Sequence[Any], results: Sequence[Any], aliases: Aliases
    ) -> list[Array]:
        given, before = [], []
        self._orders: dict[int, Ints] = {}  # of an argument's axes, where it is not its own
        for index, value in enumerate(inputs):
            if not isinstance(value, Tensor):
                given.append(value)
                before.append(None)
                continue
            given.append(self._stand_in(index, value))
            before.append(current(cell_of(given[-1])))
        found = nodes.results(given)
        arrays: list[Array] = []
        self._written: list[int] = []
        for index, array in enumerate(before):
            if array is not None and current(cell_of(given[index])) is not array:
                self._written.append(index)
                arrays.append(read(_ordered(given[index], self._orders.get(index))))
        returned = Returned(found, given, inputs, results, aliases)
        arrays += returned.arrays
        self._makers, self._results = returned.makers, returned.results
        self._separate = returned.separate
        self._checks = Checks.of(self._lifting, _Outputs(arrays))
        return arrays

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
        """Have PyTorch make the memory of constants.

        An `out=` that is filled later may be resized, which memory of XLA's cannot be.
        """
        empty = [i for i, v in enumerate(closed.jaxpr.outvars) if 0 in v.aval.shape]
        for index in {*constant(closed), *empty}:
            place = index - len(self._written)
            if 0 <= place < len(self._makers):
                self._makers[place] = resizable(self._makers[place])

    def _is_replaced(self, inputs: Sequence[Any], index: int) -> bool:
        """Whether an argument is written, and its whole memory is the device's."""
        if self._reaching:
            return False
        return index in self._written and inputs[index].device.type == "jax"

    def call(self) -> Call:
        """The program as a function of the inputs."""
        if not self._functional:
            return self.step
        run, arrays_of, makers = self.execution.call, self.gather, self._makers

        def call(inputs: list[Any]) -> list[Any]:
            outputs = run(arrays_of(inputs))
            inputs.clear()
            return [make(array) for make, array in zip(makers, outputs, strict=True)]

        return call

    def reads(self, call: list[Any]) -> list[Cell]:
        """The cells that they come from."""
        cells = [one.cell for one in self._sources if isinstance(one, CellSource)]
        given = [call[one.index] for one in self._sources if isinstance(one, ArgumentSource)]
        return cells + [cell_of(tensor) for tensor in given if tensor.device.type == "jax"]

    def changes(self, call: list[Any]) -> list[Cell]:
        """The cells that the call changes."""
        targets = [call[index] for index in self._written]
        return list({cell_of(t): None for t in targets if t.device.type == "jax"})

    def look(self, call: list[Any], outputs: list[Array]) -> None:
        """Raise what the checks of values say."""
        if self._checks.failures:
            self._checks.look(outputs, 0)
        if self._host:  # the program may still read memory that PyTorch is free to write next
            for array in outputs:
                array.block_until_ready()

    def finish(self, call: list[Any], outputs: list[Array]) -> list[Any]:
        """Write to parts of storages; gives the results."""
        self._write_parts(call, outputs)
        fresh = outputs[len(self._written) :]
        made = [make(array) for make, array in zip(self._makers, fresh, strict=False)]
        results = [result(call, made) for result in self._results]
        call.clear()
        return results

    def targets(self, call: list[Any]) -> list[Cell]:
        """The cells that the outputs belong into."""
        return [self._target(call[index], index) for index in self._written]

    def _target(self, tensor: Tensor, index: int) -> Cell:
        if tensor.device.type == "jax" and active.trace is None:
            cell = cell_of(tensor)
            if not cell.viewed or is_whole(cell, _ordered(tensor, self._orders.get(index))):
                return cell
        return Cell(None)  # type: ignore[arg-type]

    def _write_parts(self, call: list[Any], outputs: list[Array]) -> None:
        """Write to the inputs that the graph writes to, where that is not done yet."""
        replaced = []
        for index, array in zip(self._written, outputs, strict=False):
            target = call[index]
            if self._host and target.device.type == "cpu":
                _ordered(target, self._orders.get(index)).copy_(tensor_over(array))
                continue
            if cell_of(target).array is not array:
                write(_ordered(target, self._orders.get(index)), array)
            replaced.append(target)
        torch.autograd.graph.increment_version(replaced)


class _Outputs:
    """Adds to the outputs of a program."""

    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = arrays

    def add(self, array: Array) -> int:
        self._arrays.append(array)
        return len(self._arrays) - 1
