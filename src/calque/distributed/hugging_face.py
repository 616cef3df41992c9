"""The tensor-parallel and FSDP plans of transformers models, on a mesh of JAX devices.

`from_pretrained(..., tp_plan="auto")` and `distributed_config=` count devices here, not processes.
transformers shards a model on "meta" and then loads it: the styles of its plan record the
placements of parameters, which take effect when their values are loaded, one at a time.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import torch
import torch.distributed as dist
from jax.sharding import PartitionSpec
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from calque.device.runtime.pending_placements import pending
from calque.device.runtime.replicated_values import naming
from calque.distributed.layouts import divides, spec_of
from calque.distributed.meshes import JaxDeviceMesh, is_ours
from calque.distributed.styles import pin_output
from calque.distributed.tensors import place
from calque.errors.warning import warn
from calque.launching.joining import join
from calque.sharding import gather, shard

_WHOLE = Replicate()
_PARAMETERS: dict[str, Callable[[nn.Parameter, str], Placement]] = {
    "colwise": lambda p, name: Shard(max(p.ndim - 2, 0)),
    "colwise_rep": lambda p, name: Shard(max(p.ndim - 2, 0)),
    "colwise_gather_output": lambda p, name: Shard(max(p.ndim - 2, 0)),
    "packed_colwise": lambda p, name: Shard(max(p.ndim - 2, 0)),
    "rowwise": lambda p, name: _WHOLE if name == "bias" else Shard(p.ndim - 1),
    "rowwise_rep": lambda p, name: _WHOLE if name == "bias" else Shard(p.ndim - 1),
    "rowwise_split_input": lambda p, name: _WHOLE if name == "bias" else Shard(p.ndim - 1),
    "packed_rowwise": lambda p, name: _WHOLE if p.ndim == 1 else Shard(p.ndim - 1),
    "embedding_rowwise": lambda p, name: Shard(0),
    "embedding_colwise": lambda p, name: Shard(1),
}
"""How the styles of transformers' plans split a parameter; other styles replicate it."""

_OUTPUTS: dict[str, Placement] = {
    "colwise": Shard(-1),
    "colwise_rep": _WHOLE,
    "colwise_gather_output": _WHOLE,
    "rowwise": _WHOLE,
    "rowwise_rep": _WHOLE,
    "rowwise_split_input": _WHOLE,
    "embedding_rowwise": _WHOLE,
    "embedding_colwise": _WHOLE,
    "sequence_parallel": Shard(1),
}
"""The placements of the results of modules. XLA adds the sums and scalings of other styles."""


def _of_device() -> bool:
    """Returns True if transformers would use the device "jax"."""
    found = torch.accelerator.current_accelerator()
    if found is None or found.type != "jax":
        return False
    return not dist.is_initialized() or dist.get_backend() == "calque"


def sizes(theirs: Callable[[Any], None]) -> Callable[[Any], None]:
    """`DistributedConfig`'s own sizes: `tp_plan="auto"` means all devices, of all processes."""

    @functools.wraps(theirs)
    def resolve(self: Any) -> None:
        if self.tp_size is None and self.tp_plan is not None and _of_device():
            _join()
            others = [self.fsdp_size, self.dp_replicate_size, self.pp_size]
            self.tp_size = jax.device_count()
            for size in others:
                self.tp_size //= size or 1
        theirs(self)

    return resolve


def _join() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        join()


