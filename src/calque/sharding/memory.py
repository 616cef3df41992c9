"""The memory that each device uses, by kind."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from calque.device.memory.cell import cell_of
from calque.device.runtime.sizes import byte_count
from calque.sharding.arguments import check_countable
from calque.upstream.torch_internals import tree_leaves

KINDS = ("parameters", "buffers", "gradients", "state")


class Memory:
    """Bytes by device and kind; prints as a table.

    Attributes:
        devices: for each device of this process, the bytes of each kind ("parameters", "buffers",
            "gradients", "state", and "tensors" for the rest).
        whole: the bytes of each kind if a single device held everything.
    """

    def __init__(self, devices: dict[Any, dict[str, int]], whole: dict[str, int]) -> None:
        self.devices = devices
        self.whole = whole

    @property
    def largest(self) -> int:
        """The bytes of the device that holds the most."""
        return max((sum(kinds.values()) for kinds in self.devices.values()), default=0)

    @property
    def share(self) -> float:
        """The greatest share of the total that one device holds."""
        whole = sum(self.whole.values())
        return self.largest / whole if whole else 0.0

    def _rows(self) -> list[list[str]]:
        kinds = list(self.whole)
        rows = [["", *kinds, "together"]]
        named = [(str(device), found) for device, found in self.devices.items()]
        for name, found in [*named, ("whole", self.whole)]:
            numbers = [found.get(kind, 0) for kind in kinds]
            rows.append([name, *map(byte_count, [*numbers, sum(numbers)])])
        return rows

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *body = [
            "".join(f"<td style='text-align:right'>{cell}</td>" for cell in row)
            for row in self._rows()
        ]
        lines = "".join(f"<tr>{row}</tr>" for row in body)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def memory(*things: Any) -> Memory:
    """Returns how many bytes of modules, optimizers and tensors each device of this process holds.

    Args:
        things: modules, optimizers, tensors and containers of them. For a module, parameters,
            buffers and gradients are counted, for an optimizer also its state. Each storage on
            the device "jax" is counted once.

    Raises:
        TypeError: an argument cannot contain tensors.

    >>> import torch
    >>> from calque import sharding
    >>> everyone = sharding.mesh(dp=-1)
    >>> layer = sharding.shard_module(torch.nn.Linear(4, 4).to("jax"), {})
    >>> sharding.memory(layer).whole["parameters"]
    80
    """
    for thing in things:
        check_countable(thing)
    devices: dict[Any, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    whole: dict[str, int] = defaultdict(int)
    seen = set()
    for kind, tensor in _tensors(things):
        if tensor.device.type != "jax" or (cell := cell_of(tensor)) in seen:
            continue
        seen.add(cell)
        whole[kind] += cell.array.nbytes
        for part in cell.array.addressable_shards:
            devices[part.device][kind] += part.data.nbytes
    ordered = sorted(devices, key=lambda device: device.id)
    kinds = [kind for kind in (*KINDS, "tensors") if kind in whole]
    return Memory(
        {device: {kind: devices[device][kind] for kind in kinds} for device in ordered},
        {kind: whole[kind] for kind in kinds},
    )


def _tensors(things: Iterable[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for thing in things:
        if isinstance(thing, Module):
            yield from _parameters(thing.parameters())
            yield from (("buffers", tensor) for tensor in thing.buffers())
        elif isinstance(thing, Optimizer):
            yield from _parameters(p for group in thing.param_groups for p in group["params"])
            state = tree_leaves(list(thing.state.values()))
            yield from (("state", leaf) for leaf in state if isinstance(leaf, torch.Tensor))
        elif isinstance(thing, torch.Tensor):
            yield from _parameters([thing])
        else:
            leaves = [leaf for leaf in tree_leaves(thing) if leaf is not thing]
            yield from _tensors(leaves)


def _parameters(tensors: Iterable[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for tensor in tensors:
        yield "parameters" if isinstance(tensor, Parameter) else "tensors", tensor
        if tensor.is_leaf and tensor.grad is not None:
            yield "gradients", tensor.grad
