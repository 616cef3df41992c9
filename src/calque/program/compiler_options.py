"""XLA options for compiling one program, without changing the process."""

import os
from typing import Any

import jax

from calque.device.runtime.code_generation import Options, may_be_unknown
from calque.upstream.jax_internals import jaxprs_in_params

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


def options_of(jaxpr: object, only_computes: bool) -> Options:
    """Returns the options with which to compile a program, besides those of `schedule`.

    Args:
        jaxpr: the program.
        only_computes: whether it changes no state and computes no gradients.
    """
    return _chosen(_OWN_CONVOLUTIONS) if only_computes and _convolves(jaxpr) else {}


def schedule() -> Options:
    """Returns the options of every program, for `jax.jit`: how XLA orders its operations."""
    return _chosen(_LEAST_MEMORY)


def _chosen(options: Options) -> Options:
    """Returns the options that the user has not set."""
    if jax.default_backend() != "cpu":
        return {}
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in options.items() if name not in flags}


def _convolves(jaxpr: Any) -> bool:
    return any(
        equation.primitive.name == "conv_general_dilated"
        or any(_convolves(getattr(one, "jaxpr", one)) for one in jaxprs_in_params(equation.params))
        for equation in jaxpr.eqns
    )
