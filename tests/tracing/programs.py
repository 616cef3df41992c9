"""Programs to trace that pytest must not rewrite: it changes the code of assertions."""

import torch


def asserts_a_positive_sum(x: torch.Tensor) -> torch.Tensor:
    assert x.sum() > 0, "negative"
    return x + 1


def asserts(x: torch.Tensor) -> torch.Tensor:
    """Two asserts of a tensor, with messages that need no values."""
    assert x.max() < 5, "too large"
    assert (x > -3).all(), "too small"
    return x + 1


def asserts_showing_values(x: torch.Tensor) -> torch.Tensor:
    """An assert of a tensor, with a message that needs its values."""
    assert x.max() < 5, f"not {x}"
    return x + 1
