"""Checks the arguments of the public functions."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import torch
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from torch.nn import Module

_A_SPEC = (
    "write P('dp') or P(('dp', 'tp'), None), from calque.sharding, with the names of the mesh's "
    "axes, or along('dp')"
)


def check_tensor(function: str, value: object, on_device: bool = False) -> None:
    """Raise TypeError for a value that is not a tensor, and ValueError for an unsuitable tensor.

    Args:
        function: the name of the public function.
        value: its argument.
        on_device: whether it must be on the device "jax"; otherwise it must have values.
    """
    if not isinstance(value, torch.Tensor):
        of_module = isinstance(value, Module) and function == "shard"
        hint = ": use shard_module for a module" if of_module else ""
        raise TypeError(f"calque.sharding.{function} expects a tensor, not {_as_text(value)}{hint}")
    if on_device and value.device.type != "jax":
        raise ValueError(
            f"calque.sharding.{function} expects a tensor on device 'jax', not on "
            f"{value.device}: move it with .to('jax') first"
        )
    if on_device:
        return
    if value.layout is not torch.strided:
        raise ValueError(
            f"calque.sharding.{function} does not support tensors of layout {value.layout}"
        )
    if value.is_meta:
        raise ValueError(
            f"calque.sharding.{function} does not support tensors on 'meta', which have no "
            "values: use calque.sharding.materialize to give a module memory on a mesh"
        )


def check_module(function: str, value: object) -> None:
    """Raise TypeError for a value that is not a module."""
    if not isinstance(value, Module):
        hint = ": use shard for a tensor" if isinstance(value, torch.Tensor) else ""
        raise TypeError(f"calque.sharding.{function} expects a module, not {_as_text(value)}{hint}")


def check_plan(plan: object) -> None:
    """Raise TypeError for a value that is not a mapping of patterns to specs."""
    if not isinstance(plan, Mapping):
        raise TypeError(
            "a plan must be a dict from name patterns to specs, such as {'*.weight': P('dp')}, "
            f"not {_as_text(plan)}"
        )
    for pattern, spec in plan.items():
        if not isinstance(pattern, str):
            raise TypeError(f"a pattern of a plan must be a str, not {_as_text(pattern)}")
        check_spec(spec, f"{pattern!r} of the plan: ")


def check_mesh(value: object) -> None:
    """Raise TypeError for a value that is neither a JAX mesh nor None."""
    if value is None or isinstance(value, Mesh | AbstractMesh):
        return
    hint = ""
    if hasattr(value, "mesh_dim_names"):
        hint = ": use PyTorch's meshes with distribute_tensor and similar functions"
    raise TypeError(
        "mesh= must be a jax.sharding.Mesh, such as calque.sharding.mesh(dp=8), not "
        f"{_as_text(value)}{hint}"
    )


def check_spec(value: object, where: str = "") -> None:
    """Raise ValueError for a value that is not a spec."""
    if not (isinstance(value, PartitionSpec | NamedSharding) or callable(value)):
        raise ValueError(f"{where}{value!r} is not a spec: {_A_SPEC}")


def check_entries(spec: PartitionSpec) -> None:
    """Raise ValueError for an entry that is neither None nor names of axes."""
    for entry in spec:
        if entry is PartitionSpec.UNCONSTRAINED:
            raise ValueError(
                "P.UNCONSTRAINED leaves a dimension to XLA, which only calque.sharding.constrain "
                "supports: a storage needs a definite placement"
            )
        names = entry if isinstance(entry, tuple) else (entry,)
        if entry is not None and not all(isinstance(name, str) for name in names):
            raise ValueError(f"{entry!r} in {spec} is not the name of a mesh axis: {_A_SPEC}")


def check_axes(axes: Sequence[Any]) -> None:
    """Raise TypeError if names of axes are not strings, and ValueError if there are none."""
    if not axes:
        raise ValueError("along expects the names of one or more mesh axes: along('dp')")
    for axis in axes:
        if not isinstance(axis, str):
            raise TypeError(
                f"the name of a mesh axis must be a str, not {_as_text(axis)}: along('dp')"
            )


def sizes_of(axes: Mapping[str, Any]) -> dict[str, int]:
    """Returns the sizes of the axes of a mesh.

    Raises:
        TypeError: a size is not an int.
    """
    for name, size in axes.items():
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise TypeError(
                f"the size of axis {name!r} must be an int, or -1, not {_as_text(size)}"
            )
    return {name: operator.index(size) for name, size in axes.items()}


def devices_of(devices: object) -> list[Any]:
    """Returns the devices for a mesh, by default all.

    Raises:
        TypeError: they are not devices of JAX.
        ValueError: a device occurs twice.
    """
    if devices is None:
        return list(jax.devices())
    found = list(devices) if isinstance(devices, Iterable) else [devices]
    for one in found:
        if not isinstance(one, jax.Device):
            raise TypeError(
                "devices= must be a sequence of JAX devices, such as jax.devices()[:4], not of "
                f"{_as_text(one)}"
            )
    if len(set(found)) < len(found):
        raise ValueError("devices= must not contain a device twice")
    return found


def check_batches(value: object) -> None:
    """Raise TypeError for a value that is not an iterable of batches."""
    if isinstance(value, torch.Tensor):
        raise TypeError("calque.sharding.loader expects batches, not one tensor: loader([tensor])")
    if not isinstance(value, Iterable):
        raise TypeError(
            "calque.sharding.loader expects a DataLoader or another iterable of batches, not "
            f"{_as_text(value)}"
        )


def check_countable(value: object) -> None:
    """Raise TypeError for a value that cannot contain tensors."""
    if isinstance(value, int | float | str | bytes) or value is None:
        raise TypeError(
            "calque.sharding.memory expects modules, optimizers, tensors or containers of them, "
            f"not {_as_text(value)}"
        )


def _as_text(value: Any) -> str:
    shown = repr(value)
    kind = type(value).__name__
    return f"{shown} ({kind})" if len(shown) < 40 and "\n" not in shown else f"a {kind}"
