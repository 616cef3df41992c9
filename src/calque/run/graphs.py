"""Compile an ATen-level graph to one XLA program for each set of shapes it is called with."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax import Array
from jax.extend.core import jaxpr_as_fun
from torch import fx

from calque.device import rng
from calque.device.cell import (
    active,
    cell_of,
    current,
    read,
    wrap,
    wrap_strided,
    write,
    x64,
)
from calque.device.dtypes import to_numpy
from calque.device.geometry import Ints
from calque.run.checking import Checks
from calque.run.direct import direct
from calque.run.donation import picker, protect
from calque.run.handing import arrays_of, length, order_of
from calque.run.interpreter import Nodes
from calque.run.jaxprs import prune
from calque.run.lifting import Lifting, close
from calque.run.materializing import materialized
from calque.run.rebinding import rebound
from calque.run.recomputing import in_order
from calque.run.returning import Returned
from calque.run.shared import tensor_over
from calque.run.windows import RESTRIDING, window_of

Tensor = torch.Tensor
Call = Callable[[list[Any]], list[Any]]


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
    """

    def __init__(self, graph: fx.GraphModule, most: int = 64, checks: bool = False) -> None:
        graph, self._rebound = rebound(in_order(graph))
        self._nodes = Nodes(graph, differentiable=False)
        self._calls: OrderedDict[Any, Call] = OrderedDict()
        self._only: Call | None = None  # where one program serves every call
        self._most, self._checks = most, checks
        inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
        dynamic = any(_is_dynamic(n.meta.get("val")) for n in inputs)
        reaching = any(map(_is_reaching, graph.graph.nodes))
        self._key = _place_key if reaching else _shape_key if dynamic else None
        self._reaching = reaching
        (output,) = (n for n in graph.graph.nodes if n.op == "output")
        found = output.args[0] if isinstance(output.args[0], tuple | list) else [output.args[0]]
        self._devices = [_device_of(node) for node in found]

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """The graph's results, on the devices it was traced for."""
        call = self._only
        if call is None:
            call = self._call_for(inputs)
        return self._rebinding(call, inputs) if self._rebound else call(inputs)

    def _rebinding(self, call: Call, inputs: list[Any]) -> list[Any]:
        targets = [inputs[index] for index in self._rebound]
        results = call(inputs)
        for target in reversed(targets):
            target.set_(results.pop())
        return results

    def _call_for(self, inputs: list[Any]) -> Call:
        key = tuple(map(self._key, inputs)) if self._key is not None else None
        call = self._calls.get(key)
        if call is None:
            program = _Program(self._nodes, inputs, self._devices, self._reaching, self._checks)
            call = self._calls[key] = program.call()
            if self._key is None:
                self._only = call
            if len(self._calls) > self._most:
                self._calls.popitem(last=False)
        return call


def _is_dynamic(value: Any) -> bool:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return True
    return isinstance(value, Tensor) and any(isinstance(s, torch.SymInt) for s in value.shape)


def _is_reaching(node: fx.Node) -> bool:
    """Whether a node reaches into a storage at will."""
    return node.target in RESTRIDING or any(n.endswith("_storage_offset") for n in node.kwargs)


def _shape_key(value: Any) -> Any:
    return (value.shape, value.stride()) if isinstance(value, Tensor) else value


