"""Converts a program of `torch.export` to a pure JAX function of its state and inputs."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import Array
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

from calque.device.backend.interop import to_jax
from calque.device.runtime.dtypes import to_numpy
from calque.errors import TraceError
from calque.graph.dimensions import Dimensions
from calque.graph.interpreter import constant
from calque.graph.node_location import line_of
from calque.graph.sized_nodes import SizedNodes
from calque.program.lifting import Lifting
from calque.program.plain_containers import plain
from calque.upstream.torch_internals import OpOverload, pytree

_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
_TENSORS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass
class _Input:
    """One of the user's inputs: a tensor's shape and dtype, or a Python value."""

    place: int
    shape: jax.ShapeDtypeStruct | None
    value: Any


class Stateless:
    """A functional program of `torch.export` as a function of `(state, *args, **kwargs)`.

    It returns the program's results in plain containers; if the program writes to the state, in a
    pair with a dict of the new values.

    Attributes:
        state: the parameters that are used, and the buffers that are in `state_dict()` or are
            written.
        state_shapes: their shapes and dtypes.
        inputs: the shapes and dtypes of the other arguments, `(args, kwargs)`; None for Python
            values, which are part of the program.
        values: these Python values, by their positions in `(args, kwargs)`.

    Raises:
        TraceError: the program writes to its inputs or has effects; the message names the user's
            line.
    """

    def __init__(self, program: ExportedProgram) -> None:
        graph = program.graph_module.graph
        self._outputs = _without_checks(graph, program.graph_signature.output_specs)
        self._out_spec = program.call_spec.out_spec
        _check_outputs(self._outputs, graph)
        _drop_assertions(graph)
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        dimensions = Dimensions(placeholders, program.range_constraints)
        self._nodes = SizedNodes(program.graph_module, dimensions)
        written = {spec.target for spec in self._outputs if spec.kind in _WRITES}
        self.state: dict[str, Array] = {}
        self._held: dict[int, Array | str] = {}
        inputs: list[_Input] = []
        specs = program.graph_signature.input_specs
        for place, (node, spec) in enumerate(zip(placeholders, specs, strict=True)):
            if spec.kind is InputKind.USER_INPUT:
                inputs.append(_input(place, node, spec.arg, dimensions))
            elif node.users:
                self._held[place] = self._hold(program, spec, written)
        self._count = len(placeholders)
        self._arrange(plain(pytree.tree_unflatten(inputs, program.call_spec.in_spec)))
        self.state_shapes: Any = jax.tree.map(jax.typeof, self.state)

    def _hold(self, program: ExportedProgram, spec: Any, written: set[Any]) -> Array | str:
        """Returns a tensor of the program if it is a constant, or its name in the state."""
        name = spec.target
        if spec.kind not in _TENSORS:
            raise TraceError(
                f"the program contains {name or spec.arg.name!r}, which is not a tensor"
            )
        kept = program.state_dict.get(name)
        if kept is None and name not in written:
            return constant(program.constants[name])
        self.state[name] = to_jax(program.constants[name] if kept is None else kept.detach())
        return name

    def _arrange(self, tree: object) -> None:
        """Separate tensors from Python values in the tree of inputs."""
        leaves, spec = jax.tree_util.tree_flatten_with_path(tree)
        inputs = [one for _, one in leaves]
        self.inputs: Any = jax.tree.unflatten(spec, [one.shape for one in inputs])
        self.values: dict[str, Any] = {
            jax.tree_util.keystr(path): one.value for path, one in leaves if one.shape is None
        }
        self._values = {one.place: one.value for one in inputs if one.shape is None}
        self._places = [one.place for one in inputs if one.shape is not None]

    def __call__(self, state: dict[str, Array], *args: Any, **kwargs: Any) -> Any:
        arrays = jax.tree.leaves((args, kwargs))
        given: list[Any] = [self._values.get(place) for place in range(self._count)]
        for place, array in zip(self._places, arrays, strict=True):
            given[place] = array
        for place, held in self._held.items():
            given[place] = state[held] if isinstance(held, str) else held
        lifting = Lifting()
        lifting.random_source = _refuse_random
        lifting.callbacks = False
        with lifting.activated():
            found = self._nodes.results(given)
        results, written = [], {}
        for spec, value in zip(self._outputs, found, strict=True):
            if spec.kind in _WRITES:
                written[spec.target] = value
            else:
                results.append(value if value is None else jnp.asarray(value))
        result = plain(pytree.tree_unflatten(results, self._out_spec))
        return (result, written) if written else result


def _input(place: int, node: fx.Node, argument: object, dimensions: Dimensions) -> _Input:
    if isinstance(argument, ConstantArgument):
        return _Input(place, None, argument.value)
    value = node.meta["val"]
    if not isinstance(argument, TensorArgument) or not isinstance(value, torch.Tensor):
        raise TraceError(
            f"the input {node.name!r} is a dynamic number: only the sizes of tensors can be dynamic"
        )
    shape = jax.ShapeDtypeStruct(dimensions.of(value.shape), to_numpy(value.dtype))
    return _Input(place, shape, None)


def _check_outputs(specs: Any, graph: fx.Graph) -> None:
    """Raise TraceError, at the user's line, if a program has side effects."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    for spec, node in zip(specs, output.args[0], strict=True):
        if spec.kind is OutputKind.USER_OUTPUT or spec.kind in _WRITES:
            if isinstance(node, str | bytes):
                raise TraceError(
                    f"the program returns {node!r}: return only tensors and numbers, and add "
                    "such values to the result of a call"
                )
            continue
        place = line_of(node) if isinstance(node, fx.Node) else ""
        what = f"has a side effect: {_effects(graph)}"
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            what = f"writes to its input {spec.target!r}: return the new value instead"
        raise TraceError(f"{place}: the program {what}" if place else f"the program {what}")


