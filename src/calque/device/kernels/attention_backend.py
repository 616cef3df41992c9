"""`F.scaled_dot_product_attention` on the device: the choice of the backend, and integer
results.
"""

from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from calque.device.kernels.binding import traced_parameters
from calque.device.kernels.call import Runner
from calque.device.kernels.fast_path import wrap_result
from calque.device.memory.strides import of_attention
from calque.device.memory.wrapping import wrap_strided
from calque.device.runtime.imports import when_imported
from calque.ops.table.registry import RULES

_NAME = "aten::_scaled_dot_product_fused_attention_overrideable"
_MAX_LENGTHS = (4, 5)


def choose(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> int:
    """Returns the fused backend if the operands are a batch of heads, otherwise PyTorch's own
    operators.
    """
    operands = (query, key, value)
    batched = all(t.dim() == 4 for t in operands) and len({t.size(0) for t in operands}) == 1
    real = all(t.dtype == query.dtype and t.is_floating_point() for t in operands)
    heads = {t.size(1) for t in operands} if batched else set()
    if not batched or not real or not (enable_gqa or len(heads) == 1):
        return SDPBackend.MATH.value
    if key.size(1) != value.size(1) or not key.size(1) or query.size(1) % key.size(1):
        return SDPBackend.MATH.value
    return SDPBackend.OVERRIDEABLE.value


class _Attention:
    """The kernel of the fused operator, which draws a random key only for dropout."""

    def __init__(self) -> None:
        self._runners: dict[bool, Runner] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        drops = bool(args[4] if len(args) > 4 else kwargs.get("dropout_p", 0))
        runner = self._runners.get(drops)
        if runner is None:
            rule = RULES[_NAME]
            traced = traced_parameters(rule)
            if not drops:
                rule = replace(rule, function=partial(rule.function, None), random=False)
            runner = self._runners[drops] = Runner(rule, traced)
        attended, *results = runner(args, kwargs)
        query, key = list(args)[:2]
        lengths = {4: query.size(2), 5: key.size(2)}
        return wrap_strided(attended, of_attention(attended, query)), *(
            lengths[i] if i in _MAX_LENGTHS else wrap_result(r) for i, r in enumerate(results, 1)
        )


def _no_nesting(t: torch.Tensor, mask: torch.Tensor) -> bool:
    """Returns False, so that `nn.TransformerEncoder` does not pack a padded batch into a nested
    tensor.
    """
    return False


def kernels() -> dict[str, Any]:
    """Returns the attention kernels by operator name."""
    return {
        "_fused_sdp_choice": choose,
        "_nested_tensor_from_mask_left_aligned": _no_nesting,
        "_scaled_dot_product_fused_attention_overrideable": _Attention(),
    }


def _admit(flex_attention: ModuleType) -> None:
    theirs = flex_attention._validate_device

    def check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "jax":
            theirs(query, key, value)

    flex_attention._validate_device = check


def install() -> None:
    """Make `flex_attention` accept tensors of the device, which is missing from PyTorch's list."""
    when_imported("torch.nn.attention.flex_attention", _admit)
