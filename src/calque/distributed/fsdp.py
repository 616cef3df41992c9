"""`fully_shard` on a mesh of JAX devices.

Parameters are split over the mesh, and so are their gradients and the optimizer's state; XLA
gathers a parameter where it is used. The batch at the module's inputs and outputs is pinned to the
same axes; otherwise XLA may gather activations instead.
"""

import copyreg
import functools
from typing import Any

import jax
import torch
import torch.distributed as dist
from jax.sharding import Mesh, PartitionSpec
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy

from calque.distributed.layouts import with_axes
from calque.distributed.meshes import JaxDeviceMesh, in_use, is_ours
from calque.distributed.sharding_constraints import Pin, inputs_pinned, outputs_pinned, split
from calque.distributed.tensors import place, placement_spec
from calque.errors.warning import warn
from calque.sharding.mesh import axes_of
from calque.upstream import torch_internals
from calque.upstream.torch_distributed import UnshardHandle
from calque.upstream.torch_internals import tree_map

_warned: list[bool] = []


class _Handle(UnshardHandle):
    def wait(self) -> None:
        """Does nothing."""


class JaxFSDPModule(FSDPModule):
    """The class of a module after `fully_shard`; XLA decides when parameters are gathered."""

    _made_of: tuple[type, tuple[Mesh, tuple[str, ...]] | None]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Like the module's own, but recreates the class, which pickle cannot find by name."""
        made, args, *rest = super().__reduce_ex__(protocol)
        if made is copyreg.__newobj__:  # type: ignore[attr-defined]
            made, args = _remade, type(self)._made_of
        return made, args, *rest

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        return torch_internals.Module._apply(self, *args, **kwargs)  # type: ignore[arg-type]

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Does nothing: a parameter is gathered where it is used."""
        return _Handle() if async_op else None


def _nothing(name: str) -> Any:
    def method(self: object, *args: Any, **kwargs: Any) -> None:
        """Does nothing: XLA decides when to gather and when to sum."""

    method.__name__ = name
    return method


def _refused(name: str) -> Any:
    def method(self: object, *args: Any, **kwargs: Any) -> None:
        """Not supported.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"{name}() changes how gradients are summed over processes, but here the loss is "
            "that of the global batch and its gradient needs no such sum: scale the loss instead"
        )

    method.__name__ = name
    return method


_IDLE = (
    "reshard",
    "reset_iter_state",
    "set_is_last_backward",
    "set_requires_gradient_sync",
    "set_requires_all_reduce",
    "set_reshard_after_forward",
    "set_reshard_after_backward",
    "set_modules_to_forward_prefetch",
    "set_modules_to_backward_prefetch",
    "set_post_optim_event",
    "set_unshard_in_backward",
    "set_allocate_memory_from_process_group_for_comm",
    "set_reduce_scatter_max_input_buffers",
)
for _name in [name for name in vars(FSDPModule) if name.startswith("set_") or name in _IDLE]:
    setattr(JaxFSDPModule, _name, (_nothing if _name in _IDLE else _refused)(_name))


def goes_without(args: tuple[Any, ...], given: object) -> bool:
    """Returns True if a call of `fully_shard` without a mesh concerns tensors of the device.

    Tensors on "meta" count unless the process group has another backend; CPU tensors count if its
    backend is "calque".
    """
    if given is not None or not args:
        return False
    modules = args[0] if isinstance(args[0], list | tuple) else [args[0]]
    types = {p.device.type for module in modules for p in module.parameters()}
    backend = dist.get_backend() if dist.is_initialized() else None
    if "jax" in types or backend == "calque":
        return True
    return "meta" in types and backend is None


