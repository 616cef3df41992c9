"""Compile an ATen-level graph to one XLA program for each set of shapes it is called with."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax import Array
from jax.extend.core import jaxpr_as_fun
from torch import fx

from calque.device import rng
from calque.device.cell import (
    Cell,
    cell_of,
    current,
    is_whole,
    layout_of,
    read,
    view_of,
    wrap,
    wrap_strided,
    wrap_untraced,
    write,
    x64,
)
from calque.device.dtypes import to_numpy
from calque.device.geometry import View, contiguous_strides
from calque.device.host import host_array
from calque.run.checking import Checks
from calque.run.direct import direct
from calque.run.donation import picker, protect
from calque.run.interpreter import Nodes
from calque.run.jaxprs import prune
from calque.run.lifting import Lifting, close
from calque.run.recomputing import in_order
from calque.run.shared import Kept, array_over, tensor_over
from calque.run.windows import RESTRIDING, window_of

Tensor = torch.Tensor


def compiled(
    graph: fx.GraphModule, most: int = 64, checks: bool = False
) -> Callable[[list[Any]], list[Any]]:
    """A graph as a function of one list, in the calling convention of AOTAutograd; see below."""
    return boxed(CompiledGraph(graph, most, checks))


def boxed(run: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """A function of one list, which it empties, marked as such."""

    def call(inputs: list[Any]) -> list[Any]:
        return run(inputs)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


class CompiledGraph:
    """A graph as a function of a list of tensors and Python numbers.

    Args:
        graph: what AOTAutograd gives: functional, but for `copy_` to inputs at its end.
        most: for how many sets of shapes programs are kept.
        checks: whether bad values raise what PyTorch raises, as in `calque.jit(checks=True)`.
    """

    def __init__(self, graph: fx.GraphModule, most: int = 64, checks: bool = False) -> None:
        graph = in_order(graph)
        self._nodes = Nodes(graph)
        self._programs: OrderedDict[Any, _Program] = OrderedDict()
        self._most, self._checks = most, checks
        inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
        dynamic = any(_is_dynamic(n.meta.get("val")) for n in inputs)
        reaching = any(n.target in RESTRIDING for n in graph.graph.nodes)
        self._key = _place_key if reaching else _shape_key if dynamic else None
        self._reaching = reaching
        (output,) = (n for n in graph.graph.nodes if n.op == "output")
        found = output.args[0] if isinstance(output.args[0], tuple | list) else [output.args[0]]
        self._devices = [_device_of(node) for node in found]

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """The graph's results, on the devices it was traced for."""
        key = tuple(map(self._key, inputs)) if self._key is not None else None
        program = self._programs.get(key)
        if program is None:
            program = _Program(self._nodes, inputs, self._devices, self._reaching, self._checks)
            self._programs[key] = program
            if len(self._programs) > self._most:
                self._programs.popitem(last=False)
        return program(inputs)


def _is_dynamic(value: Any) -> bool:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return True
    return isinstance(value, Tensor) and any(isinstance(s, torch.SymInt) for s in value.shape)


def _shape_key(value: Any) -> Any:
    return (value.shape, value.stride()) if isinstance(value, Tensor) else value


