"""`calque.functional`: a PyTorch module as a pure JAX function and a dict of its parameters."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from jax.extend.core import ClosedJaxpr
from torch.nn import Module

from calque.device.backend.interop import to_jax
from calque.device.memory.cell import Cell, read
from calque.device.memory.wrapping import wrap
from calque.errors import TraceError
from calque.interop import state_names
from calque.interop.array_functions import in_64_bits, picking, refusing
from calque.interop.functional_arguments import as_given, is_array, key_data, key_of, packed
from calque.interop.functional_results import Results
from calque.interop.kept_tensors import taken_back
from calque.program.gradients.border import has_graph
from calque.program.gradients.differentiable import gradients_of
from calque.program.jaxprs import split
from calque.program.lifted import lift
from calque.program.lifting import Lifting
from calque.program.manual_axes import axes_of, varying
from calque.program.narrowing import with_narrow_indices
from calque.program.sources import ArgumentSource, IncomingSource, Source
from calque.state import Running, Snapshot, StateGuard, guard_of
from calque.upstream.torch_internals import reparametrize_module

Gradient = Literal["torch", "jax"]
_State = dict[str, torch.Tensor]


def functional(
    module_or_fn: Module | Callable[..., Any], *, gradient: Gradient = "torch"
) -> tuple["Functional", dict[str, Array]]:
    """A module as a pure JAX function, and its parameters as a plain dict of arrays.

    Args:
        module_or_fn: a module on any device, or a function of tensors. Tensors that a function
            closes over are constants.
        gradient: which derivative `jax.grad` gives. "torch" follows torch's autograd (`detach`,
            `no_grad`, custom `autograd.Function`s) and is reverse-mode only; "jax"
            differentiates the traced program, in either mode.

    Returns:
        `apply, params`. `apply(params, *args, buffers=None, rng=None, **kwargs)` takes and returns
        pytrees of JAX arrays, and can be transformed by `jax.jit`, `grad`, `vmap` and `scan`.
        `params` has the keys of `state_dict()`, with tied weights once, and includes frozen
        parameters (`requires_grad=False`): JAX differentiates whatever it is asked to. `apply`
        takes exactly these. `apply.buffers` holds the buffers. With `buffers=`, `apply` returns
        `(result, new_buffers)`. Without it, the module's own buffers are used, and writing to one
        is an error. Random operators (dropout in training) need `rng`, a JAX key.

    Raises:
        TypeError: it is neither a module nor a function; from `apply`: `rng` is not a key, or an
            argument is neither an array nor hashable.
        RuntimeError: from `apply`: parameters or buffers are missing or unexpected; it names them.
        TraceError: from `apply`: a buffer was written to without `buffers=`, or a random operator
            ran without `rng=`; or the module cannot be traced.

    >>> import jax, torch, calque
    >>> apply, params = calque.functional(torch.nn.Linear(3, 2))
    >>> apply(params, jax.numpy.ones((4, 3))).shape
    (4, 2)
    >>> sorted(params)
    ['bias', 'weight']
    """
    if not callable(module_or_fn):
        raise TypeError(
            f"calque.functional takes a module or a function, not {type(module_or_fn).__name__}"
        )
    if gradient not in ("torch", "jax"):
        raise ValueError(f'gradient is "torch" or "jax", not {gradient!r}')
    apply = Functional(module_or_fn, gradient)
    return apply, apply.parameters()


class Functional:
    """A pure JAX function made from a module or a function; see `functional`.

    Attributes:
        buffers: the module's buffers as they were, with the keys of `state_dict()`.
        settle: is called after a trace with the Python state that it began with.
    """

    def __init__(self, module_or_fn: Module | Callable[..., Any], gradient: Gradient) -> None:
        self._fn = module_or_fn
        self._gradient = gradient
        self._module = module_or_fn if isinstance(module_or_fn, Module) else None
        self._traces: dict[Any, list[tuple[StateGuard, _Trace]]] = {}
        self.buffers: dict[str, Array] = {}
        self.settle: Callable[[Snapshot], None] = lambda snapshot: None
        if self._module is not None:
            self.buffers = {n: to_jax(b) for n, b in self._module.named_buffers()}

    def parameters(self) -> dict[str, Array]:
        """The parameters as arrays, tied weights once."""
        if self._module is None:
            return {}
        return {name: to_jax(p.detach()) for name, p in self._module.named_parameters()}

    def __call__(
        self,
        params: dict[str, Any],
        *args: Any,
        buffers: dict[str, Any] | None = None,
        rng: Any = None,
        **kwargs: Any,
    ) -> Any:
        leaves, spec = _flat(params, buffers, args, kwargs)
        arrays = [leaf for leaf in leaves if is_array(leaf)]
        trace = self._trace(leaves, spec)
        inputs = [*arrays, key_data(rng)] if rng is not None else arrays
        if trace.random and rng is None:
            raise TraceError(
                "a random operator ran in a functional module: pass rng=jax.random.key(...)"
            )
        given = inputs if trace.random else arrays
        axes = axes_of(given)
        results = trace.run(*(varying(array, axes) for array in given))
        return trace.rebuild(results)

    def reached(
        self,
        params: dict[str, Any],
        *args: Any,
        buffers: dict[str, Any] | None = None,
        rng: Any = None,
        **kwargs: Any,
    ) -> set[str]:
        """The names of the parameters that gradients of the result get to, for such a call."""
        trace = self._trace(*_flat(params, buffers, args, kwargs))
        names = sorted(params)
        return {names[place] for place in trace.gradient_of if place < len(names)}

    def _trace(self, leaves: list[Any], spec: Any) -> "_Trace":
        key = (
            spec,
            torch.get_default_dtype(),
            *[key_of(leaf) for leaf in leaves],
        )
        known = self._traces.setdefault(key, [])
        for guard, trace in known:
            if guard.holds():
                return trace
        params, buffers, *_ = jax.tree_util.tree_unflatten(spec, leaves)
        self._check(params, buffers)
        trace, guard = self._traced(leaves, spec)
        known.append((guard, trace))
        return trace

    def _check(self, params: Any, buffers: Any) -> None:
        """Raise where the arrays that are given are not those of the module."""
        if self._module is None:
            if params or buffers:
                raise RuntimeError("a function has neither parameters nor buffers: pass {}")
            return
        named = self._module.named_parameters
        names = {name: id(p) for name, p in named(remove_duplicate=False)}
        state_names.check("params", params, names, self.buffers)
        if buffers is not None:
            names = {name: id(b) for name, b in self._module.named_buffers(remove_duplicate=False)}
            state_names.check("buffers", buffers, names)

    def _traced(
        self, leaves: list[Any], spec: Any, arguments_are_leaves: bool = True
    ) -> tuple["_Trace", StateGuard]:
        """One trace, and the guard of what it has read of Python's state."""
        snapshot = Snapshot(self._fn)
        try:
            with taken_back(self._module):
                trace = _Trace(self, leaves, spec, Running(snapshot), arguments_are_leaves)
                self.settle(snapshot)
            return trace, guard_of(snapshot)
        except RuntimeError as error:
            if not arguments_are_leaves or _WRITES_TO_LEAF not in str(error):
                raise
            snapshot.restore()
        finally:
            snapshot.forget()
        return self._traced(leaves, spec, arguments_are_leaves=False)

    def call(self, tree: Any) -> tuple[Any, dict[str, torch.Tensor] | None, _State]:
        """Run the module on stand-in tensors.

        Returns:
            The result, the buffers if they were given, and what has stood in for its members.
        """
        params, buffers, args, kwargs = tree
        if self._module is None:
            return self._fn(*args, **kwargs), None, {}
        given = {n: wrap(jnp.asarray(b)) for n, b in self.buffers.items()}
        before = {name: read(tensor) for name, tensor in given.items()}
        state = {**given, **(buffers or {}), **params}
        result = torch.func.functional_call(self._module, state, args, kwargs)
        if buffers is not None:
            return result, {name: state[name] for name in buffers}, state
        for name, tensor in given.items():
            if read(tensor) is not before[name]:
                raise TraceError(
                    f"the buffer {name!r} is written in a functional module: pass buffers="
                    "apply.buffers and use the new ones that come back, or call module.eval()"
                )
        return result, None, state

    def standing_in(self, state: _State) -> AbstractContextManager[None]:
        """A context in which the module has these members."""
        if self._module is None:
            return nullcontext()
        return reparametrize_module(self._module, state, tie_weights=True)


