"""Spreads a module by a plan, which maps patterns of names to specs."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar

import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch.nn import Module

from calque.device.runtime.pending_placements import pending
from calque.device.runtime.replicated_values import naming
from calque.sharding.arguments import check_module, check_plan
from calque.sharding.mesh import Spec, mesh_or_latest, sharding_of
from calque.sharding.placement import shard

Plan = Mapping[str, Spec]
"""Patterns of the names of parameters and buffers, and their specs; the first matching one is used.

Patterns are those of a shell: `*` matches anything, including dots. Tensors that match none are
replicated."""

M = TypeVar("M", bound=Module)


class IntendedPlacement(NamedTuple):
    """The intended placement of a parameter or buffer.

    Attributes:
        tensor: the tensor.
        names: its names in the module; several if it is shared.
        sharding: the intended sharding.
    """

    tensor: torch.Tensor
    names: list[str]
    sharding: NamedSharding


def shard_module(module: M, plan: Plan, mesh: Mesh | None = None) -> M:
    """Spread the parameters and buffers of a module over a mesh, in place.

    Gradients and the state of optimizers follow their parameters.

    Args:
        module: a module on the device "jax".
        plan: patterns of names in `state_dict()`, and their specs: `{"*.up.weight": P("tp", "dp"),
            "*": along("dp")}`. Tensors that match no pattern are replicated, so `{}` replicates a
            module.
        mesh: the mesh; by default the one created last.

    Returns:
        The module.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a pattern matches no name, a spec does not fit its tensor (the error names all
            of them), or a tensor is not on the device. Nothing is changed in these cases.

    >>> import torch
    >>> from calque import sharding
    >>> everyone = sharding.mesh(dp=-1)
    >>> layer = sharding.shard_module(torch.nn.Linear(4, 4).to("jax"), {"*": sharding.P()})
    >>> sharding.placement(layer.weight).local_shape
    (4, 4)
    """
    check_module("shard_module", module)
    places = places_of(module, plan, mesh_or_latest(mesh))
    elsewhere = sorted({one.tensor.device.type for one in places} - {"jax"})
    if elsewhere:
        raise ValueError(
            f"the module has tensors on {' and '.join(elsewhere)}: move it with .to('jax') "
            "first, or create it on 'meta' and call calque.sharding.materialize"
        )
    for one in places:
        with naming(one.names[0]):
            shard(one.tensor.detach(), one.sharding)
    return module


def places_of(module: Module, plan: Plan, mesh: Mesh) -> list[IntendedPlacement]:
    """Returns the intended placement of each parameter and buffer.

    Raises:
        ValueError: a pattern matches no name, or a spec does not fit its tensor.
    """
    check_plan(plan)
    tensors: dict[int, torch.Tensor] = {}
    names: dict[int, list[str]] = {}
    for found in (
        module.named_parameters(remove_duplicate=False),
        module.named_buffers(remove_duplicate=False),
    ):
        for name, tensor in found:
            tensors[id(tensor)] = tensor
            names.setdefault(id(tensor), []).append(name)
    wrong = [
        f"no parameter or buffer matches {pattern!r}"
        for pattern in plan
        if not any(fnmatchcase(n, pattern) for own in names.values() for n in own)
    ]
    places = []
    for key, tensor in tensors.items():
        spec = _spec(plan, names[key])
        if spec is None:
            spec = pending(tensor) or PartitionSpec()
        try:
            sharding = sharding_of(spec, tuple(tensor.shape), mesh)
            places.append(IntendedPlacement(tensor, names[key], sharding))
        except ValueError as error:
            wrong.append(f"{names[key][0]}: {error}")
    if wrong:
        raise ValueError("the plan does not fit the module:\n" + "\n".join(wrong))
    return places


def _spec(plan: Plan, names: list[str]) -> Spec | None:
    for pattern, spec in plan.items():
        if any(fnmatchcase(name, pattern) for name in names):
            return spec
    return None
