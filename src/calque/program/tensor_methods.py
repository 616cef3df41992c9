"""Methods of tensors that also take traced numbers, while a function is traced with some."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from calque.program import moving_indexes, whole_operands

Tensor = torch.Tensor


def _setitem(self: Any, index: Any, value: Any) -> None:
    whole_operands.written(moving_indexes.METHODS["__setitem__"], self, index, value)


_METHODS: dict[str, Callable[..., Any]] = {
    **moving_indexes.METHODS,
    **whole_operands.OPERATORS,
    "__setitem__": _setitem,
}
_lock = threading.Lock()


class _Installed:
    """The number of traces in which tensors take traced numbers, and the methods that
    the class of tensors, rather than its base, had before.
    """

    count = 0
    own: dict[str, Any] = {}


@contextmanager
def taking_numbers() -> Iterator[None]:
    """A context manager in which tensors take traced numbers."""
    with _lock:
        _Installed.count += 1
        if _Installed.count == 1:
            _Installed.own = {n: m for n, m in vars(Tensor).items() if n in _METHODS}
            for name, method in _METHODS.items():
                setattr(Tensor, name, method)
    try:
        yield
    finally:
        with _lock:
            _Installed.count -= 1
            if _Installed.count == 0:
                for name in _METHODS:
                    if name in _Installed.own:
                        setattr(Tensor, name, _Installed.own[name])
                    else:
                        delattr(Tensor, name)
