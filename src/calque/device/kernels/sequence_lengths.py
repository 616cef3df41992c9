"""The CTC loss with lengths in CPU tensors, as in PyTorch's documentation.

In eager mode, PyTorch reads the lengths. Under a dispatch mode, as in a trace, it computes with the
tensors, which then must be on the device of the scores.
"""

from typing import Any

import torch

from calque.device.kernels.binding import untraced
from calque.device.memory.cell import active
from calque.device.memory.host import host_array
from calque.device.memory.wrapping import wrap

_CTC_LOSS = torch.ops.aten.ctc_loss.Tensor


def install(aten: torch.library.Library) -> None:
    """Register the kernel in autograd."""
    aten.impl("ctc_loss.Tensor", untraced(_ctc_loss), "AutogradPrivateUse1")


def _ctc_loss(scores: torch.Tensor, *labels: Any, **options: Any) -> torch.Tensor:
    if active.trace is not None and scores.device.type == "jax":
        labels = tuple(map(_on_device, labels))
        options = {name: _on_device(value) for name, value in options.items()}
    return _CTC_LOSS.decompose(scores, *labels, **options)


def _on_device(value: Any) -> Any:
    is_host = isinstance(value, torch.Tensor) and value.device.type == "cpu"
    return wrap(host_array(value)) if is_host else value
