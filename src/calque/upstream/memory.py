"""Words in the memory of objects of CPython and PyTorch, of which thousands are read at once.

To ask an object takes C code some 50 ns, and to read the word in which it holds the answer 2 ns. So
where many objects must be as they were, their words are compared, and the objects are asked only if
some differ. The layouts are those of headers that both projects install (`dictobject.h`,
`python_variable.h`, `TensorImpl.h`, `variable.h`). They are tried out in each process, by changing
objects and reading: `knows_containers` and `knows_tensors`. Where they are others, nothing is read.

The object that holds a word must be alive whenever it is read.
"""

import ctypes
import functools
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from calque.upstream import torch_c

_WORD = 8
_START = 8  # NumPy allocates memory for a buffer at address 0
_SIZE = 1 << 48  # of user space
_READ_ONLY = 0x100  # PyBUF_READ


def _reader() -> Callable[[Any], Any]:
    if sys.maxsize < 2**32 or sys.implementation.name != "cpython":
        return lambda _: np.zeros(0, np.uint64)
    types = ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
    view = ctypes.PYFUNCTYPE(*types)(("PyMemoryView_FromMemory", ctypes.pythonapi))
    words = np.frombuffer(view(_START, _SIZE, _READ_ONLY), np.uint64)
    return words.__getitem__  # nobody should get hold of an array that cannot be printed


read: Callable[[Any], Any] = _reader()
"""Returns the words at places, as an array."""


def place(address: int) -> int:
    """Returns the index of the word at an address."""
    return address // _WORD - _START // _WORD


def word(address: int) -> int:
    """Returns the word at an address."""
    return int(read(place(address)))


# Containers.
_LENGTH = {dict: 16, OrderedDict: 16, defaultdict: 16, list: 16, set: 24}
"""Offsets of the lengths."""
_VERSION = 24
_MANAGED = 1 << 4  # the flag of a class whose objects have their dict in front of them
_OWN_DICT = -24


def length_place(container: object) -> int | None:
    """Returns the place of the length of a list, dict or set; None for other classes."""
    offset = _LENGTH.get(type(container))
    return None if offset is None else place(id(container) + offset)


def version_place(held: dict[Any, Any]) -> int:
    """Returns the place of the version of a dict, in Python 3.11."""
    return place(id(held) + _VERSION)


def dict_place(owner: object, held: dict[Any, Any]) -> int | None:
    """Returns the place of the reference of an object to its own dict, in Python 3.11; None if it
    is not known.
    """
    kind = type(owner)
    offset = _OWN_DICT if kind.__flags__ & _MANAGED else kind.__dictoffset__
    if not offset or (offset < 0 and offset != _OWN_DICT):
        return None
    found = place(id(owner) + offset)
    return found if int(read(found)) == id(held) else None


@functools.cache
def knows_containers() -> bool:
    """Returns True if lengths can be read, and in Python 3.11 versions and dicts of objects."""
    if sys.maxsize < 2**32 or sys.implementation.name != "cpython":
        return False
    made: list[Any] = [{}, OrderedDict(), defaultdict(int), [], set()]
    for one in made:
        for length in range(3):
            if word(id(one) + _LENGTH[type(one)]) != length:
                return False
            if isinstance(one, dict):
                one[length] = length
            else:
                (one.append if isinstance(one, list) else one.add)(length)
    return sys.version_info >= (3, 12) or _knows_versions()


class _Attributed:
    pass


def _knows_versions() -> bool:
    owner, other = _Attributed(), {"b": 1}
    held = owner.__dict__
    for key in ("a", "b"):
        if int(read(version_place(held))) != torch_c.dict_version(held):
            return False
        held[key] = 1
    found = dict_place(owner, held)
    owner.__dict__ = other
    return found is not None and int(read(found)) == id(other)


# Tensors: the Python object, the tensor of C++, and what autograd adds to it.
_CLASS, _TENSOR, _HOOKS, _LAST_HOOKS = 1, 2, 3, 4
_STORAGE, _AUTOGRAD, _EXTRA = 2, 3, 4
_RANK, _SIZES, _STRIDES, _OFFSET, _TYPE, _KEYS = 7, 8, 13, 18, 20, 21
_GRADIENT, _FLAGS = 5, 16
_MOST_AXES = 5  # of which a tensor holds the sizes itself


def _words_of(addresses: Any, *numbers: int) -> np.ndarray:
    """Returns the places of some words of each object, one object after the other."""
    starts = np.asarray(addresses).astype(np.intp) // _WORD - _START // _WORD
    return (starts[:, None] + np.array(numbers)).reshape(-1)


