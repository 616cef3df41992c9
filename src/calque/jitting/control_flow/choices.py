"""Choices of a traced graph inside a jitted program: `lax.cond`.

The cells that a branch reads become operands of `lax.cond`, and those it writes become results, as
in a whole jitted program, so aliases, writes and buffers are correct. The backward pass runs the
chosen branch again, on the same values and random numbers, under PyTorch's autograd. It is traced
with the forward pass, because the Python state around a branch (closures, attributes, autocast) may
have changed by the time of the backward pass.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from calque.device.memory.cell import Cell, active, cell_of, read
from calque.device.memory.wrapping import wrap
from calque.errors import TraceError, unrepeatable
from calque.jitting.host_tensors import HostTensorMode
from calque.program.lifting import Lifting
from calque.tracing.graph.branching import Branch
from calque.upstream.torch_internals import disable_current_modes, get_current_dispatch_mode_stack


class BranchView(Lifting):
    """The trace of a branch inside the trace of a program.

    Args:
        outer: the enclosing trace.
        given: the values of cells.
        key: the packed key from which random draws are counted.
        looking: whether the traced operations are discarded.

    Attributes:
        found: the cells that were read and have no given value.
    """

    def __init__(
        self, outer: Lifting, given: dict[Cell, Array], key: Array | None, looking: bool = False
    ) -> None:
        super().__init__()
        self.outer = outer
        self.looking = looking
        self.values: dict[Cell, Array] = dict(given)
        self.host_born: dict[int, torch.Tensor] = dict(outer.host_born)
        self.host_memory: dict[int, torch.Tensor] = dict(outer.host_memory)
        self.found: dict[Cell, None] = {}
        self.random_source: Callable[[], Array] = lambda: (
            jnp.zeros(2, jnp.uint64) if key is None else key
        )

    def _lift(self, cell: Cell) -> Array:
        self.found[cell] = None
        known = self.outer.values.get(cell)
        return cell.array if known is None else known

    def constant(self, tensor: torch.Tensor) -> Array:
        """Returns a CPU tensor's value, if it was created in the trace.

        Raises:
            TraceError: it comes from outside.
        """
        if id(tensor) in self.host_born:
            return self._host_constant(tensor)
        raise unrepeatable(
            f"a CPU tensor of shape {tuple(tensor.shape)} from outside",
            "is used in a branch that depends on a tensor on device 'jax'",
            "Move it to device 'jax' first.",
        )


def inside(nested: BranchView, run: Callable[[], Any]) -> Any:
    """Returns the result of `run`, with cells read and written through `nested`.

    Raises:
        TraceError: it computes with CPU tensors from outside the program.
    """
    stack = get_current_dispatch_mode_stack()
    around = next((mode for mode in reversed(stack) if isinstance(mode, HostTensorMode)), None)
    with nested.activated(), disable_current_modes():
        host_tensor_mode = HostTensorMode.within(around, nested)
        with host_tensor_mode:
            result = run()
    if host_tensor_mode.looked_at:
        raise TraceError(
            "a branch that depends on a tensor on device 'jax' computes with a CPU tensor from "
            "outside.\nMove it to device 'jax' first."
        )
    return result


class _Found(NamedTuple):
    """The cells that a branch reads and writes, its random draws, and its results."""

    cells: dict[Cell, None]
    written: dict[Cell, None]
    draws: int
    results: list[Any]


class _Plan:
    """A call of `cond`.

    Attributes:
        cells: the cells that either branch reads.
        values: their arrays at the time of the call.
        written: the cells that either branch writes.
        targets: the tensors to which gradients flow.
    """

    def __init__(
        self, outer: Lifting, predicate: Array, branches: tuple[Branch, Branch], operands: Any
    ) -> None:
        self._outer, self._predicate = outer, predicate
        self._branches, self._operands = branches, list(operands)
        self._closed_over: list[torch.Tensor] = []
        self._gradient: ClosedJaxpr | None = None
        self.targets = self._targets()
        looks = [self._look(branch) for branch in branches]
        self.results = _agreeing([look.results for look in looks])
        self.written = looks[0].written | looks[1].written
        self.cells = list(looks[0].cells | looks[1].cells | self.written)
        self._closed_over = self._used(t for b in branches for t in getattr(b, "closed_over", ()))
        self.targets += self._closed_over
        self.values = [outer.read(cell) for cell in self.cells]
        draws = max(look.draws for look in looks)
        keys = [outer.draw() for _ in range(draws)]
        self._key = keys[0] if keys else None

    def _look(self, branch: Branch) -> _Found:
        found: list[_Found] = []

        def look() -> int:
            nested = BranchView(self._outer, {}, None, looking=True)
            results = inside(nested, lambda: all_read(self._try(branch)))
            specs = [(tuple(r.shape), r.dtype) if _is_ours(r) else r for r in results]
            found.append(_Found(nested.found, dict(nested.written), nested.draws, specs))
            return 0

        jax.eval_shape(look)
        return found[0]

    def _try(self, branch: Branch) -> Any:
        """Traces a branch provisionally, with the same autograd state as in the backward pass."""
        leaves = {id(t): t.detach().requires_grad_() for t in self.targets}
        plain = {id(o): o.detach() for o in self._operands if _is_ours(o)}
        operands = [(plain | leaves).get(id(o), o) for o in self._operands]
        members = {n: leaves[id(p)] for n, p in branch.named_parameters() if id(p) in leaves}
        try:
            results = functional_call(branch, members, tuple(operands))
        except RuntimeError as error:
            if "in-place" in str(error):
                raise _written_with_gradient() from error
            raise
        if any(t.requires_grad and id(o) not in leaves for o, t in self._pairs(operands)):
            raise _written_with_gradient()
        return results

    def _pairs(self, operands: list[Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(o, t) for o, t in zip(self._operands, operands) if _is_ours(o)]

    def _targets(self) -> list[torch.Tensor]:
        if not torch.is_grad_enabled():
            return []
        members = [p for branch in self._branches for p in branch.parameters()]
        candidates = [t for t in (*self._operands, *members) if isinstance(t, torch.Tensor)]
        return list({id(t): t for t in candidates if t.requires_grad}.values())

    def _used(self, closed_over: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the tensors that a branch reads and to which gradients flow."""
        known, cells = {id(t) for t in self.targets}, set(self.cells)
        wanted = {id(t): t for t in closed_over if t.requires_grad and cell_of(t) in cells}
        grad = torch.is_grad_enabled()
        return [t for key, t in wanted.items() if grad and key not in known]

    def forward(self) -> list[Array]:
        """Returns the arrays of the results, and performs the branches' writes."""

        def run(branch: Branch) -> Callable[[list[Array]], Any]:
            def body(values: list[Array]) -> Any:
                nested = BranchView(self._outer, dict(zip(self.cells, values)), self._key)
                with torch.no_grad():
                    results = inside(nested, lambda: _arrays(branch(*self._operands)))
                return results, [plain(nested.values[cell]) for cell in self.written]

            return body

        bodies = [run(branch) for branch in self._branches]
        results, written = lax.cond(self._predicate, *bodies, self.values)
        for cell, value in zip(self.written, written):
            self._outer.write(cell, value)
        return results

    def prepare(self, results: Sequence[Array]) -> None:
        """Trace the backward pass for these results, in the Python state of the branches."""
        if isinstance(self._outer, BranchView) and self._outer.looking:
            return
        like = [jax.ShapeDtypeStruct(r.shape, r.dtype) for r in results]
        self._gradient = jax.make_jaxpr(self._pull)(self.values, like)

    def backward(self, incoming: list[Array]) -> list[Array]:
        """Returns the gradients of the targets, given those of the results."""
        if self._gradient is None:
            return self._pull(self.values, incoming)
        return jaxpr_as_fun(self._gradient)(*self.values, *incoming)

    def _pull(self, values: list[Array], incoming: list[Array]) -> list[Array]:
        def run(branch: Branch) -> Callable[[list[Array], list[Array]], Any]:
            def body(values: list[Array], incoming: list[Array]) -> Any:
                nested = BranchView(self._outer, dict(zip(self.cells, values)), self._key)
                return inside(nested, lambda: self._gradients(branch, incoming))

            return body

        bodies = [run(branch) for branch in self._branches]
        return lax.cond(self._predicate, *bodies, values, incoming)

    def _gradients(self, branch: Branch, incoming: list[Array]) -> list[Array]:
        with torch.enable_grad():
            kept = {id(t) for t in self._closed_over}
            leaves = {
                id(t): t if id(t) in kept else t.detach().requires_grad_() for t in self.targets
            }
            operands = [leaves.get(id(o), o) for o in self._operands]
            members = {n: leaves[id(p)] for n, p in branch.named_parameters() if id(p) in leaves}
            results = [r for r in functional_call(branch, members, tuple(operands)) if _is_ours(r)]
            pairs = [(r, wrap(g)) for r, g in zip(results, incoming) if r.requires_grad]
            wanted = list(leaves.values())
            if not pairs:
                return [plain(read(torch.zeros_like(leaf))) for leaf in wanted]
            outputs, gradients = zip(*pairs)
            found = torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)
            zeros = (torch.zeros_like(t) if g is None else g for g, t in zip(found, wanted))
            return [plain(read(g)) for g in zeros]


