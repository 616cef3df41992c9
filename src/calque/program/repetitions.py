"""Shortens a program by turning repetitions into calls or loops."""

from jax.extend.core import ClosedJaxpr

from calque.errors import TraceError
from calque.program.called_repeats import called
from calque.program.scanned_repeats import scanned


def shortened(closed: ClosedJaxpr, scan_layers: bool, calls: bool) -> ClosedJaxpr:
    """Returns an equivalent jaxpr that contains each repetition once.

    Args:
        closed: the jaxpr.
        scan_layers: whether equal layers become a loop.
        calls: whether repetitions may become calls.

    Raises:
        TraceError: `scan_layers` is True, but no layers are equal.
    """
    if scan_layers:
        closed, loops = scanned(closed)
        if not loops:
            raise TraceError(_NO_LAYERS)
    return called(closed) if calls else closed


_NO_LAYERS = (
    "calque.jit(..., scan_layers=True) found no equal layers in a row. Layers are equal if they "
    "do the same operations with weights of the same shapes and dtypes, and each takes the "
    "result of the one before. Leave the option out, or see where the layers differ in "
    "`calque.jit(step).lower(...).as_text()`."
)
