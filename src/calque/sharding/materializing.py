"""Gives a module created on "meta" memory and initial values on the mesh."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh
from torch.nn import Module, Parameter

from calque.device.memory.cell import x64
from calque.device.memory.wrapping import wrap
from calque.device.runtime.dtypes import to_numpy
from calque.device.runtime.pending_placements import take_pending
from calque.device.runtime.placement import spread
from calque.jitting.api import jit
from calque.sharding.arguments import check_module
from calque.sharding.mesh import mesh_or_latest
from calque.sharding.placement import shard
from calque.sharding.plan import IntendedPlacement, Plan, places_of

M = TypeVar("M", bound=Module)
_RESET = ("reset_parameters", "_reset_parameters")


def materialize(
    module: M, plan: Plan, mesh: Mesh | None = None, init: Callable[[Module], Any] | None = None
) -> M:
    """Give a module on "meta" memory and initial values; no tensor is ever whole on one device.

    The values are drawn from the device's random state, in one program; they are the same on every
    mesh.

    Args:
        module: a module created under `torch.device("meta")`.
        plan: how to place its parameters and buffers (see `shard_module`). Those that match no
            pattern have the placement given by `parallelize_module` or `fully_shard`, or are
            replicated.
        mesh: the mesh; by default the one created last.
        init: a function that sets the values of one module; it is called with each submodule, as
            by `Module.apply`. By default, each module's own `reset_parameters` is called.

    Returns:
        The module, with new parameters and buffers. Those that are not on "meta" are moved.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the plan does not match the module; or there is no `init`, and a module has
            parameters or buffers on "meta" and no `reset_parameters`.

    >>> import torch
    >>> from calque import sharding
    >>> everyone = sharding.mesh(dp=-1)
    >>> with torch.device("meta"):
    ...     layer = torch.nn.Linear(4, 4)
    >>> sharding.materialize(layer, {"*": sharding.P()}).weight.device
    device(type='jax', index=0)
    """
    check_module("materialize", module)
    if init is not None and not callable(init):
        raise TypeError(f"init= must be a function of a module, not {init!r}")
    places = places_of(module, plan, mesh_or_latest(mesh))
    on_meta = {id(one.tensor) for one in places if one.tensor.is_meta}
    if init is None:
        _check_resets(module, on_meta)
    made = {id(one.tensor): _made(one) for one in places}
    resetting = [m for m in module.modules() if on_meta & {id(t) for t in _own(m)}]
    for part in module.modules():
        own: Any = (part._parameters, part._buffers)
        for held in own:
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = made[id(tensor)]

    def fill() -> None:
        with torch.no_grad():
            if init is not None:
                module.apply(init)
                return
            for part in resetting:
                _reset(part)()

    if on_meta:
        jit(fill, verify=False)()
    return module


def _own(module: Module) -> list[torch.Tensor]:
    """Returns a module's own parameters and buffers."""
    held = (*module._parameters.values(), *module._buffers.values())
    return [tensor for tensor in held if tensor is not None]


def _reset(module: Module) -> Any:
    return next((getattr(module, name) for name in _RESET if hasattr(module, name)), None)


def _check_resets(module: Module, on_meta: set[int]) -> None:
    lacking = [
        f"{name or 'the module itself'} ({type(part).__name__})"
        for name, part in module.named_modules()
        if _reset(part) is None and on_meta & {id(t) for t in _own(part)}
    ]
    if lacking:
        raise ValueError(
            f"no reset_parameters method initializes these tensors: {', '.join(lacking)}. Pass a "
            "function init(module) that sets them, or add the method to their class"
        )


def _made(place: IntendedPlacement) -> torch.Tensor:
    """Returns the replacement for a tensor; zeros if it was on "meta"."""
    tensor = place.tensor
    if tensor.device.type == "jax":
        shard(tensor.detach(), place.sharding)
        return tensor
    if tensor.is_meta:
        spread.exists = True
        dtype = to_numpy(tensor.dtype)
        with x64():
            zeros = jax.jit(lambda: jnp.zeros(tensor.shape, dtype), out_shardings=place.sharding)()
        made = wrap(zeros)
    else:
        made = shard(tensor.detach(), place.sharding)
    if not isinstance(tensor, Parameter):
        return made
    parameter = Parameter(made, tensor.requires_grad)
    take_pending(tensor)
    vars(parameter).update(vars(tensor))
    return parameter
