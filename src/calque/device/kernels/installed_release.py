"""Determines, by trying, the properties of the installed PyTorch release on which rules depend."""

import torch

from calque.ops.table.release import RELEASE


def ask() -> None:
    """Determine the values of `RELEASE`."""
    try:
        torch.ones(1, dtype=torch.int8, device="cpu").clamp(-300, 300)
    except RuntimeError:
        RELEASE.limits_saturate = False
    else:
        RELEASE.limits_saturate = True
