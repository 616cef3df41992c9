"""NumPy arrays among the arguments that differ between calls.

While a function is traced, a `TracedArray` stands for such an array. What the function computes
from it with NumPy, each call repeats; a tensor made of it is computed in each call, like those of
CPU tensors. If code needs the array otherwise, its values are compared.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

from calque.program.traced_numbers import TracedFloat
from calque.state.stand_ins import StandIn, StandInValue
from calque.upstream.torch_internals import pytree

_PLAIN = frozenset((int, float, complex, bool, str, type(None), type(...)))
_SHAPES = ("shape", "dtype", "ndim", "size", "itemsize", "nbytes", "strides")
_METHODS = frozenset(
    name for name, one in vars(np.ndarray).items() if callable(one) and not name.startswith("_")
)
"""Those that write to the array raise, because it is read-only in the trace."""
_MAKING = (np.array, np.asarray, np.ascontiguousarray)


Refuse = Callable[[], NoReturn]


class Computes(Protocol):
    """What computes arrays and tensors in each call."""

    def array(self, func: Any, operands: list[Any], spec: Any, result: np.ndarray) -> Any:
        """Returns the formula of an array."""

    def number(self, node: Any) -> Any:
        """Returns the formula of a traced number."""

    def constant_array(self, array: np.ndarray) -> Any:
        """Returns the formula of an array that is the same in each call."""

    def tensor(self, formula: Any, array: np.ndarray) -> torch.Tensor:
        """Returns the tensor over an array."""
        ...


class TracedArray(NDArrayOperatorsMixin, StandInValue):
    """An array whose values differ between calls.

    Args:
        value: the array of the trace.
        formula: computes it in each call.
        computes: computes others from it.
        refuse: raises the error that has its values compared.
    """

    def __init__(self, value: np.ndarray, formula: Any, computes: Computes, refuse: Refuse) -> None:
        held: tuple[np.ndarray, Any, Computes, Refuse] = value, formula, computes, refuse
        object.__setattr__(self, "_held", held)

    @property
    def __class__(self) -> Any:  # for `isinstance`
        return np.ndarray

    def __getattr__(self, name: str) -> Any:
        if name in _SHAPES:
            return getattr(self._held[0], name)
        if name in _METHODS:
            return partial(_repeated, getattr(np.ndarray, name), self)
        if name == "T":
            return _repeated(np.transpose, self)
        self._give_up()

    def __len__(self) -> int:
        return len(self._held[0])

    def __getitem__(self, index: Any) -> Any:
        return _repeated(np.ndarray.__getitem__, self, index)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **options: Any) -> Any:
        if method != "__call__" or "out" in options:
            self._give_up()
        return _repeated(function, *args, **options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return _repeated(function, *args, **options)

    def _give_up(self, *args: Any, **kwargs: Any) -> NoReturn:
        refuse: Refuse = self._held[3]
        refuse()


for _name in ("__array__", "__bool__", "__float__", "__int__", "__index__", "__complex__"):
    setattr(TracedArray, _name, TracedArray._give_up)
for _name in ("__repr__", "__str__", "__format__", "__reduce_ex__", "__copy__", "__deepcopy__"):
    setattr(TracedArray, _name, TracedArray._give_up)
for _name in ("__setitem__", "__delitem__", "__setattr__", "__contains__", "__buffer__"):
    setattr(TracedArray, _name, TracedArray._give_up)
TracedArray.__hash__ = TracedArray._give_up  # type: ignore[assignment]


def is_traced_array(value: object) -> bool:
    """Returns True for an array whose values differ between calls."""
    return type(value) is TracedArray


def refuse_array(value: Any) -> NoReturn:
    """Raise the error that has the values of an array compared."""
    refuse: Refuse = value._held[3]
    refuse()


def _repeated(function: Any, *args: Any, **options: Any) -> Any:
    """Returns the array that a function of NumPy returns, which each call repeats."""
    leaves, spec = pytree.tree_flatten((args, options))
    first = next(one for one in leaves if is_traced_array(one))
    _, _, computes, refuse = first._held
    operands: list[Any] = []
    plain: list[Any] = []
    for one in leaves:
        if is_traced_array(one):
            value, formula, *_ = one._held
            value = value.view()
        elif type(one) is np.ndarray and not one.dtype.hasobject:
            value = one.copy(order="K")
            formula = computes.constant_array(value)
        elif type(one) is TracedFloat and one.node.in_python and one.node.known:
            value, formula = one.node.compute(), computes.number(one.node)
        elif _is_plain(one):
            value = formula = one
        else:
            refuse()
        if type(value) is np.ndarray:
            value.flags.writeable = False  # so that what writes to it (`out=`) raises
        plain.append(value)
        operands.append(formula)
    given, named = pytree.tree_unflatten(plain, spec)
    try:
        result = function(*given, **named)
    except Exception:  # which the function raises, with the array itself
        refuse()
    if type(result) is not np.ndarray or result.dtype.hasobject:
        refuse()
    return TracedArray(result, computes.array(function, operands, spec, result), computes, refuse)


def _is_plain(value: Any) -> bool:
    if type(value) is slice:
        return all(type(one) in _PLAIN for one in (value.start, value.stop, value.step))
    return type(value) in _PLAIN or isinstance(value, np.dtype | np.generic | type)


def _tensor_over(array: Any) -> torch.Tensor:
    value, formula, computes, _ = array._held
    try:
        return computes.tensor(formula, value)
    except (TypeError, ValueError):
        refuse_array(array)


def _as_tensor(data: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    found = _tensor_over(data)
    device = torch.get_default_device() if device is None else device
    return found.to(device=device, dtype=dtype or found.dtype)


def tensor_of_array(data: Any, **options: Any) -> torch.Tensor:
    """Computes `torch.tensor` of a traced array."""
    if options.keys() - {"dtype", "device"}:
        refuse_array(data)
    found = _tensor_over(data)
    device = options.get("device")
    device = torch.get_default_device() if device is None else device
    return found.to(device=device, dtype=options.get("dtype") or found.dtype, copy=True)


def as_tensor_of_array(data: Any, *args: Any, **options: Any) -> torch.Tensor:
    """Computes `torch.as_tensor` of a traced array."""
    return _as_tensor(data, *args, **options)


def _takes_array(args: Sequence[Any]) -> bool:
    return bool(args) and is_traced_array(args[0])


FROM_ARRAYS: dict[str, StandIn] = {
    "from_numpy": StandIn(torch.from_numpy, _takes_array, _tensor_over)
}
"""Functions of `torch` that take traced arrays only."""
MAKING_ARRAYS: dict[str, StandIn] = {
    one.__name__: StandIn(one, _takes_array, partial(_repeated, one)) for one in _MAKING
}
"""Functions of NumPy that make arrays of others."""
