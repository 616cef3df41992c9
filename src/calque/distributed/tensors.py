"""`distribute_tensor`, `distribute_module`, and the attributes of DTensor on plain tensors."""

from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any

import jax
import torch
from torch import nn
from torch.distributed.tensor.placement_types import Placement

from calque.device.runtime.pending_placements import pending, set_pending
from calque.device.runtime.replicated_values import naming
from calque.distributed.layouts import is_tensor, placements_of, spec_of
from calque.distributed.meshes import JaxDeviceMesh, in_use, torch_mesh
from calque.sharding import P, constrain, placement, shard
from calque.sharding.attributes import OfPlaced
from calque.sharding.mesh import mesh_or_latest, sharding_of
from calque.upstream.torch_distributed import real_object


def distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: JaxDeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> torch.Tensor:
    """Like PyTorch's, but the result is a plain tensor of the device "jax" with the global shape.

    Args:
        tensor: the whole tensor, the same in every process; one on "meta" gets the placement when
            it gets memory.
        device_mesh: of type "jax".
        placements: `Shard(dim)` or `Replicate()` for each dimension of the mesh.
        src_data_rank: has no effect, because every process has the whole tensor.

    Returns:
        A new tensor: a leaf that requires a gradient if the given one does.

    Raises:
        ValueError: the placements do not fit the tensor or the mesh, or the mesh does not divide a
            dimension evenly.
    """
    mesh = in_use(device_mesh)
    shape = tuple(tensor.shape)
    sharding = sharding_of(spec_of(placements, mesh, tensor.ndim), shape, mesh._jax_mesh)
    made = tensor.detach()
    if tensor.is_meta or is_tensor(tensor):
        made = made.clone()
    if not tensor.is_meta:
        made = shard(made, sharding)
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made)
    if tensor.is_meta:
        set_pending(made, sharding)
    return made.requires_grad_(tensor.requires_grad)


