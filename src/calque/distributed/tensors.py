"""`distribute_tensor`, `distribute_module`, and the attributes of DTensor on plain tensors."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.placement_types import Placement

from calque.device.runtime.agreement import naming
from calque.device.runtime.promised import promise, promised
from calque.distributed.layouts import is_tensor, placements_of, spec_of
from calque.distributed.meshes import JaxDeviceMesh, in_use, torch_mesh
from calque.sharding import P, constrain, gather, placement, shard
from calque.sharding.attributes import OfPlaced
from calque.sharding.mesh import sharding_of


def distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: JaxDeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> torch.Tensor:
    """Like PyTorch's, but the result is a plain tensor of the device "jax" with the global shape.

    Args:
        tensor: the whole tensor, the same in every process; one on "meta" gets the placement with
            its memory.
        device_mesh: of type "jax".
        placements: `Shard(dim)` or `Replicate()` for each dimension of the mesh.
        src_data_rank: without meaning: every process has the whole tensor.

    Returns:
        A new tensor, a leaf that requires a gradient if the first does.

    Raises:
        ValueError: the placements do not fit the tensor or the mesh; dimensions that the mesh does
            not divide evenly are refused, too.
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
        promise(made, sharding)
    return made.requires_grad_(tensor.requires_grad)


def distribute_module(
    module: nn.Module,
    device_mesh: JaxDeviceMesh | None = None,
    partition_fn: Callable[[str, nn.Module, Any], None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> nn.Module:
    """Like PyTorch's: parameters that `partition_fn` leaves as they are become replicated."""
    mesh = in_use(device_mesh)
    for name, part in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, part, mesh)
    for name, parameter in list(module.named_parameters()):
        if placement_spec(parameter) is None:
            place(module, name, P(), mesh)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda m, inputs: input_fn(m, inputs, mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda m, _, outputs: output_fn(m, outputs, mesh))
    return module


def place(module: nn.Module, name: str, spec: P, mesh: JaxDeviceMesh) -> None:
    """Give a parameter of a module a placement; one of the CPU moves to the device.

    It stays the same object, so that weights that are shared and optimizers keep it. One on "meta"
    gets the placement with its memory (`to_empty`, `materialize`).
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
            promise(parameter, sharding)
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
    """The spec of a tensor, or that which one elsewhere will have; None if it has none."""
    found = promised(tensor) or placement(tensor)
    return None if found is None else found.spec


def _of_placed(name: str, get: Callable[[torch.Tensor, JaxDeviceMesh], Any]) -> OfPlaced:
    """An attribute that only tensors placed on a mesh of PyTorch's name have."""

    def found(tensor: torch.Tensor) -> Any:
        mesh = _mesh_of(tensor)
        return None if mesh is None else get(tensor, mesh)

    return OfPlaced(name, found)


def _mesh_of(tensor: torch.Tensor) -> Any:
    found = placement(tensor)
    return None if found is None or found.mesh is None else torch_mesh(found.mesh)


def _placements(tensor: torch.Tensor, mesh: JaxDeviceMesh) -> tuple[Placement, ...]:
    return placements_of(placement_spec(tensor) or P(), mesh)


def _redistribute(tensor: torch.Tensor, mesh: JaxDeviceMesh) -> Callable[..., torch.Tensor]:
    def redistribute(
        device_mesh: JaxDeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        **_: Any,
    ) -> torch.Tensor:
        on = device_mesh or mesh
        return constrain(tensor, spec_of(placements, on, tensor.ndim), mesh=on._jax_mesh)

    return redistribute


def _to_local(tensor: torch.Tensor, mesh: JaxDeviceMesh) -> Callable[..., torch.Tensor]:
    def to_local(**_: Any) -> torch.Tensor:
        found = placement(tensor)
        if found is None or not found.is_split:
            return tensor
        raise RuntimeError(
            f"to_local() of a tensor of shape {tuple(tensor.shape)} that each device holds "
            f"{found.local_shape} of: tensors are global here, and a process has several devices, "
            "so that there is no one local tensor to compute with. Compute with the tensor itself; "
            "calque.sharding.local(tensor) gives the parts to look at"
        )

    return to_local


ATTRIBUTES = {
    "placements": _of_placed("placements", _placements),
    "device_mesh": _of_placed("device_mesh", lambda tensor, mesh: mesh),
    "redistribute": _of_placed("redistribute", _redistribute),
    "to_local": _of_placed("to_local", _to_local),
    "full_tensor": _of_placed("full_tensor", lambda tensor, mesh: lambda **_: gather(tensor)),
}
