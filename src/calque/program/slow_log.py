"""Logs operations that take long."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger: logging.Logger = logging.getLogger("calque.jit")
_DELAY_S = 3.0


@contextmanager
def announced(what: str) -> Iterator[None]:
    """A context manager that logs a line if its body takes more than three seconds."""
    timer = threading.Timer(_DELAY_S, logger.warning, (f"{what} takes a while ...",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
