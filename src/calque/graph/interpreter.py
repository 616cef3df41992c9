"""Runs an ATen-level `torch.fx` graph on JAX arrays."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax
from torch import fx
from torch.export import ExportedProgram
from torch.fx.immutable_collections import immutable_dict, immutable_list

from calque.device.kernels import foreign
from calque.device.kernels.assumed_checks import assert_holds
from calque.device.memory.cell import active, read, x64
from calque.device.memory.host import host_array
from calque.device.memory.wrapping import wrap, wrap_strided
from calque.errors import TraceError, UnsupportedOpError
from calque.errors.handlers import is_of_handler
from calque.graph.higher_order import HIGHER_ORDER
from calque.graph.node_location import is_own_assertion, located, origin_of
from calque.graph.node_scopes import scopes_of
from calque.graph.operator_calls import CALLING
from calque.program.lifting import Lifting
from calque.tracing.graph.checks import GRADIENT, assign, expect_container, expect_tensor
from calque.upstream import torch_c
from calque.upstream.jax_internals import eval_context
from calque.upstream.torch_internals import HigherOrderOperator, OpOverload, pytree, tree_leaves

_OF_GRADIENTS = ("requires_grad", GRADIENT)
_LEAF = torch.ops.aten.requires_grad_.default  # which changes no element

_CAPTURED = (
    "a Python number or a size depends on a tensor's values here ({}), which one program cannot "
    "handle.\nLeave torch._dynamo.config.capture_scalar_outputs and "
    "capture_dynamic_output_shape_ops off: torch.compile then runs this line in Python, between "
    "two programs."
)


class JaxInterpreter:
    """An ATen-level graph as a pure JAX function.

    It takes and returns arrays: the inputs and outputs of the graph, in the same order, or for an
    `ExportedProgram`, the user's inputs and outputs, in their own containers. It can be passed to
    `jax.jit`, `jax.vmap` and similar functions. Writes to inputs have no effect on the caller.

    >>> import torch, jax, calque
    >>> from calque.graph import JaxInterpreter
    >>> program = torch.export.export(torch.nn.Softplus(), (torch.zeros(3),))
    >>> jax.jit(JaxInterpreter(program))(jax.numpy.zeros(3)).tolist()
    [0.6931471824645996, 0.6931471824645996, 0.6931471824645996]

    Args:
        graph: the graph; its nodes call ATen operators, operators of `torch.library` and PyTorch's
            higher-order operators (`cond`, `while_loop`, `scan`, `map`).

    Raises:
        UnsupportedOpError: when called, if an operator has no rule, decomposition or CPU kernel.
    """

    def __init__(self, graph: fx.GraphModule | ExportedProgram) -> None:
        self._program = graph if isinstance(graph, ExportedProgram) else None
        module = graph.graph_module if isinstance(graph, ExportedProgram) else graph
        self._nodes = Nodes(module)
        inputs = module.graph.find_nodes(op="placeholder")
        self._traced_with = [None if n.target[0] == "*" else n.meta.get("val") for n in inputs]

    def __call__(self, *args: Any, rng: Array | None = None, **kwargs: Any) -> Any:
        """Returns the graph's results.

        Args:
            *args: arrays (or Python values, where the graph takes some).
            rng: a JAX key, for graphs that draw random numbers.
            **kwargs: the named inputs of an `ExportedProgram`.
        """
        lifting = Lifting()
        lifting.random_source = lambda: _packed(rng)
        is_narrow = not jax.config.jax_enable_x64  # which it is not within
        with lifting.activated():
            leaves = jax.tree.map(_wrapped_array, self._flat(args, kwargs))
            if is_narrow:
                leaves = [*map(_widened, leaves, [*self._traced_with, *[None] * len(leaves)])]
            found = self._nodes.found(leaves)
        if self._program is None:
            return _plain(found)
        return self._unflat([read(r) if isinstance(r, torch.Tensor) else r for r in found])

    def _flat(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        program = self._program
        if program is None:
            return list(args)
        given = iter(tree_leaves((tuple(args), kwargs)))
        leaves: list[Any] = []
        for spec in program.graph_signature.input_specs:
            if spec.kind.name == "USER_INPUT":
                leaves.append(next(given))
            elif spec.target in program.constants:
                leaves.append(constant(program.constants[spec.target]))
            else:
                leaves.append(constant(program.state_dict[spec.target]))
        return leaves

    def _unflat(self, arrays: list[Any]) -> Any:
        program: Any = self._program
        specs = program.graph_signature.output_specs
        pairs = zip(specs, arrays, strict=True)
        own = [array for spec, array in pairs if spec.kind.name == "USER_OUTPUT"]
        return pytree.tree_unflatten(own, program.call_spec.out_spec)


class Nodes(fx.Interpreter):
    """Runs the nodes of a graph on tensors on the device, whatever device it was traced for.

    Args:
        module: the graph.
        differentiable: whether JAX may differentiate it; then `detach` returns no alias.

    Attributes:
        single: whether the graph returns one value that is not in a tuple.
        asserts: whether the user's code asserts something about values.
    """

    def __init__(self, module: fx.GraphModule, differentiable: bool = True) -> None:
        super().__init__(module, garbage_collect_values=True)
        self.extra_traceback = False
        (output,) = (n for n in module.graph.nodes if n.op == "output")
        self.single: bool = not isinstance(output.args[0], tuple | list)
        self.asserts: bool = any(map(is_own_assertion, module.graph.nodes))
        self._stopping = differentiable and not any(map(_writes, module.graph.nodes))

    def found(self, inputs: Sequence[Any]) -> Any:
        """Returns the graph's results, in their containers."""
        with torch.no_grad(), torch_c.AutoDispatchBelowAutograd():
            return self.run(*inputs, enable_io_processing=False)

    def results(self, inputs: Sequence[Any]) -> list[Any]:
        """Returns the graph's results as a flat list."""
        found = self.found(inputs)
        return [found] if self.single else list(found)

    @property
    def lifting(self) -> Lifting:
        """The trace in which the nodes run."""
        assert isinstance(active.trace, Lifting)
        return active.trace

    def run_node(self, n: fx.Node) -> Any:
        """Like the base class's, but an error names the user's line of the node."""
        failures = self.lifting.failures
        known = len(failures or ())
        try:
            with scopes_of(n):
                found = self._asserted(n) if is_own_assertion(n) else super().run_node(n)
        except Exception as error:
            if is_of_handler(error):
                raise
            if isinstance(error, TraceError) and n.meta.get("unbacked_bindings"):
                error = TraceError(_CAPTURED.format(n.target))
            raise located(error, n)  # noqa: B904 (the same error)
        for index in range(known, len(failures or ())):
            assert failures is not None
            failures[index] = replace(failures[index], origin=origin_of(n))
        if isinstance(n.target, HigherOrderOperator):
            return _with_strides(found, n.meta.get("val"))
        return found

    def _asserted(self, n: fx.Node) -> None:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        assert_holds(*args, **kwargs, always=True)

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Returns an input; the remaining ones are a tuple or a dict, as in a function."""
        if target.startswith("**"):
            return {}
        found = super().placeholder(target, args, kwargs)
        return tuple(found) if target.startswith("*") else found

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Returns a constant of the graph, on the device."""
        value = self.fetch_attr(target)
        if isinstance(value, torch.Tensor):
            return wrap(constant(value))
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Calls an operator, or a higher-order operator with its subgraphs."""
        if target is assign:
            return None  # a function of arrays has no effects but its results
        if target is expect_container and isinstance(args[0], dict):
            args = (dict(sorted(args[0].items())), *args[1:])  # JAX does not keep the order of keys
            args = (*args[:2], sorted(args[2]) if isinstance(args[2], list) else args[2], args[3])
        if target is expect_tensor:  # an array has whatever gradients JAX computes
            args = (
                *args[:2],
                {what: args[2][what] for what in args[2] if what not in _OF_GRADIENTS},
            )
        if not isinstance(target, HigherOrderOperator):
            return self.call_operator(target, args, kwargs)
        if target.name() in CALLING:
            return CALLING[target.name()](self, *args, **kwargs)
        rule = HIGHER_ORDER.get(target.name())
        if rule is None:
            raise UnsupportedOpError(f"torch.ops.higher_order.{target.name()} has no rule")
        return self.call_higher_order(rule, args, kwargs)

    def call_higher_order(self, rule: Any, args: Any, kwargs: Any) -> Any:
        """Calls a rule of `higher_order`, which works on arrays."""
        arrays, named = pytree.tree_map_only(torch.Tensor, read, (tuple(args), kwargs))
        found = rule(self.function_of, *arrays, **named)
        return pytree.tree_map_only(jax.Array, wrap, found)

    def call_operator(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Calls an ATen operator, or a function of numbers."""
        if target is torch.ops.aten.detach.default and self._stopping:
            # JAX does not see `detach`, which runs below autograd. An alias of a written tensor
            # must stay one.
            return wrap(lax.stop_gradient(read(args[0])))
        if target is _LEAF:
            return args[0]
        args, kwargs = pytree.tree_map_only(torch.device, on_device, (tuple(args), kwargs))
        if target is torch.ops.aten.view.default:
            # The strides of some results differ between fake kernels, PyTorch's CPU kernels and
            # ours, so a view may have to be a copy.
            target = torch.ops.aten.reshape.default
        if target is torch.ops.aten.view_as_real.default:
            # Arguments that were lazily conjugated in the trace are passed with resolved values.
            args = (args[0].resolve_conj(),)
        return foreign.run(target, args, kwargs)

    @staticmethod
    def function_of(graph: fx.GraphModule) -> Callable[..., tuple[Any, ...]]:
        """Returns a subgraph as a function of arrays and numbers that returns a tuple of them."""
        nodes = Nodes(graph)

        def run(*values: Any) -> tuple[Any, ...]:
            given = [wrap(v) if isinstance(v, jax.Array) else v for v in values]
            with nodes.lifting.unchecked():
                found = nodes.results(given)
            return tuple(read(r) if isinstance(r, torch.Tensor) else r for r in found)

        return run


