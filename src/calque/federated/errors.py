"""The form of federated errors: the user's line, what is wrong, and a remedy."""

import traceback

from calque.errors import FederatedTypeError, Origin, user_origin
from calque.errors.frames import is_library


class FederatedFieldError(FederatedTypeError, AttributeError):
    """A struct has no such field. This is also an `AttributeError`, so that `hasattr` returns
    False.
    """


def type_error(
    what: str,
    remedy: str,
    kind: type[FederatedTypeError] = FederatedTypeError,
    origin: Origin | None = None,
) -> FederatedTypeError:
    """Returns the error for types that do not match, at the user's line.

    Args:
        what: what is wrong, with both types, without a full stop.
        remedy: the remedy, as a sentence.
        kind: the class of the error.
        origin: the user's line; by default the running one.
    """
    origin = origin or user_origin()
    place = f"{origin}: " if origin else ""
    stop = "" if what.endswith("^") else "."
    return kind(f"{place}{what}{stop}\n{remedy}")


def innermost_origin(error: BaseException) -> Origin | None:
    """Returns the innermost of the user's lines in an error's traceback; None if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_library(frame.filename)]
    return Origin(own[-1].filename, own[-1].lineno or 0, own[-1].name) if own else None
