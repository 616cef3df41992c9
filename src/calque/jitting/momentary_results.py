"""Refuses results that only one call could give: coroutines, iterators, arrays of JAX."""

import weakref
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator

from jax.core import Tracer

from calque.errors import unrepeatable


def refuse_momentary(value: object) -> None:
    """Raise TraceError if a returned or stored value is one of these."""
    if type(value) in weakref.ProxyTypes:
        raise unrepeatable(
            "the function returns or stores a weakref.proxy of a tensor",
            "which cannot be told from the tensor",
            "Use weakref.ref.",
        )
    if isinstance(value, Awaitable | AsyncIterator):
        code = getattr(value, "cr_code", None) or getattr(value, "ag_code", None)
        made = f", of {code.co_filename}:{code.co_firstlineno}," if code else ""
        if isinstance(value, Coroutine):
            value.close()  # it will not be awaited
        raise unrepeatable(
            f"the function returns or stores a {type(value).__name__}{made}",
            "which would run in only one call",
            "Jit the function that it awaits, which returns tensors.",
        )
    if isinstance(value, Iterator):
        code = getattr(value, "gi_code", None)
        made = f", of {code.co_filename}:{code.co_firstlineno}," if code else ""
        raise unrepeatable(
            f"the function returns or stores a {type(value).__name__}{made}",
            "which would yield its items in only one call",
            "Return a list of the items.",
        )
    if isinstance(value, Tracer):
        raise unrepeatable(
            f"the function returns or stores an array of JAX of shape {value.shape}",
            "which has no values while the function is traced",
            "Make it a tensor, with calque.to_torch(array), and take calque.to_jax(tensor) "
            "of what the call gives.",
        )