def meshes(of_axes: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Makes `initialize_distributed_mesh` return a mesh over JAX devices.

    Args:
        of_axes: creates transformers' mesh from one for dense layers and one for experts.
    """
    return lambda theirs: functools.wraps(theirs)(functools.partial(_meshes, theirs, of_axes))


def _meshes(theirs: Callable[[Any], Any], of_axes: Callable[[Any, Any], Any], config: Any) -> Any:
    axes = ("pp", "dp_replicate", "fsdp", "tp")
    shape = tuple(getattr(config, f"{axis}_size") for axis in axes)
    if not _of_device() or set(shape) == {1}:
        return theirs(config)
    if config.pp_size > 1 or config.ep_size > 1:
        raise NotImplementedError(
            "pp_size and ep_size are not supported on the device 'jax': pipeline stages, and "
            "experts on separate devices, need a program each. Use tp_size and fsdp_size, which "
            "split all layers"
        )
    _join()
    mesh = init_device_mesh("jax", shape, mesh_dim_names=axes)
    return torch.device("jax"), of_axes(mesh, mesh)


def tensor_parallel(theirs: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """`apply_tensor_parallelism` for a plan with a style for each parameter and module."""

    @functools.wraps(theirs)
    def apply(model: Any, tp_mesh: Any, tp_plan: dict[str, str]) -> nn.Module:
        if not is_ours(tp_mesh):
            return theirs(model, tp_mesh, tp_plan)
        parameters = dict(model.named_parameters())
        whole = []
        for name in parameters:
            if name not in tp_plan:
                place(model, name, PartitionSpec(), tp_mesh)
        for name, style in tp_plan.items():
            if name not in parameters:
                if style in _OUTPUTS:
                    pin_output(model.get_submodule(name), tp_mesh, _OUTPUTS[style])
            elif not _place(model, name, parameters[name], style, tp_mesh):
                whole.append(f"{name} {tuple(parameters[name].shape)}")
        if whole:
            more = f" and {len(whole) - 4} more" if len(whole) > 4 else ""
            warn(
                f"the plan replicates parameters, because {tp_mesh.size()} does not divide the "
                f"dimension to be split: {', '.join(whole[:4])}{more}"
            )
        _count_no_ranks(model)
        return model

    return apply


def _place(model: Any, name: str, p: nn.Parameter, style: str, mesh: JaxDeviceMesh) -> bool:
    """Place a parameter according to a style; returns False if the mesh does not divide it."""
    wanted = _PARAMETERS[style](p, name.rpartition(".")[2]) if style in _PARAMETERS else _WHOLE
    fits = isinstance(wanted, Replicate) or divides(p, wanted.dim, mesh, mesh._axes[0])
    place(model, name, spec_of([wanted if fits else _WHOLE], mesh, p.ndim), mesh)
    return fits


def _count_no_ranks(model: Any) -> None:
    """Keep generation and the Trainer from dividing by the number of devices,
    because tensors are global.
    """
    model._tp_size = model._fsdp_size = None


def fully_sharded(theirs: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """`apply_fully_sharded_data_parallelism`, without waiting for other ranks."""

    @functools.wraps(theirs)
    def apply(model: Any, mesh_manager: Any, *plans: Any) -> nn.Module:
        made: Any = theirs(model, mesh_manager, *plans)
        if is_ours(mesh_manager.get_mesh("fsdp")):
            made._is_fsdp_managed_module = False
            _count_no_ranks(made)
        return made

    return apply


def loading(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that sets a model's parameter and gives it its recorded placement."""

    @functools.wraps(theirs)
    def load(model: object, name: str, *args: Any, **kwargs: Any) -> Any:
        before = _held(model, name)
        found = theirs(model, name, *args, **kwargs)
        placement = None if before is None else pending(before)
        after = _held(model, name)
        if placement is not None and after is not None and after.device.type == "jax":
            with naming(name):
                shard(after.detach(), placement)
        return found

    return load


def _held(model: Any, name: str) -> torch.Tensor | None:
    owner, _, last = name.rpartition(".")
    found = getattr(model.get_submodule(owner), last, None)
    return found if isinstance(found, torch.Tensor) else None


def gathering(theirs: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Makes `save_pretrained` write whole tensors, on the CPU, in every process."""

    @functools.wraps(theirs)
    def for_save(
        self: object, model: object, state: Any, config: object, **options: Any
    ) -> dict[str, Any]:
        if not isinstance(getattr(model, "_device_mesh", None), JaxDeviceMesh):
            return theirs(self, model, state, config, **options)
        return {
            key: gather(one).cpu().contiguous() if isinstance(one, torch.Tensor) else one
            for key, one in state.items()
        }

    return for_save
