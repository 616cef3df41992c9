"""The precision of float32 products and convolutions on accelerators.

GPUs and TPUs have units for shorter floats (TF32, bfloat16), which XLA uses by default for float32
operands. CPUs have none, and rules run there without a scope.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax import lax


class _Scope(threading.local):
    convolutions: lax.Precision | None = None


_scope = _Scope()


@contextmanager
def scope(products: lax.Precision, convolutions: lax.Precision) -> Iterator[None]:
    """Applies rules with a precision for products, and another for convolutions."""
    before = _scope.convolutions
    _scope.convolutions = convolutions
    try:
        with jax.default_matmul_precision(products.name.lower()):
            yield
    finally:
        _scope.convolutions = before


def of_convolutions() -> lax.Precision | None:
    """Returns the precision for convolutions; None for JAX's setting."""
    return _scope.convolutions
