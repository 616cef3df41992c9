"""Explains the errors of local functions that PyTorch and JAX raise."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from calque.errors import CalqueError
from calque.federated.errors import innermost_origin

_DESCRIPTIONS = {
    "torch": "PyTorch: its arguments are tensors. For a JAX function, pass framework='jax'.",
    "jax": "JAX: its arguments are arrays. For a PyTorch function, leave framework='jax' out.",
}
_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@contextmanager
def explained(name: str, framework: str) -> Iterator[None]:
    """A context manager in which a local function runs; it adds notes to what is raised.

    Args:
        name: the name of the function.
        framework: the framework in which it is written.
    """
    try:
        yield
    except CalqueError:
        raise
    except _NEEDS_VALUES as error:
        error.add_note(
            f"{_line_of(error)}the local function {name!r} needs a value that does not exist while "
            "the function is traced.\nDecide with jax.numpy.where or jax.lax.cond, loop with "
            "jax.lax.fori_loop, and use functions of jax.numpy, with fixed sizes."
        )
        raise
    except AttributeError as error:
        if isinstance(error.obj, dict) and error.name in error.obj:
            error.add_note(
                f"{_line_of(error)}a struct with names is a dict in a local function: write "
                f"[{error.name!r}] for .{error.name}."
            )
        raise
    except TypeError as error:
        if "Tracer" in str(error) or "torch.Tensor" in str(error):
            error.add_note(f"{name!r} is a local function of {_DESCRIPTIONS[framework]}")
        raise


def _line_of(error: BaseException) -> str:
    """Returns the user's line that raised an error, with a colon; nothing if there is none."""
    origin = innermost_origin(error)
    return f"{origin}: " if origin else ""
