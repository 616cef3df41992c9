"""Hints for PyTorch's own errors that are raised in a trace."""

_HINTS = (
    (
        TypeError,
        "can't convert jax:0 device type tensor to numpy",
        "inside calque.jit it has no value: return it, and call .cpu().numpy() on the result",
    ),
)


def add_hint(error: Exception) -> None:
    """Add a note to an error whose message would mislead the user."""
    for kind, words, hint in _HINTS:
        if isinstance(error, kind) and words in str(error):
            if hint not in getattr(error, "__notes__", ()):
                error.add_note(hint)
