"""Methods of tensors that also take traced numbers, while a function is traced with some."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from calque.program import moving_indexes, whole_operands
from calque.program.function_modes import FunctionMode, called_by_calque
from calque.program.number_parameters import PARAMETERS, taken
from calque.program.number_stand_ins import called, takes_numbers

Tensor = torch.Tensor


class _Indexing(FunctionMode):
    """A mode in which traced numbers are positions in tensors, and parameters of functions.

    It is no method of the class of tensors: `Tensor.__getitem__`, once set, would make sequences
    of all tensors, also after it is deleted (`torch.tensor([x[0], x[1]])` would raise).
    """

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """See `FunctionMode.call`."""
        if func is _GET:
            return moving_indexes.getitem(*args)
        if func is _SET:
            return whole_operands.written(moving_indexes.setitem, *args)
        if func in _ASKING and not called_by_calque():
            moving_indexes.refuse_moving(args)
        parameters = PARAMETERS.get(func)
        if not takes_numbers(args, kwargs):
            return func(*args, **kwargs)
        if parameters:
            with self:  # which sees the function again, with its other numbers
                found = taken(parameters, func, args, kwargs)
            if found is not None:
                return found
        return called(func, args, kwargs, self)


_GET, _SET = Tensor.__getitem__, Tensor.__setitem__
_ASKING = frozenset((Tensor.storage_offset, Tensor.data_ptr, Tensor.is_set_to))
_METHODS: dict[str, Callable[..., Any]] = moving_indexes.METHODS | whole_operands.OPERATORS
_ORIGINALS = {name: getattr(Tensor, name) for name in _METHODS}
_lock = threading.Lock()


class _Installed:
    """The number of traces in which tensors take traced numbers, and the methods that the class of
    tensors had before; None for those of its base.
    """

    count = 0
    before: dict[str, Any] = {}


@contextmanager
def taking_numbers() -> Iterator[None]:
    """A context manager in which tensors take traced numbers; methods that a program has replaced
    stay.
    """
    with _lock:
        _Installed.count += 1
        if _Installed.count == 1:
            own = [name for name in _METHODS if getattr(Tensor, name) is _ORIGINALS[name]]
            _Installed.before = {name: vars(Tensor).get(name) for name in own}
            for name in own:
                setattr(Tensor, name, _METHODS[name])
    try:
        with _Indexing():
            yield
    finally:
        with _lock:
            _Installed.count -= 1
            if _Installed.count == 0:
                _restore()


def _restore() -> None:
    for name, before in _Installed.before.items():
        if vars(Tensor).get(name) is not _METHODS[name]:
            continue
        if before is None:
            delattr(Tensor, name)
        else:
            setattr(Tensor, name, before)
