"""A computation as one jitted JAX function."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from calque.device.runtime.sizes import translated
from calque.errors import ClientError
from calque.federated.building_blocks import BuildingBlock, Lambda
from calque.federated.compiler.agreement import require_same
from calque.federated.compiler.arguments import count_clients, hold, shapes
from calque.federated.compiler.evaluating import evaluate
from calque.federated.compiler.explicit_meshes import (
    automatic,
    in_context,
    outside_explicit_mesh,
    without_explicit_axes,
)
from calque.federated.compiler.layout import (
    ClientLayout,
    of_clients,
    of_this_process,
    replicated,
    several_processes,
    spread,
)
from calque.federated.compiler.overflow import OF_SEQUENCE, Overflow, noticed
from calque.federated.compiler.passes import NOBODY, Check, has_nan, run_pass
from calque.federated.compiler.planning import StagedPlan, lives_on_clients, plan
from calque.federated.errors import type_error
from calque.federated.local_functions import precision, wide
from calque.federated.representation import to_python
from calque.federated.transformations import transform
from calque.federated.types import (
    FederatedType,
    FunctionType,
    StructType,
    Type,
    walk,
)

_MOST_AT_ONCE = 16
"""The default number of clients in a chunk, on devices other than CPUs."""


@dataclass(frozen=True)
class CompileOptions:
    """How a computation is compiled.

    Attributes:
        chunk: the number of clients that are computed at once; None for an automatic choice.
        mesh: the devices that share the clients.
        axis: the axis of the mesh over which the clients are distributed.
        clients: the number of clients, if no argument determines it.
        check: whether to check clients' results for NaN, which waits for the result.
        data: the values of data, by URI.
    """

    chunk: int | None = None
    mesh: Mesh | None = None
    axis: str | None = None
    clients: int | None = None
    check: bool = True
    data: Mapping[str, Any] | None = None


class ComputationProgram:
    """A computation, compiled for each shape of its arguments.

    Args:
        program: the computation.
        options: the options of compilation.

    Raises:
        FederatedTypeError: it takes or returns functions.
    """

    def __init__(self, program: Lambda, options: CompileOptions) -> None:
        for kind in (program.parameter_type, program.result.type):
            if kind is not None and any(isinstance(t, FunctionType) for t in walk(kind)):
                raise type_error(
                    f"a computation of type {program.type} cannot run, because it takes or "
                    "returns functions",
                    "Call it inside another computation.",
                )
        normal = transform(program)
        assert isinstance(normal, Lambda)
        self.normal = normal
        self.plan: StagedPlan = plan(normal)
        self.type: FunctionType = program.type
        if options.mesh is not None:
            options = replace(options, mesh=automatic(options.mesh))
        self.options = options
        self._wide = _needs_wide(normal)
        self._checks: list[Check] = []
        self._several = several_processes(options.mesh)
        self._agreed: set[int] = set()
        self._jitted = jax.jit(self._run, static_argnums=(2, 3))

    def __call__(self, argument: Any, numbers: Any = None) -> Any:
        """Returns the result for an argument, in the containers of the result type.

        Args:
            argument: the packed argument.
            numbers: the clients' numbers in errors; by default their positions.

        Raises:
            ClientError: a client's value is NaN, or its data have a different type.
            torch.OutOfMemoryError: there is too little memory.
        """
        with translated(), self._precision(), outside_explicit_mesh():
            held, data, clients = self._held(argument)
            result, _, suspicious = self._run_jitted(held, data, clients, False)
            if self.options.check and not isinstance(suspicious, jax.core.Tracer) and suspicious:
                # A second program, which checks each client, finds the source.
                self._raise_for(self._run_jitted(held, data, clients, True)[1], clients, numbers)
        return to_python(in_context(result), _plain(self.type.result))

    def lower(self, argument: Any) -> Any:
        """Returns JAX's lowered program; `lower(...).as_text()` is StableHLO."""
        with self._precision():
            return self._jitted.lower(*self._held(argument), False)

    def lower_types(self) -> Any:
        """Returns the program for the types of the parameters."""
        clients = -1 if self.options.clients is None else self.options.clients
        kinds = {one.uri: one.type for one in self.plan.data}
        with self._precision():
            held = None if self.type.parameter is None else shapes(self.type.parameter, clients)
            data = {uri: shapes(kind, clients) for uri, kind in kinds.items()}
            return self._jitted.lower(held, data, clients, False)

    def _run_jitted(self, held: object, data: object, clients: int, locate: bool) -> Any:
        found = self._jitted(held, data, clients, locate)
        return of_this_process(found) if self._several and _is_concrete(found) else found

    def _precision(self) -> Any:
        return jax.enable_x64(True) if self._wide else precision()

    def _held(self, argument: object) -> tuple[Any, dict[str, Any], int]:
        """Returns the arguments of the jitted function."""
        held = None
        counts: set[int] = set()
        parameter = self.type.parameter
        if parameter is not None:
            held = hold(argument, parameter)
            counts |= count_clients(held, parameter)
        data = {}
        for one in self.plan.data:
            given = self.options.data or {}
            if one.uri not in given:
                raise type_error(
                    f"the data {one.uri!r} of type {one.type} is missing",
                    f"Call .configured(data={{{one.uri!r}: ...}}) first.",
                )
            data[one.uri] = hold(given[one.uri], one.type, f"the data {one.uri!r}")
            counts |= count_clients(data[one.uri], one.type)
        if self.options.clients is not None:
            counts.add(self.options.clients)
        if len(counts) > 1:
            raise type_error(
                f"the arguments are of {' and '.join(map(str, sorted(counts)))} clients",
                "All arguments placed at CLIENTS must have the same number of clients.",
            )
        clients = next(iter(counts), -1)
        held, data = without_explicit_axes((held, data), self.options.mesh)
        if self.options.mesh is None or clients < 0:
            return held, data, clients
        if self._several and clients not in self._agreed and _is_concrete((held, data)):
            require_same((held, data), clients)
            self._agreed.add(clients)
        layout = self._layout(clients)
        if parameter is not None:
            held = spread(held, parameter, layout)
        data = {d.uri: spread(data[d.uri], d.type, layout) for d in self.plan.data}
        return held, data, clients

    def _run(
        self, argument: Any, data: dict[str, Any], clients: int, locate: bool
    ) -> tuple[Any, Any, Any]:
        """Returns the held result, and for each check the first client that fails it; jitted."""
        server: dict[str, Any] = {}
        differing: dict[str, tuple[Any, Type]] = {}
        roots = [(one.uri, data[one.uri], one.type) for one in self.plan.data]
        if self.plan.parameter is not None:
            name, kind = self.plan.parameter
            roots.append((name, argument, kind))
        for name, held, kind in roots:
            if lives_on_clients(kind):
                differing[name] = (held, kind)
            else:
                server[name] = held
        checks: list[tuple[Check, Any]] = []
        nan: list[Any] = []
        for stage in self.plan.stages:
            whole = {**server, **_cut(differing, clients)}
            with noticed() as overflows:
                for name, call in stage.server:
                    whole[name] = server[name] = evaluate(call, whole)
            checks += [_of_server(one) for one in overflows]
            if stage.clients or stage.aggregations:
                types = {n: c.type for n, c in stage.clients}
                layout = self._layout(clients)
                results, kept, found = run_pass(stage, server, differing, layout, locate)
                server.update(results)
                nan += [flag for flag in map(has_nan, (results, kept)) if flag is not None]
                differing.update({name: (kept[name], types[name]) for name in kept})
                checks += found
        result = evaluate(self.plan.result, {**server, **_cut(differing, clients)})
        if self._several and self.options.mesh is not None:
            result = replicated(result, self.options.mesh)
        if not self.options.check:
            return result, (), ()
        if locate:
            self._checks = [check for check, _ in checks]
        failed = [first for _, first in checks]
        suspicious = [*nan, *(first < max(clients, 1) for first in failed)]
        return result, failed, jnp.stack(suspicious).any() if suspicious else False

    def _layout(self, clients: int) -> ClientLayout:
        if clients < 0:
            raise type_error(
                "the number of clients is not known: no argument is placed at CLIENTS",
                "Set it: computation.configured(clients=10).",
            )
        mesh, axis = self.options.mesh, self.options.axis
        if mesh is not None and axis is None:
            axis = str(mesh.axis_names[0])
        devices = 1 if mesh is None else mesh.shape[axis]
        chunk = self.options.chunk
        if chunk is None:
            chunk = 1 if jax.default_backend() == "cpu" else _MOST_AT_ONCE
        most = max(-(-clients // devices), 1)
        return ClientLayout(clients, max(min(chunk, most), 1), mesh, axis or "")

    def _raise_for(self, failed: list[Any], clients: int, numbers: Any) -> None:
        """Raise the error of the first check that a client, or all clients together, failed."""
        earlier = ""
        for check, client in zip(self._checks, map(int, failed), strict=True):
            if check.of_server:
                earlier = f"; {check.what}" if client == 0 else ""
                continue
            if client >= max(clients, check.of_all):
                continue
            place = f"{check.origin}: " if check.origin else ""
            who = (
                "" if check.of_all else f"client {client if numbers is None else numbers[client]} "
            )
            error = ClientError(
                f"{place}{who}{check.what}{earlier}.\n{check.remedy}; "
                "computation.configured(check=False) turns this check off."
            )
            error.position = None if check.of_all else client
            raise error


def _of_server(one: Overflow) -> tuple[Check, Any]:
    """Returns the check of a sum on the server or without placement, and 0 if it fails."""
    what = f"a sum does not fit {one.dtypes} in sequence_sum"
    check = Check(what, one.origin, of_all=True, remedy=OF_SEQUENCE)
    return check, jnp.where(one.flag, 0, NOBODY).astype(jnp.int32)


def _cut(differing: dict[str, tuple[Any, Type]], clients: int) -> dict[str, Any]:
    """Returns the values of all clients by name, without padding clients."""
    return {name: of_clients(held, kind, clients) for name, (held, kind) in differing.items()}


def _is_concrete(tree: object) -> bool:
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def _needs_wide(program: BuildingBlock) -> bool:
    """Returns True if a program contains a 64-bit tensor."""
    stack = [program]
    while stack:
        block = stack.pop()
        if wide(block.type):
            return True
        stack.extend(block.children())
    return False


def _plain(kind: Type) -> Type:
    """Returns a type without placements."""
    if isinstance(kind, FederatedType):
        return kind.member
    if isinstance(kind, StructType):
        parts = tuple((name, _plain(part)) for name, part in kind.elements)
        return StructType(parts, kind.container)
    return kind
