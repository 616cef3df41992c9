"""Autocast on the device: which operators run in low precision and which in float32.

PyTorch has these tables for its own devices only; the lists follow those of CUDA. The casts are
ordinary operators, so autograd and `calque.jit` see them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

KEY = "AutocastPrivateUse1"
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LOWER_PRECISION = _names(
    "_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input "
    "conv_transpose3d.input convolution addmm addmv addr matmul mm mv bmm baddbmm addbmm einsum "
    "linear linalg_multi_dot linalg_vecdot chain_matmul prelu scaled_dot_product_attention "
    "_thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
    "lstm.input lstm.data gru.input gru.data rnn_tanh.input rnn_tanh.data rnn_relu.input "
    "rnn_relu.data"
)

FLOAT32 = _names(
    "__rpow__.Scalar __rpow__.Tensor acos asin cosh erfinv exp expm1 log log10 log1p log2 "
    "reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm "
    "native_layer_norm group_norm rms_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim "
    "cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d "
    "hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss "
    "multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss "
    "binary_cross_entropy_with_logits cross_entropy_loss dist pdist cdist renorm logsumexp "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d "
    "upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d norm.Scalar norm.ScalarOpt_dim "
    "linalg_vector_norm linalg_matrix_norm prod prod.dim_int softmax.int log_softmax.int cumprod "
    "cumsum sum sum.dim_IntList"
)

WIDEST = _names(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put scatter_add tensordot "
    "stack cat index_copy"
)

REFUSED = {
    "binary_cross_entropy": (
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: "
        "use binary_cross_entropy_with_logits"
    )
}

Kernel = Callable[..., Any]


def _castable(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "jax"
        and value.dtype in (torch.float16, torch.bfloat16, torch.float32)
    )


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map(lambda x: x.to(dtype) if _castable(x) else x, tree)


def _without_autocast(op: Kernel, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        return op(*_cast(args, dtype), **_cast(kwargs, dtype))


def _lower(op: Kernel) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _without_autocast(op, args, kwargs, torch.get_autocast_dtype("jax"))

    return kernel


def _float32(op: Kernel) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _without_autocast(op, args, kwargs, torch.float32)

    return kernel


def _widest(op: Kernel) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if _castable(x)]
        lower = torch.get_autocast_dtype("jax")
        wide = any(x.dtype == torch.float32 for x in tensors)
        return _without_autocast(op, args, kwargs, torch.float32 if wide else lower)

    return kernel


def _refuse(message: str) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(message)

    return kernel


def install(aten: torch.library.Library, everything: torch.library.Library) -> None:
    """Register the tables; every other operator passes autocast by."""
    everything.fallback(torch.library.fallthrough_kernel, KEY)
    for make, names in ((_lower, LOWER_PRECISION), (_float32, FLOAT32), (_widest, WIDEST)):
        for name in names:
            packet, _, overload = name.partition(".")
            found = getattr(torch.ops.aten, packet, None)
            op = getattr(found, overload or "default", None)
            if op is not None:
                aten.impl(name, make(op), KEY)
    for name, message in REFUSED.items():
        aten.impl(name, _refuse(message), KEY)
