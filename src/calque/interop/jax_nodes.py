"""JAX programs as nodes of the autograd graph.

`_Node` saves intermediate values of the forward for the backward. It handles tensors with values,
in eager calls and in traces of calque. Under the transforms of `torch.func`, in forward mode, and
for tensors without values (`torch.compile`, `torch.export`), `_Transformed` is used: a PyTorch
operator whose derivatives and vectorized forms are programs of the same kind. Its backward
recomputes the forward.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import torch

from calque.device.backend.interop import to_jax
from calque.device.kernels.composites import is_plain
from calque.device.kernels.pullbacks import Pullback
from calque.device.memory.wrapping import wrap
from calque.device.runtime.dtypes import to_numpy, to_torch
from calque.interop.jax_programs import JaxProgram, WithResiduals, is_inexact, named, program_of
from calque.program.gradients.batched import batched, is_batched

Tensor = torch.Tensor


def call(jax_program: JaxProgram, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Runs a program as a node of the autograd graph."""
    if not is_plain(tensors):
        return list(_Transformed.apply(named(jax_program), *tensors))
    if torch.is_grad_enabled() and any(map(_is_differentiated, tensors)):
        return list(_Node.apply(jax_program, *tensors))
    return list(map(wrap, jax_program(_arrays(tensors))))


def _is_differentiated(tensor: Tensor) -> bool:
    return tensor.requires_grad and _has_tangents(tensor)


def _has_tangents(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _arrays(tensors: Sequence[Tensor]) -> list[jax.Array]:
    return [to_jax(tensor.detach()) for tensor in tensors]


def _wanted(ctx: Any, tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Returns the positions of the tensors whose gradients are needed."""
    needed = zip(tensors, ctx.needs_input_grad[1:], strict=True)
    return tuple(i for i, (tensor, is_needed) in enumerate(needed) if is_needed)


def _at(places: Sequence[int], values: Sequence[Any], count: int) -> list[Any]:
    """Returns values at their positions, and None elsewhere."""
    found: list[Any] = [None] * count
    for place, value in zip(places, values, strict=True):
        found[place] = value
    return found


class _Node(torch.autograd.Function):
    """A call that saves values for its backward pass."""

    @staticmethod
    def forward(ctx: Any, jax_program: JaxProgram, *tensors: Tensor) -> Any:
        """Run the program."""
        wanted = _wanted(ctx, tensors)
        results, pullback = jax_program.residual(wanted)(_arrays(tensors))
        made = list(map(wrap, results))
        ctx.program, ctx.wanted, ctx.count = jax_program, wanted, len(tensors)
        ctx.carrying = [i for i, one in enumerate(results) if is_inexact(one)]
        ctx.mark_non_differentiable(*[t for t in made if not _has_tangents(t)])
        residuals, ctx.aux = pullback.tree_flatten()
        ctx.save_for_backward(*tensors, *map(wrap, residuals))
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> Any:
        """Returns the gradients, as results of another node if they are differentiated."""
        saved = ctx.saved_tensors
        tensors, values = saved[: ctx.count], saved[ctx.count :]
        carried = [incoming[i] for i in ctx.carrying]
        if torch.is_grad_enabled():
            found = call(ctx.program.gradient(ctx.wanted, ctx.count), [*tensors, *carried])
        else:
            residual = ctx.program.residual(ctx.wanted)
            pull = partial(_pulled, residual, ctx.aux, tensors, values)
            found = batched(pull, carried) if any(map(is_batched, carried)) else pull(carried)
        return None, *_at(ctx.wanted, found, ctx.count)


def _pulled(
    residual: WithResiduals,
    aux: object,
    tensors: Sequence[Tensor],
    values: Sequence[Tensor],
    incoming: Any,
) -> list[Any]:
    pullback = Pullback.tree_unflatten(aux, _arrays(values))
    return list(map(wrap, residual.pull_back(pullback, _arrays(tensors), _arrays(incoming))))


class _Transformed(torch.autograd.Function):
    """A call that PyTorch may transform."""

    @staticmethod
    def forward(number: int, *tensors: Tensor) -> Any:
        """Run the program, as an operator that represents it in graphs."""
        return tuple(torch.ops.calque.from_jax(list(tensors), number))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save the arguments."""
        number, *tensors = inputs
        ctx.program = program_of(number)
        ctx.carrying = [i for i, one in enumerate(output) if _has_tangents(one)]
        ctx.results = len(output)
        ctx.mark_non_differentiable(*[one for one in output if not _has_tangents(one)])
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> Any:
        """Returns the gradients."""
        tensors = ctx.saved_tensors
        places = tuple(i for i in _wanted(ctx, tensors) if _has_tangents(tensors[i]))
        gradient = ctx.program.gradient(places, len(tensors))
        found = call(gradient, [*tensors, *(incoming[i] for i in ctx.carrying)])
        return None, *_at(places, found, len(tensors))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Any:
        """Returns the tangents of the results."""
        places = tuple(i for i, tangent in enumerate(tangents) if tangent is not None)
        given = [tangent for tangent in tangents if tangent is not None]
        found = call(ctx.program.tangent(places), [*ctx.saved_tensors, *given])
        return tuple(_at(ctx.carrying, found, ctx.results))

    @staticmethod
    def vmap(info: Any, in_dims: Any, number: int, *tensors: Tensor) -> Any:
        """Returns the results for each index of an axis, and the position of the axis."""
        found = call(program_of(number).mapped(tuple(in_dims[1:])), tensors)
        return tuple(found), (0,) * len(found)


# The operator -----------------------------------------------------------------------------------

_library = torch.library.Library("calque", "DEF")
_library.define("from_jax(Tensor[] tensors, int program) -> Tensor[]")


def _run(tensors: Sequence[Tensor], number: int) -> list[Tensor]:
    return list(map(wrap, program_of(number)(_arrays(tensors))))


def _meta_results(tensors: Sequence[Tensor], number: int) -> list[Tensor]:
    shapes = [jax.ShapeDtypeStruct(tuple(map(int, t.shape)), to_numpy(t.dtype)) for t in tensors]
    return [
        torch.empty(one.shape, dtype=to_torch(one.dtype), device="meta")
        for one in program_of(number).shapes(shapes)
    ]


_library.impl("from_jax", _run, "CompositeExplicitAutograd")
_library.impl("from_jax", _meta_results, "Meta")
