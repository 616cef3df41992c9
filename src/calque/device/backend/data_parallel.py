"""`nn.DataParallel` on the device, which has only one index: calls the module directly.

PyTorch would scatter the inputs with a function that is missing from builds without CUDA.
"""

import functools
from typing import Any

from torch.nn import DataParallel


def install() -> None:
    """Patch `DataParallel.forward`."""
    theirs = DataParallel.forward

    @functools.wraps(theirs)
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        first = next(self.module.parameters(), None)
        if first is not None and first.device.type == "jax":
            return self.module(*inputs, **kwargs)
        return theirs(self, *inputs, **kwargs)

    DataParallel.forward = forward  # type: ignore[method-assign]