def _place_key(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return (value.shape, value.stride(), value.storage_offset(), length(value))


def _ordered(tensor: Tensor, order: Ints | None) -> Tensor:
    """A tensor as it is handed to a program."""
    return tensor if order is None else tensor.detach().permute(order)


def _device_of(node: Any) -> torch.device | None:
    """Where a result belongs; None if it is no tensor."""
    value = node.meta["val"] if isinstance(node, fx.Node) else None
    return value.device if isinstance(value, Tensor) else None


class _Program:
    """A graph compiled for some shapes.

    Args:
        nodes: the graph.
        inputs: the first that it is called with.
        devices: where its results belong.
        reaching: whether the graph reaches around its inputs, which come as whole storages then.
        checks: whether it looks at values.
    """

    def __init__(
        self,
        nodes: Nodes,
        inputs: Sequence[Any],
        devices: Sequence[torch.device | None],
        reaching: bool,
        checks: bool,
    ) -> None:
        self._lifting = Lifting(checks or None)
        self._reaching = reaching
        self._devices = devices
        with self._lifting.activated():
            traced = jax.make_jaxpr(lambda: self._body(nodes, inputs))()
        closed, sources = close(traced, self._lifting.inputs)
        pruned, kept = prune(closed)
        pruned = materialized(pruned)
        self._draws = self._lifting.draws
        self._arrays_of = arrays_of([sources[i] for i in kept], inputs, reaching, self._orders)
        self._donated = [
            place
            for place, i in enumerate(kept)
            if sources[i].kind == "argument" and self._is_replaced(inputs, sources[i].source)
            if not self._checks.failures  # what a failed program would have written stays
        ]
        self._pick_donated = picker(self._donated)
        random = [place for place, i in enumerate(kept) if sources[i].kind == "random"]
        with x64():
            avals = [jax.ShapeDtypeStruct(sources[i].shape, sources[i].dtype) for i in kept]
            run = jax.jit(
                jaxpr_as_fun(pruned), donate_argnums=tuple(self._donated), keep_unused=True
            )
            self._run = direct(run.lower(*avals).compile(), random)
        self._host = any(d is not None and d.type == "cpu" for d in devices) or any(
            isinstance(x, Tensor) and x.device.type == "cpu" for x in inputs
        )
        self._functional = self._separate and not (
            self._host or self._draws or self._written or self._checks.failures
        )
        del self._lifting

    def _body(self, nodes: Nodes, inputs: Sequence[Any]) -> list[Array]:
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
        returned = Returned(found, given, self._devices)
        arrays += returned.arrays
        self._makers, self._results = returned.makers, returned.results
        self._separate = returned.separate
        self._checks = Checks.of(self._lifting, _Outputs(arrays))
        return arrays

    def _stand_in(self, index: int, value: Tensor) -> Tensor:
        dtype, shape, stride = to_numpy(value.dtype), tuple(value.shape), value.stride()
        if self._reaching:
            base = wrap(self._lifting.new_input("argument", index, (length(value),), dtype))
            return base.as_strided(shape, stride, value.storage_offset())
        order = order_of(value)
        if order is not None:
            self._orders[index] = order
            moved = tuple(shape[axis] for axis in order)
            base = wrap(self._lifting.new_input("argument", index, moved, dtype))
            return base.as_strided(shape, stride, 0)
        array = self._lifting.new_input("argument", index, shape, dtype)
        own = tuple(slice(1 if step == 0 else n) for n, step in zip(shape, stride, strict=True))
        window = window_of(array[own] if 0 in stride else array, value)
        return wrap_strided(array, stride) if window is None else window

    def _is_replaced(self, inputs: Sequence[Any], index: int) -> bool:
        """Whether an argument is written, and its whole memory is the device's."""
        if self._reaching:
            return False
        return index in self._written and inputs[index].device.type == "jax"

    def call(self) -> Call:
        """The program as a function of the inputs."""
        if not self._functional:
            return self._call_with_effects
        run, arrays_of, makers = self._run, self._arrays_of, self._makers

        def call(inputs: list[Any]) -> list[Any]:
            outputs = run(arrays_of(inputs))
            inputs.clear()
            return [make(array) for make, array in zip(makers, outputs, strict=True)]

        return call

    def _call_with_effects(self, inputs: list[Any]) -> list[Any]:
        arrays = self._arrays_of(inputs)
        if self._donated:
            protect(arrays, self._donated, self._pick_donated)
        outputs = self._run(arrays)
        if self._checks.failures:
            self._checks.look(outputs, 0)
        if self._host:  # the program may still read memory that PyTorch is free to write next
            for array in outputs:
                array.block_until_ready()
        if self._draws:
            rng.state.take(self._draws)
        self._write(inputs, outputs)
        fresh = outputs[len(self._written) :]
        made = [make(array) for make, array in zip(self._makers, fresh, strict=False)]
        results = [result(inputs, made) for result in self._results]
        inputs.clear()
        return results

    def _write(self, inputs: list[Any], outputs: list[Array]) -> None:
        replaced = []
        for index, array in zip(self._written, outputs, strict=False):
            target = inputs[index]
            if self._host and target.device.type == "cpu":
                _ordered(target, self._orders.get(index)).copy_(tensor_over(array))
                continue
            cell = cell_of(target)
            if cell.viewed or active.trace is not None:
                write(_ordered(target, self._orders.get(index)), array)
            else:
                cell.array = array
            replaced.append(target)
        torch.autograd.graph.increment_version(replaced)


class _Outputs:
    """Adds to the outputs of a program."""

    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = arrays

    def add(self, array: Array) -> int:
        self._arrays.append(array)
        return len(self._arrays) - 1
