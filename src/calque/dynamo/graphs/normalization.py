"""`F.rms_norm` over dimensions that vary.

PyTorch's function hands the sizes to its fused operator as if they were integers, so that the
operator receives the addresses of symbolic ones.
"""

from typing import Any

import torch
from torch import fx

from calque.upstream.rms_norm import rms_norm

_FUNCTIONS = (torch.rms_norm, torch.nn.functional.rms_norm)


def decompose_symbolic_norms(graph: fx.GraphModule) -> None:
    """Replaces each `rms_norm` of a captured graph that has symbolic sizes among its arguments."""
    changed = False
    for node in graph.graph.nodes:
        if node.target in _FUNCTIONS and _has_symbolic_sizes(*node.args, **node.kwargs):
            node.target = rms_norm
            changed = True
    if changed:
        graph.recompile()


def _has_symbolic_sizes(input: Any, normalized_shape: Any, *_: Any, **__: Any) -> bool:
    if isinstance(normalized_shape, fx.Node):
        return True
    return any(isinstance(size, fx.Node) for size in normalized_shape)