def object_places(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """Returns the places of the classes of tensors and the references to the tensors of C++."""
    return _words_of(list(map(id, tensors)), _CLASS, _TENSOR)


def hook_places(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """Returns the places of `_backward_hooks` and `_post_accumulate_grad_hooks`."""
    return _words_of(list(map(id, tensors)), _HOOKS, _LAST_HOOKS)


def tensor_places(objects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the places of words of the tensors of C++, and of what autograd adds.

    The former are: storage, reference to the latter, geometry, dtype and device, dispatch keys. The
    latter are: `grad`, `grad_fn`, and flags such as `requires_grad`. They may be read only as long
    as the references to them are unchanged.

    Args:
        objects: the places of the tensors' Python objects (see `object_places`).
    """
    starts = read(objects[1::2])
    ranks = read(_words_of(starts, _RANK)).astype(np.intp)
    added = read(_words_of(starts, _AUTOGRAD))
    places = [np.empty(0, np.intp)]
    for rank in range(min(ranks.max(initial=0), _MOST_AXES) + 1):
        sizes = *range(_SIZES, _SIZES + rank), *range(_STRIDES, _STRIDES + rank)
        numbers = _STORAGE, _AUTOGRAD, _RANK, *sizes, _OFFSET, _TYPE, _KEYS
        places.append(_words_of(starts[ranks == rank], *numbers))
    autograd = _words_of(added[added != 0], _GRADIENT, _GRADIENT + 1, _FLAGS)
    return np.concatenate(places), autograd


def is_readable(tensor: torch.Tensor) -> bool:
    """Returns True if all that defines a tensor's kind is in words that are known."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.dim() > _MOST_AXES:
        return False
    return torch_c.has_storage(tensor) and not _word_of(tensor, _EXTRA)


def _word_of(tensor: torch.Tensor, number: int) -> int:
    return word(tensor._cdata + number * _WORD)


@functools.cache
def knows_tensors() -> bool:
    """Returns True if tensors can be read."""
    if sys.maxsize < 2**32 or sys.implementation.name != "cpython":
        return False
    with torch_c.DisableTorchFunction(), torch.inference_mode(False), torch.enable_grad():
        return _knows_geometry() and _knows_kinds() and _knows_autograd() and _knows_objects()


def _made(dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    held = torch.empty(60, dtype=dtype, device=device).untyped_storage()
    return torch.empty(0, dtype=dtype, device=device).set_(held, 4, (3, 5), (11, 2))


def _knows_geometry() -> bool:
    one = _made()
    expected = {
        _STORAGE: one.untyped_storage()._cdata,
        _AUTOGRAD: 0,
        _EXTRA: 0,
        _RANK: 2,
        _SIZES: 3,
        _SIZES + 1: 5,
        _STRIDES: 11,
        _STRIDES + 1: 2,
        _OFFSET: 4,
        _KEYS: torch_c.dispatch_keys(one).raw_repr(),
    }
    return all(_word_of(one, number) == value for number, value in expected.items())


def _knows_kinds() -> bool:
    one, complex_one = _made(), _made(torch.complex64)
    others = _made(torch.int32), _made(torch.bfloat16), _made(device="meta")
    if any(_word_of(one, _TYPE) == _word_of(other, _TYPE) for other in others):
        return False
    if _word_of(complex_one, _KEYS) == _word_of(complex_one.conj(), _KEYS):
        return False
    deep = torch.empty((1,) * (_MOST_AXES + 1), device="cpu")
    same = _word_of(one, _TYPE) == _word_of(_made(), _TYPE)
    return same and _word_of(deep, _RANK) == _MOST_AXES + 1


def _knows_autograd() -> bool:
    leaf, gradient = torch.empty(2, device="cpu", requires_grad=True), torch.empty(2, device="cpu")

    def added(tensor: torch.Tensor) -> list[int]:
        return read(tensor_places(object_places([tensor]))[1]).tolist()

    before = added(leaf)
    if not before or before[1] or not added(leaf * 1)[1]:
        return False
    leaf.requires_grad_(False)
    without = added(leaf)
    leaf.grad = gradient
    given = added(leaf)
    flags = before[2] & 0xFF, without[2] & 0xFF
    same = before[:2] == without[:2] and before[2] >> 8 == without[2] >> 8
    return flags == (1, 0) and same and given == [gradient._cdata, 0, without[2]]


def _knows_objects() -> bool:
    one = torch.empty(2, device="cpu", requires_grad=True)

    def expected() -> list[int]:
        hooks = (one._backward_hooks, one._post_accumulate_grad_hooks)
        return [id(type(one)), one._cdata, *(0 if held is None else id(held) for held in hooks)]

    def found() -> list[int]:
        places = *object_places([one]), *hook_places([one])
        return [int(read(index)) for index in places]

    if found() != expected():
        return False
    one.register_hook(lambda gradient: gradient)
    one.register_post_accumulate_grad_hook(lambda leaf: None)
    return found() == expected()