class _Pure(Lifting):
    """Lifts nothing: what is no argument of a pure function is a constant of it."""

    def read(self, cell: Cell) -> Array:
        """The value of a cell: of one from outside, as it is now."""
        if self.is_fresh(cell) or cell in self.values or isinstance(cell.array, jax.core.Tracer):
            return super().read(cell)
        return cell.array

    def constant(self, tensor: torch.Tensor) -> Array:
        """The value of a CPU tensor, as it is now."""
        return self._host_constant(tensor)


@dataclass(frozen=True, slots=True)
class _KeySource(Source):
    """The key of the random numbers, which the caller gives behind all other arguments."""


def _place(source: Source, count: int) -> int:
    """Returns where the array of an input stands among those that the caller gives."""
    if isinstance(source, IncomingSource):
        return source.slot
    return source.index if isinstance(source, ArgumentSource) else count - 1


class _Trace:
    """One traced form of a functional module.

    Args:
        functional: the module.
        leaves, spec: an example call, flattened.
        running: watches what it reads of Python's state.
        arguments_are_leaves: whether the tensors among the arguments are leaves of PyTorch's
            graph, as far as they are differentiated. Those may not be written in place.
    """

    def __init__(
        self,
        functional: Functional,
        leaves: list[Any],
        spec: Any,
        running: Running,
        arguments_are_leaves: bool = True,
    ) -> None:
        self._functional = functional
        self._arguments_are_leaves = arguments_are_leaves
        self._running = running
        self._lifting = _Pure()
        lifted = lift(self._lifting, lambda: self._body(leaves, spec), torch.enable_grad())
        if self._lifting.written:
            raise TraceError(
                "a tensor that is no argument is written in a functional module, which has no "
                "effects: pass it as an argument, or make it a buffer of the module"
            )
        jaxpr, inputs = with_narrow_indices(lifted.closed), lifted.inputs
        self.random = any(isinstance(one.source, _KeySource) for one in self._lifting.inputs)
        count = sum(is_array(leaf) for leaf in leaves) + self.random
        places = [_place(one.source, count) for one in inputs]
        if self.gradient_of:
            self.run = self._with_gradient(jaxpr, inputs, places, count)
        else:
            self.run = picking(jaxpr, places, functional._gradient == "torch")
        if self._used_up:
            self.run = refusing(self.run, self._used_up)

    def _body(self, leaves: list[Any], spec: Any) -> list[Array]:
        lifting = self._lifting
        differentiable = self._functional._gradient == "torch"
        stand_ins: list[Any] = []
        index = 0
        for leaf in leaves:
            if not is_array(leaf):
                stand_ins.append(leaf)
                continue
            array = lifting.new_input(ArgumentSource(index), leaf.shape, leaf.dtype)
            tensor = wrap(array)
            if differentiable and (tensor.is_floating_point() or tensor.is_complex()):
                tensor.requires_grad_()
            stand_ins.append(tensor)
            index += 1
        lifting.random_source = lambda: packed(lifting.new_input(_KeySource(), (2,), np.uint32))
        given = _detached_buffers(stand_ins, spec)
        tree = jax.tree_util.tree_unflatten(spec, given)
        if not self._arguments_are_leaves:
            params, buffers, *arguments = tree
            tree = (params, buffers, *jax.tree.map(_computed, arguments))
        with self._running.watching():
            result, buffers, state = self._functional.call(tree)
        self._results = Results((result, buffers))
        self._has_buffers = buffers is not None
        tensors, self._results.tensors = self._results.tensors, []
        # A result that is an argument itself has the gradient that comes in.
        tensors = [t.view_as(t) if t.requires_grad and t.is_leaf else t for t in tensors]
        arrays = [read(t.resolve_conj().resolve_neg()) for t in tensors]
        self._n_outputs = len(arrays)
        self.gradient_of: list[int] = []
        self._used_up: dict[int, str] = {}
        with self._functional.standing_in(state):  # checkpoints run parts of the module again
            return arrays + self._trace_gradients(tensors, stand_ins)

    def _trace_gradients(self, tensors: list[torch.Tensor], stand_ins: list[Any]) -> list[Array]:
        carriers = [i for i, t in enumerate(tensors) if has_graph(t)]
        inputs = [t for t in stand_ins if isinstance(t, torch.Tensor)]
        targets = [t for t in inputs if t.requires_grad]
        if not carriers or not targets:
            return []
        found, errors = gradients_of(self._lifting, [tensors[i] for i in carriers], targets)
        self._used_up = {carriers[i]: said for i, said in errors.items()}
        positions = {id(t): i for i, t in enumerate(inputs)}
        pairs = [
            (positions[id(t)], g) for t, g in zip(targets, found, strict=True) if g is not None
        ]
        self._carriers = carriers
        self.gradient_of = [position for position, _ in pairs]
        return [read(g) for _, g in pairs]

    def _with_gradient(
        self, jaxpr: ClosedJaxpr, inputs: list[Any], places: list[Any], count: int
    ) -> Callable[..., Any]:
        incoming_at = {
            i: one.source.slot
            for i, one in enumerate(inputs)
            if isinstance(one.source, IncomingSource)
        }
        slots = list(incoming_at)
        n_gradients = len(self.gradient_of)
        forward, (late,), kept = split(jaxpr, [(slots, n_gradients)], self._n_outputs)
        forward_places = [places[i] for i in kept]
        needed = [self._carriers[slot] for slot in incoming_at.values()]
        n_outputs, gradient_of = self._n_outputs, self.gradient_of
        early, backward = in_64_bits(forward), in_64_bits(late.closed)

        @jax.custom_vjp
        def run(*arrays: Array) -> list[Array]:
            return early(*[arrays[i] for i in forward_places])[:n_outputs]

        def run_forward(*arrays: Array) -> tuple[list[Array], list[Array]]:
            outputs = early(*[arrays[i] for i in forward_places])
            return outputs[:n_outputs], outputs[n_outputs:]

        def run_backward(residuals: list[Array], incoming: Any) -> tuple[Any, ...]:
            # PyTorch's gradient of a complex number is the conjugate of JAX's.
            gradients = backward(*residuals, *[jnp.conj(incoming[i]) for i in needed])
            result: list[Any] = [None] * count
            for position, value in zip(gradient_of, gradients, strict=True):
                result[position] = jnp.conj(value)
            return tuple(result)

        run.defvjp(run_forward, run_backward)
        return run

    def rebuild(self, arrays: list[Array]) -> Any:
        """The result for the program's output arrays."""
        result, buffers = self._results.of(arrays)
        return (result, buffers) if self._has_buffers else result


def _flat(params: Any, buffers: Any, args: Any, kwargs: Any) -> tuple[list[Any], Any]:
    """The leaves of a call, and its structure."""
    leaves, spec = jax.tree_util.tree_flatten((params, buffers, args, kwargs))
    return list(map(as_given, leaves)), spec


def _detached_buffers(stand_ins: list[Any], spec: Any) -> list[Any]:
    """The stand-ins, those of buffers without a gradient: modules write them in place."""
    _, buffers, _, _ = jax.tree_util.tree_unflatten(spec, stand_ins)
    for tensor in (buffers or {}).values():
        tensor.requires_grad_(False)
    return stand_ins


_WRITES_TO_LEAF = "leaf Variable that requires grad is being used in an in-place operation"


def _computed(value: Any) -> Any:
    """A tensor that a function may write to, whose gradient goes through to `value`."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return value
    made = value.clone()
    made.retain_grad()
    return made
