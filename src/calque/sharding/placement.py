"""Placements: the part of a tensor that each device holds."""

from html import escape

import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from calque.device.memory.cell import Cell, active, cell_of, current, is_whole
from calque.device.memory.host import host_values
from calque.device.memory.wrapping import wrap
from calque.device.runtime.placement import is_same, placed
from calque.errors import TraceError
from calque.sharding.arguments import check_tensor
from calque.sharding.mesh import Spec, sharding_of
from calque.sharding.picture import html, text

Tensor = torch.Tensor


class Placement:
    """The part of a tensor that each device holds; prints as a picture, also in a notebook.

    Attributes:
        sharding: JAX's sharding of the array.
        shape: the shape of the tensor.
    """

    def __init__(self, sharding: Sharding, shape: tuple[int, ...]) -> None:
        self.sharding = sharding
        self.shape = shape

    @property
    def mesh(self) -> Mesh | None:
        """The mesh, if the tensor is spread over one."""
        mesh = getattr(self.sharding, "mesh", None)
        return mesh if isinstance(mesh, Mesh) else None

    @property
    def spec(self) -> PartitionSpec | None:
        """The axes of the mesh that each dimension is split over."""
        return self.sharding.spec if isinstance(self.sharding, NamedSharding) else None

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of the part that one device holds."""
        return self.sharding.shard_shape(self.shape)

    @property
    def is_split(self) -> bool:
        """Returns True if no device holds the whole tensor."""
        return self.local_shape != self.shape

    def __str__(self) -> str:
        return f"{self!r}, by device:\n{text(self.sharding, self.shape)}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{html(self.sharding, self.shape)}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement) or self.shape != other.shape:
            return NotImplemented if not isinstance(other, Placement) else False
        return is_same(self.sharding, other.sharding, len(self.shape))

    def __hash__(self) -> int:
        return hash(self.shape)

    def __repr__(self) -> str:
        where = f"P{tuple(self.spec)}".replace(",)", ")") if self.spec is not None else "P?"
        axes = (
            "" if self.mesh is None else ", ".join(f"{n}={s}" for n, s in self.mesh.shape.items())
        )
        return f"<{where} of {list(self.shape)} on {axes or self.sharding}>"


def placement(tensor: Tensor) -> Placement | None:
    """Returns which part of a tensor each device holds; None if it has no placement.

    A view has no placement of its own, because its elements belong to its base.

    Args:
        tensor: a tensor on the device "jax", of any shape.

    >>> import torch
    >>> from calque import sharding
    >>> everyone = sharding.mesh(dp=-1)
    >>> x = sharding.shard(torch.zeros(8, 2, device="jax"), sharding.P())
    >>> sharding.placement(x).local_shape
    (8, 2)
    """
    if not isinstance(tensor, Tensor):
        check_tensor("placement", tensor)
    if tensor.device.type != "jax":
        return None
    cell = cell_of(tensor)
    sharding = getattr(cell.array, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not covers(cell, tensor):
        return None
    return Placement(sharding, tuple(tensor.shape))


def shard(tensor: Tensor, spec: Spec, mesh: Mesh | None = None) -> Tensor:
    """Spread a tensor over a mesh; its storage keeps the placement when it is written to.

    Args:
        tensor: a tensor on the device "jax" is placed in place, together with all tensors that
            share its storage. A tensor on the CPU is copied to the mesh: each device gets its part
            from the host.
        spec: the mesh axes over which each dimension is split, such as `P("dp")` or `along("dp")`.
        mesh: the mesh; by default the one created last.

    Returns:
        The tensor on the device.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the spec does not fit the shape or the mesh; the tensor is a view of a part of
            its storage, has a different order in memory, or has no values; or there is no mesh.
        TraceError: in a traced function.

    >>> import torch
    >>> from calque import sharding
    >>> everyone = sharding.mesh(dp=-1)
    >>> sharding.shard(torch.ones(2, 3), sharding.P()).sum().item()
    6.0
    """
    if active.trace is not None:
        raise TraceError(
            "calque.sharding.shard sets the placement of a storage, which a compiled program "
            "cannot do: inside calque.jit use calque.sharding.constrain, and call shard before"
        )
    check_tensor("shard", tensor)
    sharding = sharding_of(spec, tuple(tensor.shape), mesh)
    if tensor.device.type != "jax":
        values = tensor.detach().cpu()
        made = wrap(placed(host_values(values).copy(), sharding))
        return made.requires_grad_() if tensor.requires_grad and tensor.is_leaf else made
    cell = cell_of(tensor)
    if not covers(cell, tensor):
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} and stride {tensor.stride()} is a view and "
            "shares the storage of its base: shard the base, or a clone of the view"
        )
    cell.array = placed(current(cell), sharding)
    return tensor


def covers(cell: Cell, tensor: Tensor) -> bool:
    """Returns True if a tensor covers its storage, dimension by dimension."""
    return not cell.viewed or is_whole(cell, tensor)