def _with_strides(found: Any, expected: Any) -> Any:
    """Returns results with their strides in the graph, because control flow returns row-major
    arrays.
    """
    values, spec = pytree.tree_flatten(found)
    likes = tree_leaves(expected)
    if len(likes) == len(values):
        values = [_restrided(*pair) for pair in zip(values, likes, strict=True)]
    return pytree.tree_unflatten(values, spec)


def _restrided(value: object, like: object) -> Any:
    if not isinstance(like, torch.Tensor) or not isinstance(value, torch.Tensor):
        return value
    stride = like.stride()
    if stride == value.stride() or not all(isinstance(n, int) for n in (*like.shape, *stride)):
        return value
    return wrap_strided(read(value), stride)


def on_device(device: torch.device) -> torch.device:
    """Returns the device for an operator's result, whatever device it was traced for."""
    return device if device.type == "meta" else torch.device("jax")


def constant(tensor: torch.Tensor) -> Array:
    """Returns the value of a tensor that belongs to a graph, as a constant instead of an input."""
    trace, active.trace = active.trace, None
    try:
        with eval_context():
            tensor = tensor.detach()
            return read(tensor) if tensor.device.type == "jax" else host_array(tensor)
    finally:
        active.trace = trace


def _plain(value: object) -> Any:
    """Returns a result as arrays in Python containers, instead of those of torch.fx."""
    if isinstance(value, torch.Tensor):
        return read(value)
    if isinstance(value, immutable_list):
        return [_plain(part) for part in value]
    if isinstance(value, immutable_dict):
        return {key: _plain(part) for key, part in value.items()}
    if type(value) is tuple:
        return tuple(_plain(part) for part in value)
    return pytree.tree_map_only(torch.Tensor, read, value)


