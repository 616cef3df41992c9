"""Programs to trace that pytest must not rewrite: it changes the code of assertions."""

import torch


def asserts_a_positive_sum(x: torch.Tensor) -> torch.Tensor:
    assert x.sum() > 0, "negative"
    return x + 1
