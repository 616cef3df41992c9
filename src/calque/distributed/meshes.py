"""PyTorch's device meshes over JAX devices.

A mesh counts the devices of all processes. PyTorch's meshes have one process per device and process
groups along each dimension; here a process has several devices and XLA handles the groups.
"""

from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import jax
import numpy as np
import torch
from jax.sharding import Mesh
from torch.distributed.device_mesh import DeviceMesh

from calque.errors.warning import warn
from calque.sharding.mesh import mesh as make_mesh
from calque.upstream import torch_distributed

_torch_meshes: WeakKeyDictionary[Mesh, DeviceMesh] = WeakKeyDictionary()


def _no_group() -> RuntimeError:
    return RuntimeError(
        "a mesh of type 'jax' counts devices, and a process group counts processes: a dimension "
        "of the mesh has no group. Tensors are global here: their sum or mean covers all "
        "devices, and XLA inserts the collectives. For other communication between processes, "
        "use torch.distributed.init_process_group('calque')"
    )


class _NoGroups(list[str]):
    """The names of a mesh's groups, which functional collectives look up by number."""

    def __getitem__(self, index: object) -> NoReturn:
        raise _no_group()

    def copy(self) -> "_NoGroups":
        return self


class JaxDeviceMesh(DeviceMesh):
    """The mesh of `init_device_mesh("jax", ...)`, and slices of it."""

    _jax_mesh: Mesh
    _axes: tuple[tuple[str, ...], ...]

    @property
    def mesh(self) -> torch.Tensor:
        """The numbers of the devices, in the shape of the mesh; for a slice, the one with this
        process.

        A CPU tensor of int32.
        """
        every = self._layout.remap_to_tensor(self._rank_map)
        own = [one for one in every if (one == first_device()).any()]
        return own[0] if own else every[0]

    def _create_flatten_mesh(self, mesh_dim_name: str, backend_override: Any = (None, None)) -> Any:
        super()._create_flatten_mesh(mesh_dim_name, backend_override)
        flat = self._get_root_mesh()._flatten_mapping[mesh_dim_name]
        flat._axes = (tuple(axis for axes in self._axes for axis in axes),)

    def get_group(self, mesh_dim: int | str | None = None) -> NoReturn:
        """Not supported.

        Raises:
            RuntimeError: always.
        """
        raise _no_group()

    def get_rank(self) -> int:
        """Returns the number of this process's first device."""
        return first_device()

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Returns the position of this process's first device along a dimension.

        Warns if the process also has devices at other positions, because batches are global then.
        """
        if self.ndim > 1 and mesh_dim is None:
            raise RuntimeError(
                "a mesh of several dimensions needs the name of one of them: mesh_dim="
            )
        if isinstance(mesh_dim, str):
            mesh_dim = self._get_mesh_dim_by_name(mesh_dim)
        names = self._axes[mesh_dim or 0]
        places = _places(self._jax_mesh, names)
        if len(set(places)) > 1:
            warn(
                f"this process has devices at {len(set(places))} places along {'_'.join(names)}; "
                f"the first of them, {places[0]}, is returned as its local rank. Tensors are "
                "global here: a batch is the whole batch, not a part for each rank"
            )
        return places[0]


def first_device() -> int:
    """Returns the global number of this process's first device."""
    own = jax.process_index()
    return next(i for i, device in enumerate(jax.devices()) if device.process_index == own)


def _places(mesh: Mesh, names: tuple[str, ...]) -> list[int]:
    """Returns the position of each device of this process along some axes."""
    index = np.moveaxis(
        mesh.devices, [mesh.axis_names.index(name) for name in names], range(len(names))
    )
    rows = index.reshape(int(np.prod([mesh.shape[name] for name in names])), -1)
    own = jax.process_index()
    return [i for i, row in enumerate(rows) for device in row if device.process_index == own]


def set_up(made: JaxDeviceMesh, root: DeviceMesh | None) -> None:
    """Set up a new mesh on JAX devices.

    Args:
        made: PyTorch's mesh, whose own fields are already set.
        root: the mesh that it is a slice of, if any.

    Raises:
        ValueError: it does not contain all devices.
    """
    names = made.mesh_dim_names
    made._dim_group_names = _NoGroups()
    if root is None:
        if tuple(made._rank_map.tolist()) != tuple(range(made.size())):
            raise ValueError(
                "a mesh of type 'jax' must list the devices in JAX's order: 0, 1, 2, ..."
            )
        names = names or tuple(f"dim_{i}" for i in range(made.ndim))
        made._jax_mesh = make_mesh(**dict(zip(names, made.shape, strict=True)))
        made._axes = tuple((name,) for name in names)
        _torch_meshes[made._jax_mesh] = made
        return
    made._jax_mesh = root._jax_mesh
    flat = {name: one._axes[0] for name, one in root._flatten_mapping.items()}
    known = made._jax_mesh.axis_names
    made._axes = tuple((n,) if n in known else flat.get(n, ()) for n in names or ())
    if () in made._axes:  # a flattened mesh, whose axes are set later
        made._axes = ()


def torch_mesh(mesh: Mesh) -> DeviceMesh | None:
    """Returns PyTorch's mesh for a JAX mesh, if it was created through PyTorch's API."""
    return _torch_meshes.get(mesh)


def is_ours(mesh: object) -> bool:
    """Returns True if a mesh is of type "jax"; None means the current one."""
    if mesh is None:
        stack = torch_distributed.mesh_resources.mesh_stack
        mesh = stack[-1] if stack else None
    return isinstance(mesh, JaxDeviceMesh)


def in_use(mesh: Any) -> JaxDeviceMesh:
    """Returns a mesh; by default that of the enclosing context."""
    if mesh is None:
        mesh = torch_distributed.mesh_resources.get_current_mesh()
    return mesh
