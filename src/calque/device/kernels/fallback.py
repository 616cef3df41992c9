"""Runs operators without a rule, by PyTorch's decomposition or its CPU kernel.

The CPU kernel runs on copies, and its writes are copied back. In a trace, it becomes a callback to
the host. Each such operator is recorded, with one warning.
"""

import logging
import threading
from collections import Counter
from functools import lru_cache
from typing import Any

import jax
import numpy as np
import torch

from calque.device.kernels.python_numbers import refuse_stand_ins
from calque.device.kernels.refused_kinds import check_operator, check_plain
from calque.device.memory.cell import active, cell_of, other_device, read, write, x64
from calque.device.memory.host import array_of, host_array, host_tensor, host_view
from calque.device.memory.host_reads import known
from calque.device.memory.packed_shapes import DESCRIPTION, fitted, shapes_of, tensors_of
from calque.device.memory.wrapping import wrap, wrap_strided
from calque.device.runtime import callbacks
from calque.device.runtime.dtypes import to_numpy
from calque.errors import (
    FallbackWarning,
    TraceError,
    UnsupportedOpError,
    at_user_line,
    preparing_errors,
    user_origin,
)
from calque.errors.warning import warn
from calque.ops.table.facts import fact_of_form
from calque.upstream import torch_c
from calque.upstream.torch_internals import (
    OpOverload,
    decomposition_table,
    pytree,
    tree_leaves,
    tree_map,
)

logger: logging.Logger = logging.getLogger("calque.fallback")

SERVED: Counter[str] = Counter()
"""How often each operator ran its CPU kernel, by name."""

DECOMPOSED: Counter[str] = Counter()
"""How often each operator ran PyTorch's decomposition, by name."""

_decomposing = threading.local()
_SHAPES_ASKED = "the shapes of {}"


