"""Calls the jitted functions that implement operators.

Outside a trace, their programs share contexts (`shared_contexts`). In a trace, this is much faster
than JAX's own call: a trace calls the same few functions thousands of times, and each time JAX
inspects the arguments, finds the jaxpr traced for them, and adds one equation to the trace. Here,
the equation is cached, and added again for arguments of the same shapes and dtypes and the same
numbers. `benchmarks/trace_time.py` measures it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import tree_util

from calque.device.runtime import precision
from calque.device.runtime.shared_contexts import sharing
from calque.upstream.jax_internals import config, core, partial_eval, source_info_util

IS_KNOWN = hasattr(partial_eval.DynamicJaxprTrace, "emit_eqn")
"""True if this release of JAX has the internals that this module uses."""

_JITTED = type(jax.jit(lambda: None))
_NUMBERS = frozenset((bool, int, float))
_CAPACITY = 512  # kinds of calls of one function


class _Call(NamedTuple):
    """The equation of one kind of call.

    Attributes:
        primitive, params, avals: its primitive, its parameters, and the avals of its results.
        literals: the literals for arguments that are numbers, and None for the others; None if
            there are no numbers.
        tree: the structure of the results; None for a single array.
    """

    primitive: Any
    params: Any
    avals: list[Any]
    literals: list[Any] | None
    tree: Any | None


def call(function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    """Calls `function(*arrays)`.

    Args:
        function: a jitted function of positional arguments that are arrays or numbers.
        arrays: the arguments.
    """
    trace: Any = core.trace_ctx.trace if IS_KNOWN else None
    if type(trace) is not partial_eval.DynamicJaxprTrace or type(function) is not _JITTED:
        sharing.wanted = True  # as `with sharing`, which costs two calls
        try:
            return function(*arrays)
        finally:
            sharing.wanted = False
    tracer = partial_eval.DynamicJaxprTracer
    key: list[Any] = [config.trace_context(), precision.last.changes]
    for array in arrays:
        kind = type(array)
        if kind is tracer and array._trace is trace:
            key.append(array.aval)
        elif kind in _NUMBERS:
            key.append((kind, repr(array)))  # -0.0 == 0.0 and nan != nan
        else:
            return function(*arrays)
    hashed = tuple(key)
    known = _known(function)
    found = known.get(hashed)
    if found is None:
        return _learn(function, arrays, known, hashed)
    source = source_info_util.current()
    given = list(arrays)
    if found.literals is not None:
        given = [
            array if one is None else tracer(trace, one.aval, one, source)
            for array, one in zip(arrays, found.literals, strict=True)
        ]
    results = trace.emit_eqn(given, found.avals, found.primitive, found.params, frozenset(), source)
    return results[0] if found.tree is None else tree_util.tree_unflatten(found.tree, results)


def stage(primitive: Any, aval: object, **params: Any) -> Any:
    """Like `primitive.bind(**params)`, for a primitive without operands and effects.

    Args:
        primitive: the primitive.
        aval: the aval of its result.
        params: its parameters.
    """
    trace: Any = core.trace_ctx.trace if IS_KNOWN else None
    if type(trace) is not partial_eval.DynamicJaxprTrace:
        return primitive.bind(**params)
    source = source_info_util.current()
    (found,) = trace.emit_eqn([], [aval], primitive, params, frozenset(), source)
    return found


def _known(function: Any) -> dict[Any, _Call]:
    """Returns the cache for a function, which lives as long as the function."""
    try:
        return function._calque_calls
    except AttributeError:
        function._calque_calls = {}
        return function._calque_calls


def _learn(
    function: Callable[..., Any], arrays: Sequence[Any], known: dict[Any, _Call], key: object
) -> Any:
    trace: Any = core.trace_ctx.trace
    equations = trace.frame.tracing_eqns
    before = len(equations)
    result = function(*arrays)
    if len(equations) == before + 1:
        found = _call(equations[-1], arrays, result)
        if found is not None:
            if len(known) >= _CAPACITY:
                known.clear()
            known[key] = found
    return result


def _call(equation: Any, arrays: Sequence[Any], result: Any) -> _Call | None:
    """Returns the equation that a call produced, if it is the same for all such calls."""
    if not hasattr(equation, "primitive"):
        equation = equation()  # a weak reference
    leaves, tree = tree_util.tree_flatten(result)
    if equation is None or equation.effects or equation.primitive.name != "jit":
        return None
    if len(equation.in_tracers) != len(arrays) or len(leaves) != len(equation.outvars):
        return None
    literals = []
    for array, tracer in zip(arrays, equation.in_tracers, strict=True):
        if type(array) in _NUMBERS:
            if not isinstance(tracer.val, core.Literal):
                return None
            literals.append(tracer.val)
        elif tracer is array:
            literals.append(None)
        else:
            return None
    for leaf, variable in zip(leaves, equation.outvars, strict=True):
        if getattr(leaf, "val", None) is not variable:
            return None
    avals = [variable.aval for variable in equation.outvars]
    numbers = None if all(one is None for one in literals) else literals
    single = len(leaves) == 1 and leaves[0] is result
    return _Call(equation.primitive, equation.params, avals, numbers, None if single else tree)
