"""Hints for PyTorch's and JAX's own errors, which calque can only explain when they are printed.

PyTorch's C++ parses the name of a device, and JAX the arguments of `jax.jit`, so that no code of
calque runs.
"""

import re

_NAME = (
    'The device of calque is "jax" (the same as "jax:0"). JAX chooses whether that is a CPU, a GPU '
    "or a TPU: JAX_PLATFORMS=cpu, cuda or tpu."
)
_CUDA = (
    'With calque, write "jax" in place of "cuda", or run the script unchanged: calque run script.py'
)
_BACKEND = 'The backend of calque is "calque": torch.compile(fn, backend="calque")'
_TENSOR = (
    "Make a tensor of an array of JAX by calque.to_torch(array), and a JAX function of a module or "
    "a PyTorch function by calque.functional(fn)."
)
_ARRAY = (
    "JAX takes calque.to_jax(tensor). To transform PyTorch code with jax.jit or jax.grad, make a "
    "JAX function of it: apply, params = calque.functional(fn). To compile it as it is, use "
    "calque.jit(fn)."
)

# The class of an error, a pattern in its text, and the hint.
_HINTS = (
    ("RuntimeError", r"at start of device string: ", _NAME),
    ("RuntimeError", r"^Invalid device string: '(jax|[a-z]+:jax)", _NAME),
    ("NotImplementedError", r"^Could not run '.*' with arguments from the 'XLA' ", _NAME),
    ("AssertionError", r"^Torch not compiled with CUDA enabled", _CUDA),
    ("RuntimeError", r"^(Found no NVIDIA driver|No CUDA GPUs are available)", _CUDA),
    (
        "RuntimeError",
        r"^Attempting to deserialize object on a CUDA device but",
        'Load it with map_location="jax", or "cpu".',
    ),
    ("InvalidBackend", r"^Invalid backend: '(jax|xla|tpu)'", _BACKEND),
    ("BackendCompilerFailed", r"to install torch_xla", _BACKEND),
    ("TypeError", r"must be Tensor, not (\w*Tracer|jaxlib\S*ArrayImpl)$", _TENSOR),
    (
        "TypeError",
        r"^unsupported operand .*'(Tensor|Parameter)' and '(jaxlib\S*ArrayImpl|\w*Tracer)'",
        _TENSOR,
    ),
    ("TypeError", r"type <class 'torch\.(Tensor|nn\.parameter\.Parameter)'>", _ARRAY),
)
_REGISTERED = r"\n+(\w+: (fallthrough )?registered at .*\n?)+"
"""PyTorch's list of the devices that have an operator, about sixty lines."""


def add_hint(error: Exception) -> bool:
    """Add a note with a remedy to an error of PyTorch or JAX.

    Returns:
        Whether there is a hint for it.
    """
    for kind, pattern, hint in _HINTS:
        if type(error).__name__ == kind and re.search(pattern, text := str(error)):
            error.add_note(hint)
            if re.search(_REGISTERED, text):
                error.args = (re.sub(_REGISTERED, "\n", text).rstrip(),)
            return True
    return False