def fully_shard(
    module: Any,
    *,
    mesh: JaxDeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Any = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    offload_policy: OffloadPolicy = OffloadPolicy(),
    ignored_params: set[nn.Parameter] | None = None,
    **others: Any,
) -> Any:
    """Like PyTorch's, on a mesh of type "jax" with one dimension, or two, of which the second
    splits.

    Args:
        module: a module, or a list of them; its parameters are split, also if they are already
            split along other axes (by a parallel style). One that the mesh does not divide stays
            whole.
        mesh: the mesh; by default all devices in one dimension.
        reshard_after_forward: has no effect: XLA decides when to gather and when to free.
        shard_placement_fn: returns a parameter's `Shard(dim)`, or None.
        mp_policy: only the default; use `torch.autocast` for mixed precision.
        offload_policy: only the default.
        ignored_params: parameters to leave unchanged.
        others: PyTorch's further options, which are not supported.

    Raises:
        NotImplementedError: a policy is not the default.
        ValueError: the mesh has more than two dimensions, or `fully_shard` was already applied.
    """
    on = _default() if mesh is None and not is_ours(mesh) else in_use(mesh)
    if mp_policy != MixedPrecisionPolicy():
        raise NotImplementedError(
            "mp_policy on a mesh of type 'jax': run the step under torch.autocast('jax', ...), "
            "which casts values where they are used and keeps the weights"
        )
    if type(offload_policy) is not OffloadPolicy or any(v is not None for v in others.values()):
        raise NotImplementedError(
            f"offload_policy and {sorted(others)} are not supported on a mesh of type 'jax'"
        )
    if on.ndim > 2:
        raise ValueError(f"fully_shard expects a mesh of one or two dimensions, not {on.ndim}")
    if reshard_after_forward and not _warned:
        _warned.append(True)
        warn(
            "fully_shard on a mesh of type 'jax': XLA decides about reshard_after_forward, and "
            "may keep gathered weights from the forward pass for the backward pass"
        )
    modules = list(module) if isinstance(module, list | tuple) else [module]
    if any(isinstance(one, JaxFSDPModule) for one in modules):
        raise ValueError("fully_shard was already applied to this module")
    for one in modules:
        _shard(one, on, shard_placement_fn, ignored_params or set())
    return module


def _default() -> JaxDeviceMesh:
    made = torch.distributed.device_mesh.init_device_mesh("jax", (jax.device_count(),))
    return made  # type: ignore[return-value]


def _warn_of_whole(module: nn.Module, ignored: set[Any], split: tuple[str, ...]) -> None:
    """Warn if parameters without a divisible dimension make up more than 1% of the module."""
    whole, total = {}, 0
    for name, parameter in module.named_parameters():
        if any(parameter is one for one in ignored):
            continue
        total += parameter.nbytes
        axes = {axis for entry in placement_spec(parameter) or () for axis in axes_of(entry)}
        if not axes & set(split):
            whole[name] = parameter
    if sum(parameter.nbytes for parameter in whole.values()) > total / 100:
        named = ", ".join(f"{name} {tuple(p.shape)}" for name, p in list(whole.items())[:4])
        more = f" and {len(whole) - 4} more" if len(whole) > 4 else ""
        warn(
            "fully_shard replicates parameters, because the mesh divides none of their "
            f"dimensions evenly (PyTorch would pad them): {named}{more}. Make a dimension a "
            f"multiple of the number of devices along {'_'.join(split)}, for example by padding "
            "the vocabulary"
        )


def _shard(module: nn.Module, on: JaxDeviceMesh, chosen: Any, ignored: set[Any]) -> None:
    axes = on._axes[-1]
    for name, parameter in list(module.named_parameters()):
        if any(parameter is one for one in ignored):
            continue
        spec = with_axes(placement_spec(parameter), parameter.shape, on, axes)
        wanted = chosen(parameter) if chosen is not None else None
        if wanted is not None:
            entries: list[Any] = [None] * parameter.ndim
            entries[wanted.dim] = axes[0] if len(axes) == 1 else axes
            spec = PartitionSpec(*entries)
        place(module, name, spec, on)
    _warn_of_whole(module, ignored, axes)
    batch = tuple(axis for one in on._axes for axis in one)

    own_forward = "forward" in vars(module)
    if own_forward:
        _hook(module, split(on._jax_mesh, batch, 0))
    module.__class__ = _class_of(type(module), None if own_forward else (on._jax_mesh, batch))


@functools.cache
def _class_of(kind: type, pin: tuple[Mesh, tuple[str, ...]] | None) -> type:
    """Returns the class of a module after `fully_shard`.

    Args:
        kind: its original class.
        pin: the mesh and axes over which its `forward` splits batches, if it does.
    """
    own: dict[str, Any] = {"_made_of": (kind, pin)}
    if pin is not None:
        own["forward"] = _pinned(kind.forward, split(*pin, 0))
    return type(f"FSDP{kind.__name__}", (JaxFSDPModule, kind), own)


def _remade(kind: type, pin: tuple[Mesh, tuple[str, ...]] | None) -> Any:
    return object.__new__(_class_of(kind, pin))


def _hook(module: nn.Module, pin: Pin) -> None:
    module.register_forward_pre_hook(functools.partial(inputs_pinned, pin), with_kwargs=True)
    module.register_forward_hook(functools.partial(outputs_pinned, pin))


def _pinned(theirs: Any, pin: Pin) -> Any:
    """Returns a `forward` that fixes the placements of inputs and outputs.

    Not hooks, because Dynamo puts those of the outermost module into separate graphs.
    """

    @functools.wraps(theirs)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(pin, (args, kwargs))
        return tree_map(pin, theirs(self, *args, **kwargs))

    return forward
