"""Entries of PyTorch's operator database on which the device does not agree with the CPU.

Each is (operator, dtype, mode) with a reason. An entry that begins to pass fails the suite, so that
the table only ever shrinks; `mode` is a key of `tests.conformance.checks.CHECKS`.
"""

_SPARSE = "sparse tensors are not supported"
_COMPLEX32 = "JAX has no complex32"
_STATISTICS = "float32 on every device but the CPU, as torch._refs.native_layer_norm has it"
_SHAPES = "takes shapes, not tensors"
_CEPHES = "the CPU is off by 3e-7, the device by 1e-15 (tests/ops/test_bessel.py)"
_HOST_INDICES = "the comparison moves the indices, which PyTorch wants on the CPU"
_EMPTY_STRIDES = "an empty result has other strides"
_BUFFER = "PyTorch's result is a part of a larger buffer"

_EVERY_EAGER = ("float32", "int64", "bool", "float64", "bfloat16", "int32", "complex64")


def _gaps(
    reason: str, names: tuple[str, ...], **dtypes: tuple[str, ...]
) -> dict[tuple[str, str, str], str]:
    """The entries of some operators: for each mode its dtypes."""
    return {(n, d, mode): reason for n in names for mode, ds in dtypes.items() for d in ds}


_FLOAT = ("float32",)
_JIT = ("float32", "int64", "bool")

KNOWN_GAPS: dict[tuple[str, str, str], str] = {
    **_gaps(
        _SHAPES, ("broadcast_shapes",), eager=_FLOAT, jit=_FLOAT, strided=_FLOAT, layout=_FLOAT
    ),
    **_gaps(
        _SPARSE,
        ("sparse_sampled_addmm",),
        eager=("float32", "float64", "complex64"),
        jit=_FLOAT,
        grad=("float32", "complex64"),
        grad2=("float64",),
        strided=_FLOAT,
        layout=_FLOAT,
    ),
    **_gaps(
        _SPARSE,
        ("sparse_mm_reduce",),
        eager=("float32", "float64", "bfloat16"),
        jit=_FLOAT,
        grad=_FLOAT,
        strided=_FLOAT,
        layout=_FLOAT,
    ),
    **_gaps(
        _SPARSE,
        ("to_sparse",),
        eager=_EVERY_EAGER,
        jit=_JIT,
        grad=_FLOAT,
        grad2=("float64",),
        strided=_FLOAT,
        layout=_FLOAT,
    ),
    **_gaps(
        _COMPLEX32,
        ("chalf",),
        eager=_EVERY_EAGER,
        jit=_JIT,
        grad=("float32", "complex64"),
        grad2=("float64",),
        strided=_FLOAT,
        layout=_FLOAT,
    ),
    **_gaps(
        _STATISTICS,
        (
            "native_group_norm",
            "native_layer_norm",
            "native_batch_norm",
            "_native_batch_norm_legit",
            "_batch_norm_with_update",
        ),
        eager=("bfloat16",),
    ),
    **_gaps(_HOST_INDICES, ("tensor_split",), strided=_FLOAT, layout=_FLOAT),
    **_gaps(_SPARSE, ("sparse_sampled_addmm",), out=_FLOAT),
    **_gaps(_EMPTY_STRIDES, ("cholesky", "nn_functional_rms_norm"), layout=_FLOAT),
    **_gaps(_BUFFER, ("linalg_lstsq", "linalg_lstsq_grad_oriented"), layout=_FLOAT),
    **_gaps(_CEPHES, ("special_bessel_j0", "special_bessel_y1"), eager=("float64",)),
}
