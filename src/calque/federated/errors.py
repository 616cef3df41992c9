"""The form of federated errors: the user's line, what does not fit, and a remedy."""

from calque.errors import FederatedTypeError, Origin, user_origin


class FederatedFieldError(FederatedTypeError, AttributeError):
    """A struct has no such field; also an `AttributeError`, so that `hasattr` is False."""


def type_error(
    what: str,
    remedy: str,
    kind: type[FederatedTypeError] = FederatedTypeError,
    origin: Origin | None = None,
) -> FederatedTypeError:
    """The error for types that do not fit, at the user's line.

    Args:
        what: what does not fit, with both types, without a full stop.
        remedy: what to do instead, as a sentence.
        kind: the class of the error.
        origin: the user's line; the one that runs now by default.
    """
    origin = origin or user_origin()
    place = f"{origin}: " if origin else ""
    stop = "" if what.endswith("^") else "."
    return kind(f"{place}{what}{stop}\n{remedy}")
