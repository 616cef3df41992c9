"""Replaces functions of PyTorch's distributed API with dispatchers to calque's."""

import functools
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch
import torch.distributed.fsdp
import torch.distributed.tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_module, distribute_tensor

from calque.device.runtime.imports import when_imported
from calque.distributed import creating, data_parallel, fsdp, meshes, state_dicts, styles, tensors
from calque.distributed.groups import ProcessGroupCalque
from calque.launching.joining import join
from calque.upstream.torch_distributed import dtensor_init_helper

_installed: list[bool] = []
routes: dict[str, Callable[..., Any]] = {}
"""The functions that PyTorch's functions now call, by name."""


def make_mesh(init: Callable[..., None], mesh: Any, *args: Any, **kwargs: Any) -> None:
    """`DeviceMesh.__init__` for a mesh of type "jax".

    Args:
        init: PyTorch's own `__init__`.
        mesh: the new mesh.
        args, kwargs: the arguments of the call, except the type.
    """
    install()
    mesh.__class__ = meshes.JaxDeviceMesh
    kwargs |= {"_init_backend": False, "_rank": meshes.first_device()}
    init(mesh, "jax", *args, **kwargs)
    meshes.set_up(mesh, kwargs.get("_root_mesh"))


def make_group(options: Any, *_: Any) -> Any:
    """Returns the process group of the backend "calque"; it also connects the processes for JAX."""
    if options.group_size > 1:
        join()
    install()
    return ProcessGroupCalque(options.store, options.group_rank, options.group_size, options)


def install() -> None:
    """Install the replacements (a second call does nothing)."""
    if _installed:
        return
    _installed.append(True)
    styles.install()
    data_parallel.install()
    state_dicts.install()
    _replace(distribute_tensor, tensors.distribute_tensor, 1)
    _replace(distribute_module, tensors.distribute_module, 1)
    _replace(dtensor_init_helper, creating.created, 2)
    _replace(fully_shard, fsdp.fully_shard, None)
    for name, attribute in tensors.ATTRIBUTES.items():
        if not hasattr(torch.Tensor, name):
            setattr(torch.Tensor, name, attribute)
    when_imported("torch._dynamo.variables.tensor", _hide_from_dynamo)
    theirs = DTensor.from_local

    @functools.wraps(theirs)
    def from_local(local: Any, device_mesh: Any = None, *args: Any, **kwargs: Any) -> Any:
        if meshes.is_ours(device_mesh):
            raise NotImplementedError(
                "DTensor.from_local on a mesh of type 'jax': tensors are global already, so "
                "there are no local ones to build one from. Use calque.sharding.constrain to "
                "place a tensor, and calque.sharding.loader to join the processes' own batches"
            )
        return theirs(local, device_mesh, *args, **kwargs)

    DTensor.from_local = staticmethod(from_local)


def _hide_from_dynamo(module: Any) -> None:
    """Remove the new names from the attributes that Dynamo expects on all tensors."""
    for name in tensors.ATTRIBUTES:
        module.all_tensor_attrs.pop(name, None)


def _replace(theirs: Any, ours: Any, position: int | None) -> None:
    """Make a function check its mesh first, whichever name it is called by.

    Its code object is replaced, because a script may have imported the function before the mesh
    existed.

    Args:
        theirs: PyTorch's function.
        ours: serves meshes of type "jax".
        position: the mesh's position among the arguments; None if it is a keyword.
    """
    code = theirs.__code__
    own = FunctionType(
        code, theirs.__globals__, code.co_name, theirs.__defaults__, theirs.__closure__
    )
    own.__kwdefaults__ = theirs.__kwdefaults__

    def route(*args: Any, **kwargs: Any) -> Any:
        mesh = kwargs.get("mesh" if position is None else "device_mesh")
        if position is not None and len(args) > position:
            mesh = args[position]
        is_ours = meshes.is_ours(mesh) or (position is None and fsdp.goes_without(args, mesh))
        return (ours if is_ours else own)(*args, **kwargs)

    routes[code.co_qualname] = route
    theirs.__defaults__ = theirs.__kwdefaults__ = None
    theirs.__code__ = _routing(code.co_qualname, code.co_freevars).replace(co_name=code.co_name)


_ROUTED = """
def enclosing({names}):
    def routed(*args, **kwargs):
        lambda: [{names}]
        from calque.distributed.dispatch_patches import routes  # in another module

        return routes[{name!r}](*args, **kwargs)
    return routed
"""


def _routing(name: str, free: tuple[str, ...]) -> CodeType:
    """Returns the code of a function that calls an entry of `routes`, with the same enclosing
    variables.

    It has to be compiled with these: otherwise code that inspects its frame (a debugger, a report
    of an exception) finds them without a value, which crashes the process.
    """
    found: dict[str, Any] = {}
    exec(_ROUTED.format(name=name, names=", ".join(free)), found)
    return found["enclosing"](*free).__code__
