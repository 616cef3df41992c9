"""Entries of PyTorch's operator database on which the device does not agree with the CPU.

Each is (operator, dtype, mode) with a reason. An entry that begins to pass fails the suite, so that
the table only ever shrinks; `mode` is a key of `tests.conformance.checks.CHECKS`.
"""

_SPARSE = "sparse tensors are not supported"
_STORAGE = "the comparison moves a view to the device without the rest of its storage"
_ROUNDING = "integers round from a value computed in another order"
_TIES = "the index of one of several equal values is another"
_HOST_INDICES = "the comparison moves the indices, which PyTorch wants on the CPU"
_EMPTY_STRIDES = "an empty result has other strides"
_BUFFER = "PyTorch's result is a part of a larger buffer"

KNOWN_GAPS: dict[tuple[str, str, str], str] = {
    ("argsort", "bool", "eager"): _TIES,
    ("as_strided_partial_views", "bool", "eager"): _STORAGE,
    ("as_strided_partial_views", "float32", "eager"): _STORAGE,
    ("as_strided_partial_views", "float32", "grad"): _STORAGE,
    ("as_strided_partial_views", "int64", "eager"): _STORAGE,
    ("broadcast_shapes", "float32", "eager"): "takes shapes, not tensors",
    ("kthvalue", "int64", "eager"): _TIES,
    ("grid_sampler_3d", "float32", "grad"): "one gradient in 79,200 is off by 5e-4",
    ("linspace", "int64", "eager"): _ROUNDING,
    ("linspace_tensor_overload", "int64", "eager"): _ROUNDING,
    ("mode", "bool", "eager"): _TIES,
    ("mode", "int64", "eager"): _TIES,
    ("nn_functional_fractional_max_pool3d", "float32", "eager"): "fails on an empty batch",
    ("nn_functional_fractional_max_pool3d", "float32", "grad"): "fails on an empty batch",
    ("sort", "bool", "eager"): _TIES,
    ("sparse_mm_reduce", "float32", "eager"): _SPARSE,
    ("sparse_mm_reduce", "float32", "grad"): _SPARSE,
    ("sparse_sampled_addmm", "float32", "eager"): _SPARSE,
    ("sparse_sampled_addmm", "float32", "grad"): _SPARSE,
    ("to_sparse", "bool", "eager"): _SPARSE,
    ("to_sparse", "float32", "eager"): _SPARSE,
    ("to_sparse", "float32", "grad"): _SPARSE,
    ("to_sparse", "int64", "eager"): _SPARSE,
    ("topk", "int64", "eager"): _TIES,
    ("tensor_split", "bool", "eager"): _HOST_INDICES,
    ("tensor_split", "float32", "eager"): _HOST_INDICES,
    ("tensor_split", "float32", "grad"): _HOST_INDICES,
    ("tensor_split", "int64", "eager"): _HOST_INDICES,
    ("as_strided_partial_views", "float32", "layout"): _STORAGE,
    ("broadcast_shapes", "float32", "layout"): "takes shapes, not tensors",
    ("chalf", "float32", "layout"): "the device has no complex32",
    ("cholesky", "float32", "layout"): _EMPTY_STRIDES,
    ("linalg_lstsq", "float32", "layout"): _BUFFER,
    ("linalg_lstsq_grad_oriented", "float32", "layout"): _BUFFER,
    ("nn_functional_rms_norm", "float32", "layout"): _EMPTY_STRIDES,
    ("sparse_mm_reduce", "float32", "layout"): _SPARSE,
    ("sparse_sampled_addmm", "float32", "layout"): _SPARSE,
    ("sparse_sampled_addmm", "float32", "out"): _SPARSE,
    ("tensor_split", "float32", "layout"): _HOST_INDICES,
    ("to_sparse", "float32", "layout"): _SPARSE,
}
