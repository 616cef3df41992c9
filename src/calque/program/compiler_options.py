"""XLA options for compiling one program, without changing the process."""

from typing import Any

import jax
from jax.errors import JaxRuntimeError

from calque.upstream.jax_internals import jaxprs_in_params

Options = dict[str, Any]

_OWN_CONVOLUTIONS: Options = {
    # One of XLA's two CPU libraries prepares each kernel in each call, which for small batches
    # takes longer than the convolution. In training, the other library is not faster.
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
}
_refused: set[str] = set()


def options_of(jaxpr: object, only_computes: bool) -> Options:
    """Returns the options for a program.

    Args:
        jaxpr: the program.
        only_computes: whether it changes no state and computes no gradients.
    """
    cpu = jax.default_backend() == "cpu"
    return _OWN_CONVOLUTIONS if cpu and only_computes and _convolves(jaxpr) else {}


def compile_with(lowered: Any, options: Options) -> jax.stages.Compiled:
    """Compiles a lowered program, with those options that this XLA supports."""
    known = {name: value for name, value in options.items() if name not in _refused}
    if not known:
        return lowered.compile()
    try:
        return lowered.compile(compiler_options=known)
    except JaxRuntimeError:
        made = lowered.compile()  # raises again if there is a different cause
        _refused.update(known)
        return made


def _convolves(jaxpr: Any) -> bool:
    return any(
        equation.primitive.name == "conv_general_dilated"
        or any(_convolves(getattr(one, "jaxpr", one)) for one in jaxprs_in_params(equation.params))
        for equation in jaxpr.eqns
    )
