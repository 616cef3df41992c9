"""Which modules behave differently in training, as far as their code shows."""

import functools
from types import CodeType, FunctionType

import torch


@functools.lru_cache(maxsize=4096)
def reads_training(kind: type[torch.nn.Module]) -> bool:
    """Returns True if a method of the class, or of a base other than `nn.Module` and the classes
    of graphs, reads `.training`.

    >>> reads_training(torch.nn.Linear), reads_training(torch.nn.Dropout)
    (False, True)
    """
    return any(
        isinstance(member, FunctionType) and _names_training(member.__code__)
        for base in kind.__mro__
        if base is not torch.nn.Module and not base.__module__.startswith(("torch.fx", "calque."))
        for member in vars(base).values()
    )


def _names_training(code: CodeType) -> bool:
    return "training" in code.co_names or any(
        _names_training(constant) for constant in code.co_consts if isinstance(constant, CodeType)
    )
