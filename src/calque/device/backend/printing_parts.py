"""Prints tensors that are sharded over several processes as this process's parts.

All processes would have to print a tensor for it to be shown whole. Tensors that are whole in each
process are formatted on the host: PyTorch computes with the values that it formats, and on the
device such a program would need all processes, but `if rank == 0: print(loss)` runs in one.
"""

import functools

import jax
import torch

from calque.device.memory.cell import active, read
from calque.device.memory.host import host_tensor
from calque.device.runtime.addressable import is_here, own_shards, where
from calque.upstream import torch_c, torch_internals

_MOST = 8  # parts to show
_INDENT = 7  # the length of "tensor("


def install() -> None:
    """Make `repr` show such tensors (a second call does nothing)."""
    shown = torch_internals.tensor_str._str
    if hasattr(shown, "shows_parts"):
        return

    @functools.wraps(shown)
    def show(self: torch.Tensor, *, tensor_contents: str | None = None) -> str:
        if tensor_contents is None and self.device.type == "jax" and active.trace is None:
            tensor_contents = _contents(self)
        return shown(self, tensor_contents=tensor_contents)

    show.shows_parts = True  # type: ignore[attr-defined]
    torch_internals.tensor_str._str = show


def _contents(tensor: torch.Tensor) -> str | None:
    """Returns the text of this process's parts; None if the tensor is whole here, or wraps another
    one.
    """
    if torch_c.functorch.is_functorch_wrapped_tensor(tensor):
        return None
    array = read(tensor.detach())
    if array.is_fully_addressable:
        return None
    if is_here(array):
        return torch_internals.tensor_str._tensor_str(host_tensor(array), _INDENT)
    shards = own_shards(array)
    rank, count = jax.process_index(), jax.process_count()
    lines = [f"..., shape={tuple(array.shape)}{where(array)}; process {rank} of {count} holds"]
    for index, part in list(shards.items())[:_MOST]:
        lines.append(
            f"{index}: {torch_internals.tensor_str._tensor_str(host_tensor(part), _INDENT)}"
        )
    if len(shards) > _MOST:
        lines.append(f"and {len(shards) - _MOST} more parts")
    return ("\n" + " " * _INDENT).join(lines)
