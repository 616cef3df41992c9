"""Visits tensors: their hooks and the attributes that the user set on them."""

from typing import TYPE_CHECKING

import torch

from calque.state.paths import Path
from calque.state.rows import DictRow, TensorHooksRow
from calque.state.values import instance_dict

if TYPE_CHECKING:
    from calque.state.snapshot import Snapshot


def visit_tensor(snapshot: "Snapshot", value: torch.Tensor, path: Path) -> None:
    """Visits a tensor."""
    snapshot.tensors[id(value)] = value
    snapshot.on_tensor(value)
    if value.requires_grad:
        row = TensorHooksRow(value, path)
        snapshot.push_items(snapshot.hold(row, ("t", id(value))))
    held = instance_dict(value)
    if held:
        snapshot.namespaces.hold(held, path, ("u", id(value)))
    elif held is not None:  # a cheap comparison, since most have no attributes
        snapshot.hold(DictRow(held, path, attribute=True), ("u", id(value)))