class _Choose(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, *targets: torch.Tensor) -> Any:
        ctx.plan = plan
        arrays = plan.forward()
        plan.prepare(arrays)
        results = [wrap(array) for array in arrays]
        whole = [r for r in results if not r.is_floating_point() and not r.is_complex()]
        ctx.mark_non_differentiable(*whole)
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: torch.Tensor) -> Any:
        gradients = ctx.plan.backward([plain(read(g)) for g in incoming])
        return None, *[wrap(g) for g in gradients]


def choose(condition: torch.Tensor, true: Branch, false: Branch, operands: Sequence[Any]) -> Any:
    """Implements `calque.tracing.graph.branching.cond` for a condition on the device.

    In eager mode, one of the branches runs. A jitted program contains both, and the condition
    selects one when the program runs.

    Raises:
        TraceError: a branch writes to a tensor that takes part in autograd, or the branches return
            different things.
    """
    outer = active.trace
    if not isinstance(outer, Lifting):
        return (true if condition else false)(*operands)
    predicate = read(condition).reshape(()).astype(bool)
    plan = _Plan(outer, predicate, (true, false), operands)
    if plan.targets:
        arrays = iter(_Choose.apply(plan, *plan.targets))
    else:
        arrays = iter([wrap(array) for array in plan.forward()])
    return tuple(next(arrays) if isinstance(r, _Spec) else r for r in plan.results)


