"""Refuses kinds of tensors that the device does not support: sparse, nested and quantized ones.

PyTorch creates some of them without calling the device, and dispatches their operators by special
keys.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from calque.errors import UnsupportedOpError, at_user_line
from calque.upstream import torch_c
from calque.upstream.torch_internals import OpOverload, tree_leaves

_REMEDIES = {
    "sparse": "Use a dense tensor (to_dense())",
    "nested": "Use a padded tensor with a mask (nn.TransformerEncoder makes none with "
    "enable_nested_tensor=False)",
    "quantized": "Use a tensor of floats (dequantize())",
}

_KINDS = {
    "SparsePrivateUse1": "sparse",
    "SparseCsrPrivateUse1": "sparse",
    "QuantizedPrivateUse1": "quantized",
}


_NESTED = "NestedTensorPrivateUse1"
_NESTED_OF_THE_CPU = torch_c.DispatchKeySet(torch_c.DispatchKey.NestedTensorCPU)


def refuse(kind: str, op: OpOverload) -> NoReturn:
    """Raise UnsupportedOpError, at the user's line, for an operator that returns or takes one."""
    raise UnsupportedOpError(
        at_user_line(
            f"{op.name()} makes or takes a {kind} tensor, which the jax device does not support.\n"
            f"{_REMEDIES[kind]}, or keep this part on the CPU."
        )
    )


def fallbacks() -> dict[str, Callable[..., Any]]:
    """Returns the kernels that refuse the operators of each kind, by dispatch key."""

    def fallback(kind: str) -> Callable[..., Any]:
        return lambda op, *args, **kwargs: refuse(kind, op)

    return {key: fallback(kind) for key, kind in _KINDS.items()} | {_NESTED: _of_nested}


def _of_nested(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Returns a nested tensor's sizes and strides; refuses all other operators.

    Autograd reads the sizes in code where an exception would end the process.
    """
    name = op.name()
    if name.startswith("aten::_nested_tensor_s") and len(op._schema.arguments) == 1:
        return op.redispatch(_NESTED_OF_THE_CPU, *args)
    return refuse("nested", op)


def check_operator(op: OpOverload) -> None:
    """Raise UnsupportedOpError for an operator that creates such a tensor from dense ones."""
    name = op.name()
    if "sparse" in name:
        refuse("sparse", op)
    if name.startswith(("aten::_nested_tensor_from_mask", "aten::_nested_from_padded")):
        if not name.endswith("_left_aligned"):
            refuse("nested", op)


def check_plain(op: OpOverload, results: object) -> None:
    """Raise UnsupportedOpError if an operator's CPU kernel returns a tensor of such a kind."""
    for result in tree_leaves(results):
        if isinstance(result, torch.Tensor):
            if result.is_nested:
                refuse("nested", op)
            if result.layout is not torch.strided:
                refuse("sparse", op)