def _place_key(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return (value.shape, value.stride(), value.storage_offset(), _length(value))


def _length(value: Tensor) -> int:
    """How many elements of its dtype a tensor's storage has."""
    return value.untyped_storage().nbytes() // value.itemsize


def _storage(value: Tensor) -> Tensor:
    """The whole storage of a tensor, as one axis."""
    return value.detach().as_strided((_length(value),), (1,), 0)


def _device_of(node: Any) -> torch.device | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
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
        self._draws = self._lifting.draws
        self._sources = [_source(sources[i], inputs, reaching) for i in kept]
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
            run = jax.jit(jaxpr_as_fun(pruned), donate_argnums=tuple(self._donated))
            self._run = direct(run.lower(*avals).compile(), random)
        self._host = any(d is not None and d.type == "cpu" for d in devices) or any(
            isinstance(x, Tensor) and x.device.type == "cpu" for x in inputs
        )
        del self._lifting

    def _body(self, nodes: Nodes, inputs: Sequence[Any]) -> list[Array]:
        given, before = [], []
        for index, value in enumerate(inputs):
            if not isinstance(value, Tensor):
                given.append(value)
                before.append(None)
                continue
            given.append(self._stand_in(index, value))
            before.append(current(cell_of(given[-1])))
        found = nodes.results(given)
        arrays: list[Array] = []
        self.written: list[int] = []
        for index, array in enumerate(before):
            if array is not None and current(cell_of(given[index])) is not array:
                self.written.append(index)
                arrays.append(read(given[index]))
        places = {id(tensor): i for i, tensor in enumerate(given) if isinstance(tensor, Tensor)}
        own = {id(v): v for v in found if isinstance(v, Tensor) and id(v) not in places}
        cells = Counter(map(cell_of, own.values()))
        bases: dict[Cell, int] = {}
        known: dict[int, int] = {}
        self.bases: list[_Base] = []
        self.results: list[Callable[[list[Any], list[Tensor]], Any]] = []
        for value, device in zip(found, self._devices, strict=True):
            if not isinstance(value, Tensor):
                self.results.append(_constant(value))
                continue
            if id(value) in places:
                self.results.append(_argument(places[id(value)]))
                continue
            cell, view = cell_of(value), None
            if id(value) in known:  # the same tensor: a write to it is to be seen as one
                self.results.append(self.results[known[id(value)]])
                continue
            known[id(value)] = len(self.results)
            if cells[cell] > 1 and to_numpy(value.dtype) == cell.array.dtype:
                view = view_of(value)
            else:  # no other result shares its memory
                cell = None
            if cell is None or cell not in bases:
                stride = value.stride() if cell is None else layout_of(cell).stride
                array = read(value) if cell is None else cell.array
                self.bases.append(_Base(len(arrays), array.shape, stride, device))
                arrays.append(array)
            if cell is not None:
                bases.setdefault(cell, len(self.bases) - 1)
            base = len(self.bases) - 1 if cell is None else bases[cell]
            view = None if cell is None or is_whole(cell, value) else view
            self.results.append(_result(base, view))
        self._checks = Checks.of(self._lifting, _Outputs(arrays))
        return arrays

    def _stand_in(self, index: int, value: Tensor) -> Tensor:
        dtype, shape, stride = to_numpy(value.dtype), tuple(value.shape), value.stride()
        if self._reaching:
            base = wrap(self._lifting.new_input("argument", index, (_length(value),), dtype))
            return base.as_strided(shape, stride, value.storage_offset())
        array = self._lifting.new_input("argument", index, shape, dtype)
        own = tuple(slice(1 if step == 0 else n) for n, step in zip(shape, stride, strict=True))
        window = window_of(array[own] if 0 in stride else array, value)
        return wrap_strided(array, stride) if window is None else window

    def _is_replaced(self, inputs: Sequence[Any], index: int) -> bool:
        """Whether an argument is written, and its whole memory is the device's."""
        if self._reaching:
            return False
        return index in self.written and inputs[index].device.type == "jax"

    def __call__(self, inputs: list[Any]) -> list[Any]:
        arrays = [source(inputs) for source in self._sources]
        if self._donated:
            protect(arrays, self._donated, self._pick_donated)
        with x64():
            outputs = self._run(arrays)
        if self._checks.failures:
            self._checks.look(outputs, 0)
        if self._host:  # the program may still read memory that PyTorch is free to write next
            for array in outputs:
                array.block_until_ready()
        if self._draws:
            rng.state.take(self._draws)
        for index, array in zip(self.written, outputs, strict=False):
            target = inputs[index]
            if target.device.type == "jax":
                write(target, array)
                torch.autograd.graph.increment_version(target)
            else:
                target.copy_(tensor_over(array))
        made = [base(outputs) for base in self.bases]
        results = [result(inputs, made) for result in self.results]
        inputs.clear()
        return results


class _Outputs:
    """Adds to the outputs of a program."""

    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = arrays

    def add(self, array: Array) -> int:
        self._arrays.append(array)
        return len(self._arrays) - 1


def _constant(value: Any) -> Callable[..., Any]:
    return lambda inputs, made: value


def _argument(index: int) -> Callable[..., Any]:
    return lambda inputs, made: inputs[index]


def _result(base: int, view: View | None) -> Callable[..., Any]:
    if view is None:
        return lambda inputs, made: made[base]
    return lambda inputs, made: made[base].as_strided(view.size, view.stride, view.offset)


class _Base:
    """How a tensor with memory of its own is made of an output of the program."""

    def __init__(
        self,
        output: int,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        device: torch.device | None,
    ) -> None:
        self._output, self._stride = output, stride
        self._on_host = device is not None and device.type == "cpu"
        self._row_major = len(stride) < 2 or stride == contiguous_strides(shape)

    def __call__(self, outputs: list[Array]) -> Tensor:
        array, stride = outputs[self._output], self._stride
        if self._on_host:
            made = tensor_over(array)
            return made if made.stride() == stride else _restrided(made, stride)
        return wrap_untraced(array) if self._row_major else wrap_strided(array, stride)


def _restrided(tensor: Tensor, stride: tuple[int, ...]) -> Tensor:
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)


def _source(one: Any, first: Sequence[Any], reaching: bool) -> Callable[[list[Any]], Any]:
    """A function from the list of inputs to the array; `first` are those of the first call."""
    source = one.source
    if one.kind == "argument":
        if reaching:
            return lambda inputs: _array(_storage(inputs[source]))
        return _Argument(source) if first[source].device.type == "cpu" else _on_device(source)
    if one.kind == "cell":
        return lambda inputs: source.array
    if one.kind == "host":
        return lambda inputs: host_array(source)
    return lambda inputs: rng.pack(rng.state.seed, rng.state.offset)


class _Argument:
    """The array of one argument that is on the CPU."""

    __slots__ = ("_index", "_kept")

    def __init__(self, index: int) -> None:
        self._index = index
        self._kept = Kept()

    def __call__(self, inputs: list[Any]) -> Array:
        return self._kept(inputs[self._index])


def _on_device(index: int) -> Callable[[list[Any]], Array]:
    """The array of one argument that is on the device."""

    def array(inputs: list[Any]) -> Array:
        tensor = inputs[index]
        cell = cell_of(tensor)
        return cell.array if not cell.viewed or is_whole(cell, tensor) else read(tensor)

    return array


def _array(tensor: Tensor) -> Array:
    return array_over(tensor) if tensor.device.type == "cpu" else read(tensor)