def distribute_module(
    module: nn.Module,
    device_mesh: JaxDeviceMesh | None = None,
    partition_fn: Callable[[str, nn.Module, Any], None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> nn.Module:
    """Like PyTorch's: parameters that `partition_fn` leaves unchanged become replicated."""
    mesh = in_use(device_mesh)
    for name, part in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, part, mesh)
    for name, parameter in list(module.named_parameters()):
        if placement_spec(parameter) is None:
            place(module, name, P(), mesh)
    if input_fn is not None:
        module.register_forward_pre_hook(partial(_input_hook, input_fn, mesh))
    if output_fn is not None:
        module.register_forward_hook(partial(_output_hook, output_fn, mesh))
    return module


def _input_hook(function: Any, mesh: JaxDeviceMesh, module: nn.Module, inputs: Any) -> Any:
    return function(module, inputs, mesh)


def _output_hook(function: Any, mesh: Any, module: nn.Module, inputs: object, outputs: Any) -> Any:
    return function(module, outputs, mesh)


def place(module: nn.Module, name: str, spec: P, mesh: JaxDeviceMesh) -> None:
    """Give a parameter of a module a placement; a CPU parameter is moved to the device.

    It stays the same object, so that shared weights and optimizers keep it. A parameter on "meta"
    gets the placement when it gets memory (`to_empty`, `materialize`).
    """
    owner, _, last = name.rpartition(".")
    parent = module.get_submodule(owner)
    parameter = parent.get_parameter(last)
    with naming(name):
        try:
            sharding = sharding_of(spec, tuple(parameter.shape), mesh._jax_mesh)
        except ValueError as error:
            raise ValueError(f"{name} of {_kind_of(module)}: {error}") from None
        if parameter.is_meta:
            set_pending(parameter, sharding)
            return
        if parameter.device.type == "jax":
            shard(parameter, sharding)
            return
        made = shard(parameter.detach(), sharding)
    moved = nn.Parameter(made, requires_grad=parameter.requires_grad)
    torch.utils.swap_tensors(parameter, moved)


def _kind_of(module: nn.Module) -> str:
    said = f"{type(module).__name__}({module.extra_repr()})"
    return said if len(said) < 80 else type(module).__name__


def placement_spec(tensor: torch.Tensor) -> P | None:
    """Returns the spec of a tensor, or the one recorded for it; None if it has none."""
    found = pending(tensor) or placement(tensor)
    return None if found is None else found.spec


def full_tensor(tensor: torch.Tensor, *, grad_placements: object = None) -> torch.Tensor:
    """Like DTensor's: returns the tensor, whole on each device of its mesh; differentiable, also in
    a traced program.

    Args:
        tensor: a tensor with a placement, or a value in a program.
        grad_placements: has no effect: a gradient has the placement of its parameter.
    """
    found = _placement(tensor)
    return constrain(tensor, P(), mesh=None if found is None else found.mesh)


def redistribute(
    tensor: torch.Tensor,
    device_mesh: JaxDeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    async_op: bool = False,
    forward_dtype: torch.dtype | None = None,
    backward_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Like DTensor's: returns the tensor with new placements; differentiable, also when traced.

    Args:
        tensor: a tensor with a placement, or a value in a program.
        device_mesh: by default the tensor's own; in a traced program, the one created last.
        placements: `Shard(dim)` or `Replicate()` for each dimension of the mesh.
        async_op: has no effect: JAX does not wait.
        forward_dtype, backward_dtype: not supported.

    Raises:
        ValueError: the placements do not fit the tensor or the mesh.
        NotImplementedError: a dtype is given.
    """
    if forward_dtype is not None or backward_dtype is not None:
        raise NotImplementedError(
            "redistribute(forward_dtype=, backward_dtype=) is not supported: convert the tensor "
            "first, with .to(dtype)"
        )
    on = _mesh_of(tensor) if device_mesh is None else real_object(device_mesh)
    return constrain(tensor, spec_of(placements, on, tensor.ndim), mesh=on._jax_mesh)


def to_local(tensor: torch.Tensor, **_: Any) -> torch.Tensor:
    """Like DTensor's, for a tensor that is whole on each device: returns the tensor.

    Raises:
        RuntimeError: it is not whole on each device, or in a traced program that is not known.
    """
    found = _placement(tensor)
    if found is not None and not found.is_split:
        return tensor
    held = "XLA chooses the placement" if found is None else f"a device holds {found.local_shape}"
    raise RuntimeError(
        f"to_local() is called on a tensor of shape {tuple(tensor.shape)}, of which {held}: "
        "tensors are global here and a process has several devices, so there is no single local "
        "tensor. Compute with the tensor itself; calque.sharding.local(tensor) returns the "
        "local parts for inspection"
    )


def _placement(tensor: torch.Tensor) -> Any:
    """Returns the placement of a tensor; None for a value in a traced program."""
    return None if _is_in_program(tensor) else placement(tensor)


def _is_in_program(tensor: torch.Tensor) -> bool:
    """Returns True for a value in a traced program, also in Dynamo."""
    cell = getattr(tensor.untyped_storage(), "cell", None)
    return cell is None or isinstance(cell.array, jax.core.Tracer)


def _mesh_of(tensor: torch.Tensor) -> Any:
    """Returns the PyTorch mesh of a tensor; for a value in a traced program, the last one
    created.
    """
    if _is_in_program(tensor):
        return torch_mesh(mesh_or_latest(None))
    found = placement(tensor)
    return None if found is None or found.mesh is None else torch_mesh(found.mesh)


def _placements(tensor: torch.Tensor) -> tuple[Placement, ...] | None:
    mesh, found = _mesh_of(tensor), _placement(tensor)
    return None if mesh is None or found is None else placements_of(found.spec, mesh)


def _device_mesh(tensor: torch.Tensor) -> Any:
    return None if _is_in_program(tensor) else _mesh_of(tensor)


def _method(function: Callable[..., torch.Tensor]) -> OfPlaced:
    """Returns a method that only tensors on a PyTorch mesh have, and that Dynamo supports."""

    def found(tensor: torch.Tensor) -> Any:
        return None if _mesh_of(tensor) is None else MethodType(function, tensor)

    return OfPlaced(function.__name__, found)


ATTRIBUTES = {
    "placements": OfPlaced("placements", _placements),
    "device_mesh": OfPlaced("device_mesh", _device_mesh),
    "redistribute": _method(redistribute),
    "to_local": _method(to_local),
    "full_tensor": _method(full_tensor),
}
