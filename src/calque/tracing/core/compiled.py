"""Functions and modules of `torch.compile` within a program that is traced."""

import contextlib
import sys
from typing import Any

import torch


def as_written() -> contextlib.AbstractContextManager[Any]:
    """Inside this context, functions of `torch.compile` run as they were before, to be traced."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled; importing it takes seconds
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")
