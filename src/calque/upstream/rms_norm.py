"""`F.rms_norm` from elementary operators.

PyTorch's own function writes below functionalization, and takes the addresses of symbolic sizes for
sizes.
"""

from typing import Any

import torch
from torch import Tensor

from calque.upstream.torch_internals import decomposition_table


def rms_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Computes `F.rms_norm` from elementary operators."""
    decomposed = decomposition_table[torch.ops.aten._fused_rms_norm.default]
    return decomposed(input, list(normalized_shape), weight, eps)[0]
