"""XLA options for compiling one program, without changing the process."""

import os
from typing import Any

import jax

from calque.device.runtime.code_generation import Options, may_be_unknown
from calque.program.jaxprs import every

_OWN_CONVOLUTIONS: Options = may_be_unknown(
    {
        # One of XLA's two CPU libraries prepares each kernel in each call, which for small batches
        # takes longer than the convolution. In training, the other library is not faster.
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
    }
)
_LEAST_MEMORY: Options = may_be_unknown(
    {
        # By default, XLA orders operations so that as many as possible could run at once, and then
        # a training step holds up to twice the memory, which is new from the system at each call.
        "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    }
)

_LARGE = 1 << 16  # bytes of a large array


def options_of(jaxpr: object, only_computes: bool) -> Options:
    """Returns the options with which to compile a program, besides those of `schedule`.

    Args:
        jaxpr: the program.
        only_computes: whether it changes no state and computes no gradients.
    """
    return _chosen(_OWN_CONVOLUTIONS) if only_computes and _convolves(jaxpr) else {}


def schedule(jaxpr: Any = None) -> Options:
    """Returns the options for `jax.jit` that say in what order XLA runs a program's operations.

    Args:
        jaxpr: the program. One of small arrays only runs in XLA's own order, which can be faster;
            by default, its arrays count as large.
    """
    if jaxpr is not None and not _is_large(jaxpr):
        return {}
    return _chosen(_LEAST_MEMORY)


def _chosen(options: Options) -> Options:
    """Returns the options that the user has not set."""
    if jax.default_backend() != "cpu":
        return {}
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in options.items() if name not in flags}


def _is_large(jaxpr: Any) -> bool:
    made = (v for inner in every(jaxpr) for equation in inner.eqns for v in equation.outvars)
    return any(_bytes_of(variable.aval) >= _LARGE for variable in made)


def _bytes_of(aval: Any) -> int:
    size, dtype = getattr(aval, "size", 0), getattr(aval, "dtype", None)
    return size * getattr(dtype, "itemsize", 0) if isinstance(size, int) else 0


def _convolves(jaxpr: Any) -> bool:
    equations = (equation for inner in every(jaxpr) for equation in inner.eqns)
    return any(equation.primitive.name == "conv_general_dilated" for equation in equations)
