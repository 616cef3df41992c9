"""Operators that refuse complex numbers, integers, booleans or half precision, because PyTorch has
no CPU kernel for them.

Operators that also refuse other dtypes declare this beside their rules.
"""

from calque.ops.table.facts import facts, no_kernel, senseless
from calque.ops.table.promotion import BOOL, COMPLEX, HALF, INT

_KERNELS: dict[str, str] = {
    "bernoulli_scalar_cpu_": "bernoulli.p",
    "bernoulli_tensor_cpu_self_": "bernoulli bernoulli.Tensor",
    "fractional_max_pool2d_out_frame": "fractional_max_pool2d",
    "fractional_max_pool3d_out_frame": "fractional_max_pool3d",
    "histogramdd": (
        "histogram.bin_ct histogram.bins_tensor "
        "_histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors"
    ),
    "index_func_": "index_reduce",
    "log_normal_cpu": "log_normal",
    "poisson_cpu": "poisson",
    "prelu_cpu": "_prelu_kernel",
    "softmax_backward_lastdim_kernel_impl": "_softmax_backward_data",
    "softmax_kernel_impl": "_safe_softmax",
    "softmax_lastdim_kernel_impl": "scaled_dot_product_attention",
    "trigamma": "polygamma",
    "unique": "_unique _unique2 unique_dim unique_consecutive unique_dim_consecutive",
    "xor_sum_cpu": "hash_tensor",
}
"""PyTorch's kernels, and the operators that call them."""

_FLOATS_ONLY: dict[str, str] = {
    "adaptive_max_pool2d": "adaptive_max_pool2d",
    "adaptive_max_pool3d_cpu": "adaptive_max_pool3d",
    "batch_norm": "_batch_norm_with_update _batch_norm_with_update_functional",
    "max_unpool2d": "max_unpool2d",
    "max_unpool3d": "max_unpool3d",
    "dirichlet": "_sample_dirichlet",
    "gamma_cpu": "_standard_gamma",
    "multi_margin_loss_cpu_kernel": "multi_margin_loss",
    "multilabel_margin_loss_forward_out_frame": "multilabel_margin_loss_forward",
}
"""Those of floating-point numbers."""

_NUMBERS_ONLY: dict[str, str] = {
    "geometric_cpu": "geometric",
    "kthvalue_cpu": "kthvalue",
    "median_cpu": "median nanmedian",
    "median_out": "median.dim nanmedian.dim",
}
"""Those of real numbers, but not of booleans."""

_LAPACK: dict[str, str] = {
    "cholesky_cpu": "linalg_cholesky_ex",
    "geqrf_cpu": "geqrf linalg_qr",
    "linalg_eig_out_cpu": "linalg_eig _linalg_eigvals",
    "linalg_lstsq_cpu": "linalg_lstsq",
    "linalg_svd_cpu": "_linalg_svd",
    "lu_cpu": ("linalg_inv_ex linalg_lu_factor_ex _linalg_det _linalg_slogdet _linalg_solve_ex"),
    "orgqr_cpu": "linalg_householder_product",
    "ormqr_cpu": "ormqr",
}
"""Those of LAPACK, which has no half precision."""

for _table, _refused in (
    (_KERNELS, (COMPLEX,)),
    (_FLOATS_ONLY, (BOOL, INT, COMPLEX)),
    (_NUMBERS_ONLY, (BOOL, COMPLEX)),
    (_LAPACK, (HALF,)),
):
    for _kernel, _operators in _table.items():
        facts(_operators, refuses=no_kernel(_kernel, *_refused))
facts("im2col", refuses=no_kernel("im2col_out_cpu", INT))
facts("trace", refuses=no_kernel("trace", BOOL))
facts("vdot", refuses=no_kernel("dot", BOOL))
facts(
    "mvlgamma",
    refuses=(
        senseless("The input tensor may not be a boolean tensor.", BOOL),
        no_kernel("arange_cpu", COMPLEX),
    ),
)
facts(
    "cauchy",
    refuses=(
        senseless("dtype must be a floating point but you specified an integer", BOOL, INT),
        senseless("dtype must be a floating point but you specified a complex one", COMPLEX),
    ),
)
facts(
    "topk",
    refuses=(
        senseless("topk does not support bool dtypes on CPU", BOOL),
        senseless("topk does not support complex dtypes on CPU", COMPLEX),
    ),
)
facts(
    "_embedding_bag _embedding_bag_forward_only",
    refuses=senseless("the weight has to be of floating point", BOOL, INT, COMPLEX),
)
facts(
    "searchsorted.Tensor searchsorted.Scalar bucketize.Tensor bucketize.Scalar",
    refuses=no_kernel("searchsorted_out_cpu", BOOL, COMPLEX, pair=True),
)
