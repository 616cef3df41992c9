"""Tells the rules what the PyTorch that is installed does in its own way, by trying it."""

import torch

from calque.ops.table.release import RELEASE


def ask() -> None:
    """Find what `RELEASE` holds."""
    try:
        torch.ones(1, dtype=torch.int8).clamp(-300, 300)
    except RuntimeError:
        RELEASE.limits_saturate = False
    else:
        RELEASE.limits_saturate = True
