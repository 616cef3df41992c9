"""The names of `torch.fx.experimental`; its tracers are calque's where this package has them."""

import torch.fx.experimental as _theirs


def __getattr__(name: str) -> object:
    """Returns any other name of torch's package."""
    return getattr(_theirs, name)
