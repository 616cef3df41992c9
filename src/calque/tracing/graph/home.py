"""The module that a graph module takes its members from."""

from typing import Any

import torch


def home(tracer: Any) -> torch.nn.Module:
    """A module with the members of the root and the constants; the user's own is not touched.

    Args:
        tracer: has the `root` that was traced, and the constants in `kept`, by name.
    """
    made = torch.nn.Module()
    vars(made).update(vars(tracer.root))
    for members in ("_parameters", "_buffers", "_modules"):
        vars(made)[members] = dict(vars(tracer.root)[members])
    for name, value in tracer.kept.items():
        setattr(made, name, value)
    return made
