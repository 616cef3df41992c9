"""`calque.functional`: a PyTorch module as a pure JAX function and a dict of its parameters."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import jax
import jax.numpy as jnp
import torch
from jax import Array
from torch.nn import Module

from calque.device.backend.interop import to_jax
from calque.device.memory.cell import read
from calque.device.memory.wrapping import wrap
from calque.errors import TraceError
from calque.interop import state_names
from calque.interop.functional_arguments import as_given, is_array, key_data, key_of
from calque.interop.functional_trace import FunctionalTrace
from calque.interop.kept_tensors import taken_back
from calque.interop.parameter_hooks import hooks_of, refusing_hooks, register_hooks
from calque.interop.repeated_calls import repeats
from calque.program.manual_axes import axes_of, varying
from calque.state import Running, Snapshot, StateGuard, guard_in_place
from calque.upstream.torch_internals import reparametrize_module

Gradient = Literal["torch", "jax"]
Repeats = Callable[[Callable[[], None] | None], bool]
Settle = Callable[[Snapshot, Repeats], None]
_State = dict[str, torch.Tensor]
_WRITES_TO_LEAF = "leaf Variable that requires grad is being used in an in-place operation"


def functional(
    module_or_fn: Module | Callable[..., Any], *, gradient: Gradient = "torch"
) -> tuple["Functional", dict[str, Array]]:
    """Turns a module into a pure JAX function and a dict of its parameters as arrays.

    Args:
        module_or_fn: a module on any device, or a function of tensors. Tensors that a function
            closes over are constants.
        gradient: the derivative that `jax.grad` computes. "torch" follows torch's autograd
            (`detach`, `no_grad`, custom `autograd.Function`s) and is reverse-mode only; "jax"
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
        TypeError: it is not a module or function; from `apply`: `rng` is not a key, or an argument
            is neither an array nor hashable.
        RuntimeError: from `apply`: parameters or buffers are missing or unexpected; the message
            names them.
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
            f"calque.functional expects a module or a function, not {type(module_or_fn).__name__}"
        )
    if gradient not in ("torch", "jax"):
        raise ValueError(f'gradient must be "torch" or "jax", not {gradient!r}')
    apply = Functional(module_or_fn, gradient)
    return apply, apply.parameters()


def _settle_nothing(snapshot: Snapshot, repeats: Repeats) -> None:
    """Does nothing: keeps the changes of a trace to Python's state."""


class Functional:
    """A pure JAX function made from a module or a function; see `functional`.

    Attributes:
        buffers: the module's buffers as they were, with the keys of `state_dict()`.
        settle: called after a trace with a snapshot of the Python state before it, and with a
            function that returns whether a second call, which starts with the state after the
            first, would compute the same (see `repeats`); the state must be restored before calling
            that function.
    """

    def __init__(self, module_or_fn: Module | Callable[..., Any], gradient: Gradient) -> None:
        self._fn = module_or_fn
        self._gradient = gradient
        self._module = module_or_fn if isinstance(module_or_fn, Module) else None
        self._traces: dict[Any, list[tuple[StateGuard, FunctionalTrace]]] = {}
        self.buffers: dict[str, Array] = {}
        self.settle: Settle = _settle_nothing
        if self._module is not None:
            self.buffers = {n: to_jax(b) for n, b in self._module.named_buffers()}

    def __getstate__(self) -> dict[str, Any]:
        # Traces are valid only in this process.
        return self.__dict__ | {"_traces": {}, "settle": _settle_nothing}

    def parameters(self) -> dict[str, Array]:
        """Returns the parameters as arrays, tied weights once."""
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
        if self._gradient == "jax" and self._module is not None:
            params, (args, kwargs) = refusing_hooks(self._module, params, (args, kwargs))
        leaves, spec = _flat(params, buffers, args, kwargs)
        arrays = [leaf for leaf in leaves if is_array(leaf)]
        trace = self._trace(leaves, spec)
        inputs = [*arrays, key_data(rng)] if rng is not None else arrays
        if trace.random and rng is None:
            raise TraceError(
                "a random operator runs in a functional module: pass rng=jax.random.key(...)"
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
        rng: object = None,
        **kwargs: Any,
    ) -> set[str]:
        """Returns the names of the parameters that the result's gradients reach."""
        trace = self._trace(*_flat(params, buffers, args, kwargs))
        names = sorted(params)
        return {names[place] for place in trace.gradient_of if place < len(names)}

    def _trace(self, leaves: list[Any], spec: object) -> FunctionalTrace:
        key = (
            spec,
            torch.get_default_dtype(),
            hooks_of(self._module),
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
        """Raise if the given arrays do not match the module's."""
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
        self, leaves: list[Any], spec: object, arguments_are_leaves: bool = True
    ) -> tuple[FunctionalTrace, StateGuard]:
        """Returns a trace, and the guard for the Python state that it read."""
        snapshot = Snapshot(self._fn)
        try:
            with taken_back(self._module):
                trace = FunctionalTrace(self, leaves, spec, Running(snapshot), arguments_are_leaves)
                call = (self, leaves, spec, arguments_are_leaves)
                self.settle(snapshot, lambda between: repeats(*call, between))
            return trace, guard_in_place(snapshot)
        except RuntimeError as error:
            if not arguments_are_leaves or _WRITES_TO_LEAF not in str(error):
                raise
            snapshot.restore()
        finally:
            snapshot.forget()
        return self._traced(leaves, spec, arguments_are_leaves=False)

    def call(self, tree: Any) -> tuple[Any, dict[str, torch.Tensor] | None, _State]:
        """Run the module on traced tensors.

        Returns:
            The result, the buffers if they were given, and the traced members.
        """
        params, buffers, args, kwargs = tree
        if self._module is None:
            return self._fn(*args, **kwargs), None, {}
        given = {n: wrap(jnp.asarray(b)) for n, b in self.buffers.items()}
        before = {name: read(tensor) for name, tensor in given.items()}
        state = {**given, **(buffers or {}), **params}
        register_hooks(self._module, params)
        result = torch.func.functional_call(self._module, state, args, kwargs)
        if buffers is not None:
            return result, {name: state[name] for name in buffers}, state
        for name, tensor in given.items():
            if read(tensor) is not before[name]:
                raise TraceError(
                    f"a functional module writes to the buffer {name!r}: pass "
                    "buffers=apply.buffers and use the new buffers that it returns, or call "
                    "module.eval()"
                )
        return result, None, state

    def standing_in(self, state: _State) -> AbstractContextManager[None]:
        """A context manager in which the module has these members."""
        if self._module is None:
            return nullcontext()
        return reparametrize_module(self._module, state, tie_weights=True)


def _flat(params: object, buffers: object, args: object, kwargs: object) -> tuple[list[Any], Any]:
    """Returns the leaves of a call, and its structure."""
    leaves, spec = jax.tree_util.tree_flatten((params, buffers, args, kwargs))
    return list(map(as_given, leaves)), spec
