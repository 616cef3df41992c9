"""Callbacks to the host that support 64-bit types and preserve exceptions.

XLA calls back on its own threads, in which JAX's 64-bit types are disabled: JAX would narrow the
arguments and refuse the results. So 64-bit elements are passed as 32-bit words.

XLA passes on only the text of an exception. So the exception is stored here, and the text
identifies it.
"""

import itertools
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from calque.errors import user_origin
from calque.upstream.jax_internals import CALLBACK_LOGGER

_WORD = np.dtype(np.uint32)
_WIDE = frozenset(map(np.dtype, (np.int64, np.uint64, np.float64)))
_COMPLEX = np.dtype(np.complex128)

_KEPT = "calque stored exception {}."
_MOST_KEPT = 64
_exceptions: OrderedDict[int, BaseException] = OrderedDict()
_numbers = itertools.count()


def call_back(
    function: Callable[..., Sequence[np.ndarray]],
    results: Sequence[jax.ShapeDtypeStruct],
    *arrays: Any,
    name: str,
) -> list[Array]:
    """Like `jax.pure_callback`, for a function from NumPy arrays to a list of them; under `x64`.

    Args:
        function: the function to call.
        results: the shapes and dtypes of its results.
        arrays: its arguments.
        name: its name, for the notes of exceptions.
    """
    origin = user_origin()
    note = f"(raised in {name}, called in a compiled function{f' at {origin}' if origin else ''})"
    given = [jax.ShapeDtypeStruct(a.shape, np.dtype(a.dtype)) for a in arrays]

    def run(*carried: Any) -> list[np.ndarray]:
        values = [_unpacked(np.asarray(c), g.dtype) for c, g in zip(carried, given, strict=True)]
        try:
            return [_packed(np.asarray(value)) for value in function(*values)]
        except BaseException as error:
            error.add_note(note)
            raise _kept(error) from None

    shapes = [jax.ShapeDtypeStruct(*_carried_as(one)) for one in results]
    found = jax.pure_callback(run, shapes, *map(_in_words, arrays))
    return [_from_words(f, one.dtype) for f, one in zip(found, results, strict=True)]


class _Kept(RuntimeError):
    """Represents a stored exception."""


def _kept(error: BaseException) -> _Kept:
    """Returns the exception to raise in place of `error`."""
    number = next(_numbers)
    _exceptions[number] = error
    if len(_exceptions) > _MOST_KEPT:  # exceptions of programs whose results were never read
        _exceptions.popitem(last=False)
    return _Kept(_KEPT.format(number))


def raised(error: Exception) -> BaseException | None:
    """Returns the callback's exception that an XLA error represents; None for other errors."""
    match = re.search(_KEPT.format("([0-9]+)"), str(error))
    return _exceptions.pop(int(match[1]), None) if match else None


def _is_news(record: logging.LogRecord) -> bool:
    """Returns True unless a log record of JAX is about an exception that is also raised."""
    return not (record.exc_info and isinstance(record.exc_info[1], _Kept))


logging.getLogger(CALLBACK_LOGGER).addFilter(_is_news)


def _carried_as(one: jax.ShapeDtypeStruct) -> tuple[tuple[int, ...], np.dtype]:
    if one.dtype in _WIDE:
        return (*one.shape, 2), _WORD
    if one.dtype == _COMPLEX:
        return (*one.shape, 2, 2), _WORD
    return one.shape, one.dtype


# On the host, in NumPy


def _packed(value: np.ndarray) -> np.ndarray:
    shape, dtype = _carried_as(jax.ShapeDtypeStruct(value.shape, value.dtype))
    return value if dtype == value.dtype else np.frombuffer(value.tobytes(), dtype).reshape(shape)


def _unpacked(carried: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype not in _WIDE and dtype != _COMPLEX:
        return carried
    axes = carried.ndim - (2 if dtype == _COMPLEX else 1)
    return np.frombuffer(carried.tobytes(), dtype).reshape(carried.shape[:axes])


# In the program


def _in_words(array: Any) -> Any:
    if np.dtype(array.dtype) in _WIDE:
        return lax.bitcast_convert_type(array, _WORD)
    if array.dtype == _COMPLEX:
        parts = jax.numpy.stack([array.real, array.imag], axis=-1)
        return lax.bitcast_convert_type(parts, _WORD)
    return array


def _from_words(carried: Array, dtype: Any) -> Array:
    if dtype in _WIDE:
        return lax.bitcast_convert_type(carried, dtype)
    if dtype == _COMPLEX:
        parts = lax.bitcast_convert_type(carried, np.dtype(np.float64))
        return lax.complex(parts[..., 0], parts[..., 1])
    return carried
