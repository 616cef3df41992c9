"""Programs in `jax.shard_map`, where types include the mesh axes over which values vary.

A jaxpr that was traced elsewhere has no such axes, and the types of its inner programs (of `jit`,
loops, branches) would drop them. So it is traced again, with all values varying over all axes over
which an input varies. Inputs that do not vary are converted by `pcast`, whose transpose sums over
the devices.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.dtypes import float0
from jax.extend.core import ClosedJaxpr, Literal

_CALLS = frozenset(("jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint"))


def axes_of(arrays: Sequence[Any]) -> frozenset[str]:
    """Returns the mesh axes over which one of the arrays varies; none outside `jax.shard_map`.

    >>> axes_of([jax.numpy.ones(2)])
    frozenset()
    """
    return frozenset().union(*(_axes(array) for array in arrays))


def varying(array: object, axes: frozenset[str]) -> Any:
    """Returns the array as varying over at least these axes."""
    missing = tuple(sorted(axes - _axes(array)))
    return lax.pcast(array, missing, to="varying") if missing else array


def run_varying(jaxpr: ClosedJaxpr, axes: frozenset[str], arrays: Sequence[Any]) -> list[Array]:
    """Returns a program's results, all varying over these axes."""
    return _Run(axes).closed(jaxpr, arrays)


class _Run:
    def __init__(self, axes: frozenset[str]) -> None:
        self._axes = axes
        self._mesh = jax.sharding.get_abstract_mesh()  # the trace may have been outside

    def closed(self, closed: ClosedJaxpr, arrays: Sequence[Any]) -> list[Any]:
        """Returns the results of a program for these inputs."""
        jaxpr, env = closed.jaxpr, dict[Any, Any]()

        def write(variables: Sequence[Any], values: Sequence[Any]) -> None:
            env.update(zip(variables, self._all(values), strict=True))

        write(jaxpr.constvars, closed.consts)
        write(jaxpr.invars, arrays)
        for eqn in jaxpr.eqns:
            inputs = [v.val if isinstance(v, Literal) else env[v] for v in eqn.invars]
            with eqn.ctx.manager, jax.sharding.use_abstract_mesh(self._mesh):
                write(eqn.outvars, self._equation(eqn, inputs))
        found = [v.val if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]
        return self._all(found)

    def _all(self, values: Sequence[Any]) -> list[Any]:
        return [varying(value, self._axes) for value in values]

    def _function(self, closed: ClosedJaxpr) -> Callable[..., list[Any]]:
        return lambda *arrays: self.closed(closed, arrays)

    def _equation(self, eqn: Any, inputs: list[Any]) -> Sequence[Any]:
        name, params = eqn.primitive.name, eqn.params
        if name in _CALLS:
            inner = params.get("jaxpr", params.get("call_jaxpr"))
            return self.closed(_closed(inner), inputs)
        if name in _LOOPS:
            return _LOOPS[name](self, params, self._all(inputs))
        inputs = self._all(inputs)
        if name == "custom_jvp_call":
            return self._custom_jvp(params)(*inputs)
        found = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(params))
        return found if eqn.primitive.multiple_results else [found]

    def _custom_jvp(self, params: dict[str, Any]) -> Callable[..., list[Any]]:
        """Runs a function with a custom derivative, preserving both."""
        function = jax.custom_jvp(self._function(params["call_jaxpr"]))

        @function.defjvp
        def _(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            primals, tangents = primals[params["num_consts"] :], tangents[params["num_consts"] :]
            fixed = [tangent.dtype == float0 for tangent in tangents]  # integers
            jaxpr, consts, are_zeros = params["jvp_jaxpr_fun"].call_wrapped(*fixed)
            moving = [t for t, is_fixed in zip(tangents, fixed, strict=True) if not is_fixed]
            given = [*consts, *self._all(primals), *self._all(moving)]
            found = iter(self.closed(ClosedJaxpr(jaxpr, ()), given))
            results = [next(found) for _ in are_zeros]
            zeros = zip(results, are_zeros, strict=True)
            return results, [jnp.zeros_like(r) if zero else next(found) for r, zero in zeros]

        return function

    def _scan(self, params: dict[str, Any], inputs: list[Any]) -> Sequence[Any]:
        n_consts, n_carry = params["num_consts"], params["num_carry"]
        body = self._function(params["jaxpr"])
        consts, rest = inputs[:n_consts], inputs[n_consts:]

        def step(carry: Any, given: Any) -> Any:
            found = body(*consts, *carry, *given)
            return found[:n_carry], found[n_carry:]

        carry, results = lax.scan(
            step,
            rest[:n_carry],
            rest[n_carry:],
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [*carry, *results]

    def _while(self, params: dict[str, Any], inputs: list[Any]) -> Sequence[Any]:
        n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
        of_cond, of_body = inputs[:n_cond], inputs[n_cond : n_cond + n_body]
        cond, body = self._function(params["cond_jaxpr"]), self._function(params["body_jaxpr"])
        return lax.while_loop(
            lambda carry: cond(*of_cond, *carry)[0],
            lambda carry: body(*of_body, *carry),
            inputs[n_cond + n_body :],
        )

    def _cond(self, params: dict[str, Any], inputs: list[Any]) -> Sequence[Any]:
        branches = [self._function(branch) for branch in params["branches"]]
        return lax.switch(inputs[0], branches, *inputs[1:])


_LOOPS: dict[str, Any] = {"scan": _Run._scan, "while": _Run._while, "cond": _Run._cond}


def _closed(inner: Any) -> ClosedJaxpr:
    return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())


def _axes(array: object) -> frozenset[str]:
    kind = getattr(jax.typeof(array), "manual_axis_type", None)
    return kind.varying if kind is not None else frozenset()