def _writes(node: fx.Node) -> bool:
    """Returns True if a node writes to a tensor that another node may read afterwards.

    Final copies to inputs and members are not read again.
    """
    target: Any = node.target
    if not isinstance(target, OpOverload) or not target._schema.is_mutable or target is _LEAF:
        return False
    first = node.args[0] if node.args else None
    ends = isinstance(first, fx.Node) and first.op in ("placeholder", "get_attr")
    return not (target is torch.ops.aten.copy_.default and ends)


def _wrapped_array(value: object) -> Any:
    return wrap(jnp.asarray(value)) if _is_array(value) else value


def _widened(given: Any, traced_with: Any) -> Any:
    """Returns an input with the 64-bit integers that the graph was traced with, which JAX makes
    32-bit ones where 64-bit types are off.
    """
    if isinstance(given, torch.Tensor):
        narrow = given.dtype == torch.int32 and isinstance(traced_with, torch.Tensor)
        return given.long() if narrow and traced_with.dtype == torch.int64 else given
    if isinstance(given, dict) and isinstance(traced_with, dict):
        return {key: _widened(part, traced_with.get(key)) for key, part in given.items()}
    if type(given) in (list, tuple) and isinstance(traced_with, (list, tuple)):
        return type(given)(map(_widened, given, traced_with))
    return given


def _is_array(value: object) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _packed(key: Array | None) -> Array:
    if key is None:
        raise ValueError("the graph draws random numbers: pass rng=jax.random.key(...)")
    data = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    with x64():
        wide = data.reshape(-1)[-2:].astype(jnp.uint64)
        return jnp.stack([(wide[0] << 32) | wide[1], jnp.uint64(0)])
