"""Refuses sparse tensors, which the device does not support.

PyTorch creates some of them without involving a device, and dispatches their operators by special
keys.
"""

from typing import Any, NoReturn

import torch

from calque.errors import UnsupportedOpError, user_origin
from calque.upstream.torch_internals import OpOverload, tree_leaves

KEYS = ("SparsePrivateUse1", "SparseCsrPrivateUse1")


def refuse(op: OpOverload, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise UnsupportedOpError, at the user's line, for an operator that makes or takes one."""
    origin = user_origin()
    place = f"{origin}: " if origin else ""
    raise UnsupportedOpError(
        f"{place}{op.name()} makes or takes a sparse tensor, which the jax device does not "
        "support.\nUse a dense tensor (to_dense()), or keep this part on the CPU."
    )


def check_dense(op: OpOverload, results: Any) -> None:
    """Raise UnsupportedOpError if an operator's CPU kernel returns a sparse tensor."""
    for result in tree_leaves(results):
        if isinstance(result, torch.Tensor) and result.layout is not torch.strided:
            refuse(op)