def _only_raises(op: OpOverload) -> bool:
    """Returns True if a PyTorch operator has no results and writes nothing, and so can only raise.

    A StableHLO program cannot raise; for such values JAX returns non-finite results instead.
    """
    schema = op._schema
    return op.namespace == "aten" and not schema.returns and not schema.is_mutable


def _without_checks(graph: fx.Graph, specs: list[Any]) -> list[Any]:
    """Remove operators that can only raise from the chain of effect tokens, and an empty chain.

    Returns:
        The remaining outputs.
    """
    for node in list(graph.nodes):
        if str(node.target) == "with_effects" and _only_raises(node.args[1]):
            for token in list(node.users):  # the token is the only result
                token.replace_all_uses_with(node.args[0])
                graph.erase_node(token)
            graph.erase_node(node)
    (output,) = (node for node in graph.nodes if node.op == "output")
    pairs = zip(specs, output.args[0], strict=True)
    kept = [(s, n) for s, n in pairs if s.kind is not OutputKind.TOKEN or n.op != "placeholder"]
    output.args = (tuple(node for _, node in kept),)
    return [spec for spec, _ in kept]


def _effects(graph: fx.Graph) -> str:
    """Returns the operators of a graph that have effects."""
    calls = [node for node in graph.nodes if str(node.target) == "with_effects"]
    return ", ".join(str(node.args[1]) for node in calls)


def _drop_assertions(graph: fx.Graph) -> None:
    """Remove PyTorch's checks of sizes, because JAX checks their bounds."""
    for node in reversed(graph.nodes):
        if isinstance(node.target, OpOverload) and not node.users:
            if _only_raises(node.target) or torch.Tag.data_dependent_output in node.target.tags:
                graph.erase_node(node)
    graph.eliminate_dead_code()


def _refuse_random() -> Array:
    raise TraceError(
        "the program draws random numbers: call model.eval() before exporting, or pass the "
        "numbers as an input"
    )