def fall_back(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that has no rule."""
    refuse_stand_ins((*args, *kwargs.values()))
    decomposition = _decompositions().get(op)
    if decomposition is not None:
        result = _decompose(op, decomposition, args, kwargs)
        if result is not NotImplemented:
            DECOMPOSED[op.name()] += 1
            return result
    check_operator(op)  # before the warning
    if active.trace is not None:
        return call_back(op, args, kwargs)
    _warn_once(op)
    return _on_cpu(op, args, kwargs)


def _check_callable(op: OpOverload, callbacks: bool) -> None:
    """Raise UnsupportedOpError if a program cannot call back to the host for an operator."""
    if not callbacks:
        raise _unsupported(op, "has no rule, and an exported program cannot call its CPU kernel")
    if not torch_c.dispatch_has_computed_kernel_for_dispatch_key(op.name(), "CPU"):
        raise _unsupported(op, _NO_KERNEL)


_NO_KERNEL = (
    "has no rule on the jax device and no CPU kernel.\nWrite a rule for it with calque.op, or keep "
    "this part on a device that has a kernel."
)


def _unsupported(op: OpOverload, why: str) -> UnsupportedOpError:
    """Returns the error for an operator that cannot run, at the user's line."""
    return UnsupportedOpError(at_user_line(f"{op.name()} {why}"))


def _decompose(op: object, decomposition: Any, args: Any, kwargs: Any) -> Any:
    """Returns the decomposition's result,
    or NotImplemented inside a decomposition of the same operator.
    """
    running: set[Any] = _decomposing.__dict__.setdefault("running", set())
    if op in running:
        return NotImplemented
    running.add(op)
    try:
        return decomposition(*args, **kwargs)
    finally:
        running.discard(op)


@lru_cache(maxsize=1)
def _decompositions() -> dict[Any, Any]:
    # The decompositions in torch._refs end in prims, which call the original operator again.
    return {
        op: function
        for op, function in decomposition_table.items()
        if "_refs" not in getattr(function, "__module__", "")
    }


def _warn_once(op: OpOverload) -> None:
    name = op.name()
    SERVED[name] += 1
    if SERVED[name] > 1:
        return
    origin = user_origin()
    place = f" (first at {origin})" if origin else ""
    warn(
        f"{name} has no rule on the jax device: it runs on the CPU, with copies in both "
        f"directions{place}",
        FallbackWarning,
    )


def _is_device(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "jax"


def to_host(value: Any) -> Any:
    """Returns a copy of a device tensor on the CPU, with its strides; other values unchanged."""
    return value.detach().to("cpu") if _is_device(value) else value


def _on_cpu(op: OpOverload, args: object, kwargs: object) -> Any:
    flat, spec = pytree.tree_flatten((args, kwargs))
    _check_devices(op, flat)
    copies: dict[int, torch.Tensor] = {}
    host: list[Any] = []
    for value in flat:
        if _is_device(value):
            host.append(copies.setdefault(id(value), to_host(value)))
        elif isinstance(value, torch.device) and value.type == "jax":
            host.append(torch.device("cpu"))
        else:
            host.append(value)
    host_args, host_kwargs = pytree.tree_unflatten(host, spec)
    try:
        result = op(*host_args, **host_kwargs)
    except NotImplementedError as error:
        said = str(error)
        reason = "" if said.startswith("Could not run") else f"\n{said}"
        raise _unsupported(op, _NO_KERNEL + reason) from None
    check_plain(op, result)
    if active.observer is not None:
        active.observer.see(shapes_of(result), _SHAPES_ASKED.format(op.name()))
    originals = {id(copy): value for value, copy in zip(flat, host, strict=True)}
    targets = set(map(id, written(op, args, kwargs)))
    for value, copy in zip(flat, host, strict=True):
        if _is_device(value) and id(value) in targets:
            _bring_back(value, copy)
    return tree_map(lambda r: _result(r, originals) if isinstance(r, torch.Tensor) else r, result)


def _check_devices(op: OpOverload, values: list[Any]) -> None:
    """Raise RuntimeError if tensors are on different devices, like every device's kernels."""
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    others = [t for t in tensors if t.device.type != "jax" and t.ndim]
    mixed = others and any(t.device.type == "jax" for t in tensors)
    if mixed and not fact_of_form(op.name()).get("host_indices"):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, jax:0 "
            f"and {others[0].device}! ({op.name()})\n{other_device(others[0])}"
        )


def written(op: OpOverload, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Returns the tensors that are written to, according to the schema.

    The version of a tensor does not show this, because below autograd CPU kernels do not increment
    it.
    """
    targets = []
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            targets.append(value)
    return [value for value in tree_leaves(targets) if isinstance(value, torch.Tensor)]


def _bring_back(target: torch.Tensor, copy: torch.Tensor) -> None:
    if target.shape != copy.shape:
        target.resize_(copy.shape)
    write(target, host_array(copy))


def _result(result: torch.Tensor, originals: dict[int, Any]) -> torch.Tensor:
    known = originals.get(id(result))
    if known is not None:
        return known
    array = host_array(result)
    return wrap_strided(array, result.stride())


def call_back(op: OpOverload, args: object, kwargs: object) -> Any:
    """Calls the CPU kernel as a host callback of the traced program, then performs its writes."""
    _check_callable(op, active.trace is None or active.trace.callbacks)
    _warn_once(op)
    flat, spec = pytree.tree_flatten((args, kwargs))
    positions = [i for i, value in enumerate(flat) if isinstance(value, torch.Tensor)]
    changed = set(map(id, written(op, args, kwargs)))
    targets = [i for i in positions if id(flat[i]) in changed]
    _check_apart(op, [flat[i] for i in targets], [flat[i] for i in positions])
    flat = [torch.device("cpu") if isinstance(v, torch.device) else v for v in flat]
    # The program keeps the callback, which must not refer to the trace's tensors.
    others = [None if isinstance(value, torch.Tensor) else value for value in flat]

    def run(*tensors: Any) -> tuple[Any, list[Any]]:
        filled = list(others)
        for position, tensor in zip(positions, tensors, strict=True):
            filled[position] = tensor.clone() if position in targets else tensor
        a, k = pytree.tree_unflatten(filled, spec)
        result = op(*a, **k)
        check_plain(op, result)
        return result, [filled[i] for i in targets]

    def on_host(*arrays: Any) -> Any:
        return run(*[host_tensor(array) for array in arrays])

    metas = [torch.empty_like(flat[i], device="meta") for i in positions]
    try:
        outline = run(*metas)
    except (RuntimeError, NotImplementedError) as error:
        with preparing_errors():
            unknown = TraceError(
                at_user_line(
                    f"{op.name()} has no rule on the jax device, and the shape of its result is "
                    f"not known before it runs: {error}"
                )
            )
        arrays = [array_of(flat[i]) for i in positions]
        found = _outline(op, lambda *values: on_host(*values)[0], arrays, unknown)
        outline = found, [torch.empty_like(flat[i], device="meta") for i in targets]
    outs, out_spec = pytree.tree_flatten(outline)
    own = [i for i, out in enumerate(outs) if isinstance(out, torch.Tensor)]
    shapes = [jax.ShapeDtypeStruct(tuple(outs[i].shape), to_numpy(outs[i].dtype)) for i in own]

    def host(*arrays: Any) -> Any:
        results = tree_leaves(on_host(*arrays))
        pairs = zip((results[i] for i in own), shapes, strict=True)
        return [fitted(host_view(r.contiguous()), s.shape) for r, s in pairs]

    with x64():
        arrays = callbacks.call_back(
            host, shapes, *[array_of(flat[i]) for i in positions], name=op.name()
        )
    for place, array in zip(own, arrays, strict=True):
        outs[place] = wrap(array)
    result, news = pytree.tree_unflatten(outs, out_spec)
    for target, new in zip(targets, news, strict=True):
        write(flat[target], read(new))
    return result


def _check_apart(op: OpOverload, written: list[Any], given: list[Any]) -> None:
    """Raise UnsupportedOpError if an operator writes to an argument that shares memory with another
    one.

    The host has separate copies.
    """
    shared = Counter(map(cell_of, filter(_is_device, given)))
    if any(not _is_device(target) or shared[cell_of(target)] > 1 for target in written):
        raise _unsupported(
            op,
            "has no rule on the jax device and writes to an argument that shares memory with "
            "another, so it cannot be part of a compiled function: clone one of them",
        )


def _outline(op: Any, on_host: Any, arrays: list[Any], unknown: TraceError) -> Any:
    """Returns tensors of the shapes and dtypes of an operator's results, if they depend on
    values; None for an operator without results, which only writes to its arguments.
    """
    if not op._schema.returns:
        return None
    with x64():
        (described,) = callbacks.call_back(
            lambda *values: [shapes_of(on_host(*values))], [DESCRIPTION], *arrays, name=op.name()
        )
    value = known(described, _SHAPES_ASKED.format(op.name()), lambda: unknown)
    tensors = tensors_of(np.asarray(value))
    return tensors[0] if len(op._schema.returns) == 1 else tensors
