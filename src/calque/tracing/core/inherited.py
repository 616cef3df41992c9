"""Metadata that a node inherits from the node it replaces, while PyTorch preserves it.

Interpreters and transformers use `torch.fx.traceback.preserve_node_meta` to say which node they
replay, so that new nodes keep its source location.
"""

import copy
from typing import Any

import torch.fx.traceback as fx_traceback
from torch.fx.node import Node

from calque.upstream import torch_internals
from calque.upstream.torch_internals import COPY_META_FIELDS, get_sequence_nr

_FIELDS = (*COPY_META_FIELDS, "origin")


def inherit(node: Node) -> None:
    """Copy to `node` the metadata that PyTorch preserves of the node being replayed."""
    current = fx_traceback.get_current_meta()
    stack_trace = current.get("stack_trace")
    if stack_trace:
        node.stack_trace = stack_trace
        if fx_traceback.GRADIENT_ACC_SPECIAL_STACK in stack_trace:
            node.meta["is_gradient_acc"] = True
            node.meta["autograd_backward"] = True
    for field in _FIELDS:
        if field in current:
            node.meta[field] = copy.copy(current[field])
    replayed = fx_traceback.get_current_replay_node()
    number = _sequence_number(current, replayed)
    if number is not None:
        node.meta["seq_nr"] = number
    if replayed is not None:
        node.meta["is_functional_regenerated"] = True
        for field in ("custom", "stack_trace"):
            if field in replayed.meta:
                node.meta[field] = replayed.meta[field]
    if current.get("autograd_backward", False):
        node.meta["autograd_backward"] = True


def _sequence_number(current: dict[str, Any], replayed: Node | None) -> int | None:
    """Autograd's number of the forward operation, which pairs forward and backward nodes."""
    keeps = torch_internals.fx_traceback._is_preserving_node_seq_nr()
    if current.get("in_grad_fn", 0) > 0:
        number = current["grad_fn_seq_nr"][-1]
    elif keeps:
        number = current.get("seq_nr")
    else:
        number = get_sequence_nr() - 1
    if not keeps and replayed is not None:
        number = replayed.meta.get("seq_nr", number)
    return number