class _Spec(NamedTuple):
    """The type of a result tensor on the device."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def _agreeing(results: list[list[Any]]) -> list[Any]:
    specs = [[_Spec(*r) if isinstance(r, tuple) else r for r in side] for side in results]
    if specs[0] != specs[1]:
        raise TraceError(
            f"the branches return different types: {specs[0]} and {specs[1]}.\nReturn tensors of "
            "the same shapes and dtypes from both."
        )
    return specs[0]


def _written_with_gradient() -> TraceError:
    return unrepeatable(
        "a tensor that takes part in autograd",
        "is written to in a branch that depends on a tensor on device 'jax'",
        "Return the new value from the `if` instead of writing it.",
    )


def _is_ours(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "jax"


def _arrays(results: Sequence[Any]) -> list[Array]:
    return [plain(read(r)) for r in results if _is_ours(r)]


def all_read(results: Any) -> Any:
    """Returns the results after reading their cells, because a branch may return a tensor that it
    has not read.
    """
    for result in (results,) if isinstance(results, torch.Tensor) else results:
        if _is_ours(result):
            read(result)
    return results


def plain(array: Array) -> Array:
    """Returns an array that is not weakly typed, which may differ between the branches."""
    return lax.convert_element_type(jnp.asarray(array), array.dtype)
