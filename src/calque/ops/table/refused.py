"""Dtypes that PyTorch's CPU kernels refuse and JAX would compute: a table, checked before a rule.

Half precision is not among them: that a CPU lacks a kernel for it makes no argument bad.
"""

from collections.abc import Iterable
from typing import Any

from jax import Array

from calque.ops.table.promotion import BOOL, COMPLEX, FLOAT, INT, category, result_type, spoken

_WHOLE = (BOOL, INT)
_UNREAL = (BOOL, INT, COMPLEX)

FIRST: dict[str, tuple[str, tuple[int, ...]]] = {
    "abs": ("abs_cpu", (BOOL,)),
    "threshold": ("threshold_cpu", (BOOL, COMPLEX)),
    "leaky_relu": ("leaky_relu_cpu", _UNREAL),
    "hardshrink": ("hardshrink_cpu", _UNREAL),
    "softshrink": ("softshrink_cpu", _UNREAL),
    "rrelu_with_noise": ("leaky_relu_cpu", _UNREAL),
    "frac": ("frac_cpu", _UNREAL),
    "erf": ("erf_vml_cpu", (COMPLEX,)),
    "erfc": ("erfc_vml_cpu", (COMPLEX,)),
    "erfinv": ("erfinv_vml_cpu", (COMPLEX,)),
    "lgamma": ("lgamma_vml_cpu", (COMPLEX,)),
    "digamma": ("digamma", (COMPLEX,)),
    "i0": ("i0_vml_cpu", (COMPLEX,)),
    "logit": ("logit_cpu", (COMPLEX,)),
    "sign": ("sign_cpu (use torch.sgn)", (COMPLEX,)),
    "_linalg_eigh": ("linalg_eigh_cpu", _WHOLE),
    "linalg_lu": ("lu_cpu", _WHOLE),
    "native_layer_norm": ("LayerNormKernelImpl", _UNREAL),
    "native_group_norm": ("GroupNormKernelImpl", _UNREAL),
    "native_batch_norm": ("batch_norm", _UNREAL),
    "_native_batch_norm_legit": ("batch_norm", _UNREAL),
    "_fused_rms_norm": ("rms_norm", _WHOLE),
    "dot": ("dot", (BOOL,)),
    "mm": ("addmm_impl_cpu_", (BOOL,)),
    "convolution": ("slow_conv2d_cpu", (BOOL,)),
    "convolution_overrideable": ("slow_conv2d_cpu", (BOOL,)),
    "histc": ("histogram_cpu", (BOOL, COMPLEX)),  # as accelerators do
    "avg_pool2d": ("avg_pool2d", (BOOL, COMPLEX)),
    "avg_pool3d": ("avg_pool3d_out_frame", (BOOL, COMPLEX)),
    "_adaptive_avg_pool2d": ("adaptive_avg_pool2d", _UNREAL),
    "_adaptive_avg_pool3d": ("adaptive_avg_pool3d_cpu", _UNREAL),
    "max_pool2d_with_indices": ("max_pool2d", (BOOL, COMPLEX)),
    "max_pool3d_with_indices": ("max_pool3d", (BOOL, COMPLEX)),
    "upsample_linear1d": ("compute_indices_weights_linear", _UNREAL),
    "upsample_trilinear3d": ("compute_indices_weights_linear", _UNREAL),
    "binary_cross_entropy": ("binary_cross_entropy", _UNREAL),
    "nll_loss_forward": ("nll_loss_out_frame", _UNREAL),
    "nll_loss2d_forward": ("nll_loss2d_forward_out_frame", _UNREAL),
    "_ctc_loss": ("ctc_loss_cpu", _UNREAL),
    "bincount": ("bincount_cpu", (FLOAT, COMPLEX)),
    "repeat_interleave.Tensor": ("repeat_interleave_cpu", (FLOAT, COMPLEX)),
}
"""By operator (or overload): its kernel's name, and the categories its first tensor may not be."""

PAIRS: dict[str, tuple[str, tuple[int, ...]]] = {
    "gcd": ("gcd_cpu", (FLOAT, COMPLEX)),
    "lcm": ("lcm_cpu", (FLOAT, COMPLEX)),
    "atan2": ("atan2_cpu", (COMPLEX,)),
    "hypot": ("hypot_cpu", _UNREAL),
    "nextafter": ("nextafter_cpu", _UNREAL),
    "copysign": ("copysign_cpu", (COMPLEX,)),
    "xlogy": ("xlogy_cpu", (COMPLEX,)),
    "mse_loss": ("mse_cpu", _WHOLE),
    "smooth_l1_loss": ("smooth_l1_cpu", _UNREAL),
    "huber_loss": ("huber_cpu", _UNREAL),
}
"""Likewise, for the common dtype of the first two arguments."""

ARGUMENTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "isposinf": ("isposinf does not support complex inputs.", (COMPLEX,)),
    "isneginf": ("isneginf does not support complex inputs.", (COMPLEX,)),
    "deg2rad": ("deg2rad is not supported for complex tensors.", (COMPLEX,)),
    "rad2deg": ("rad2deg is not supported for complex tensors.", (COMPLEX,)),
    "maximum": ("maximum not implemented for complex tensors.", (COMPLEX,)),
    "minimum": ("minimum not implemented for complex tensors.", (COMPLEX,)),
    "fmax": ("fmax not implemented for complex tensors.", (COMPLEX,)),
    "fmin": ("fmin not implemented for complex tensors.", (COMPLEX,)),
    "heaviside": ("heaviside is not yet implemented for complex tensors.", (COMPLEX,)),
    "argmax": ("does not support complex input", (COMPLEX,)),
    "argmin": ("does not support complex input", (COMPLEX,)),
    "isin": ("Unsupported input type encountered for isin(): ComplexFloat", (COMPLEX,)),
    "_cdist_forward": ("cdist only supports floating-point dtypes, X1 got an integer", _WHOLE),
    "multinomial": ("multinomial only supports floating-point dtypes for input", _WHOLE),
    "exponential": ("its dtype must be a floating point but you specified an integer", _WHOLE),
    "native_dropout": ("result type Float can't be cast to an integer type", _WHOLE),
}
"""Operators whose arguments PyTorch checks itself, with a RuntimeError."""


def check(name: str, args: Iterable[Any]) -> None:
    """Raise what PyTorch raises for the dtypes of a rule's arguments.

    Raises:
        NotImplementedError: PyTorch has no kernel for the dtype.
        RuntimeError: PyTorch says that the dtype makes no sense.
    """
    short = name.removeprefix("aten::")
    base = short.partition(".")[0]
    entry = FIRST.get(short) or FIRST.get(base)
    pair = PAIRS.get(base)
    argument = ARGUMENTS.get(base)
    if entry is None and pair is None and argument is None:
        return
    arrays = [a for a in args if isinstance(a, Array)]
    if not arrays:
        return
    if pair is not None:
        entry, dtype = pair, result_type(*arrays[:2])
    else:
        dtype = arrays[0].dtype
    if argument is not None and category(dtype) in argument[1]:
        raise RuntimeError(f"{base}: {argument[0]}")
    if entry is not None and category(dtype) in entry[1]:
        raise NotImplementedError(f"\"{entry[0]}\" not implemented for '{spoken(dtype)}'")
