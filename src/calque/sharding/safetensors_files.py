"""`HuggingFaceStorageWriter` of `torch.distributed.checkpoint` for tensors with several parts.

A safetensors file has one tensor per name, so PyTorch's writer keeps only the last of several
parts. Here a process has several devices and so several parts, which are joined before they are
written.
"""

import dataclasses
import functools
from typing import Any

import jax
import torch
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType


@dataclasses.dataclass(frozen=True)
class BoxIndex(MetadataIndex):
    """The index of a block that several devices of a process hold together.

    Attributes:
        sizes: the sizes of the block, which starts at the offset.
    """

    sizes: tuple[int, ...] = ()


def install() -> None:
    """Make the writer join the parts of a process."""
    theirs = HuggingFaceStorageWriter.prepare_local_plan

    @functools.wraps(theirs)
    def prepare_local_plan(self: Any, plan: SavePlan) -> SavePlan:
        return theirs(self, _joined(plan, self.save_distributed))

    HuggingFaceStorageWriter.prepare_local_plan = prepare_local_plan


def _joined(plan: SavePlan, distributed: bool) -> SavePlan:
    parts: dict[str, list[WriteItem]] = {}
    for item in plan.items:
        if item.type is WriteItemType.SHARD:
            parts.setdefault(item.index.fqn, []).append(item)
    made = {}
    for name, own in parts.items():
        whole = own[0].tensor_data.size  # type: ignore[union-attr]
        made[name] = one = own[0] if len(own) == 1 else _box(name, own)
        if not distributed and tuple(one.tensor_data.chunk.sizes) != tuple(whole):  # type: ignore[union-attr]
            raise NotImplementedError(
                f"{name} is spread over {jax.process_count()} processes, each of which would "
                "write its own file under the same name: use HuggingFaceStorageWriter(..., "
                "save_distributed=True, enable_consolidation=True)"
            )
    rest = [item for item in plan.items if item.index.fqn not in made]
    return dataclasses.replace(plan, items=[*made.values(), *rest])


def _box(name: str, parts: list[WriteItem]) -> WriteItem:
    """Returns one item for several parts that form a block."""
    chunks: list[Any] = [item.tensor_data.chunk for item in parts]  # type: ignore[union-attr]
    ends = [[o + s for o, s in zip(c.offsets, c.sizes, strict=True)] for c in chunks]
    begin = [min(column) for column in zip(*(c.offsets for c in chunks), strict=True)]
    end = [max(column) for column in zip(*ends, strict=True)]
    sizes = torch.Size(e - b for b, e in zip(begin, end, strict=True))
    if sizes.numel() != sum(c.sizes.numel() for c in chunks):
        raise NotImplementedError(
            f"the devices of this process hold parts of {name} that do not form one block, as a "
            "safetensors file requires: use torch.distributed.checkpoint's own writer, or place "
            "the tensor differently"
        )
    index = BoxIndex(name, torch.Size(begin), sizes=tuple(sizes))
    data: Any = parts[0].tensor_data
    data = dataclasses.replace(data, chunk=ChunkStorageMetadata(torch.Size(begin), sizes))
    return dataclasses.replace(parts[0], index=index, tensor_data=data)
