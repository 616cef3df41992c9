"""The dtypes of the device, and the mapping between PyTorch's and JAX's dtypes."""

import ml_dtypes
import numpy as np
import torch

TO_NUMPY: dict[torch.dtype, np.dtype] = {
    torch.bool: np.dtype(bool),
    torch.uint8: np.dtype("uint8"),
    torch.uint16: np.dtype("uint16"),
    torch.uint32: np.dtype("uint32"),
    torch.uint64: np.dtype("uint64"),
    torch.int8: np.dtype("int8"),
    torch.int16: np.dtype("int16"),
    torch.int32: np.dtype("int32"),
    torch.int64: np.dtype("int64"),
    torch.float16: np.dtype("float16"),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float32: np.dtype("float32"),
    torch.float64: np.dtype("float64"),
    torch.complex64: np.dtype("complex64"),
    torch.complex128: np.dtype("complex128"),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
    torch.float8_e8m0fnu: np.dtype(ml_dtypes.float8_e8m0fnu),
}
TO_TORCH: dict[np.dtype, torch.dtype] = {numpy: dtype for dtype, numpy in TO_NUMPY.items()}


def to_numpy(dtype: torch.dtype) -> np.dtype:
    """Returns the numpy dtype of a PyTorch dtype.

    Raises:
        TypeError: JAX has no such dtype (quantized types, complex32, sub-byte types).
    """
    try:
        return TO_NUMPY[dtype]
    except KeyError:
        raise TypeError(f"the jax device does not support dtype {dtype}") from None


def to_torch(dtype: np.dtype) -> torch.dtype:
    """Returns the PyTorch dtype of a numpy or JAX dtype.

    Raises:
        TypeError: PyTorch has no such dtype (int4, float8_e3m4, PRNG keys).
    """
    try:
        return TO_TORCH[dtype]
    except KeyError:
        raise TypeError(f"PyTorch has no dtype for JAX's {dtype}") from None
