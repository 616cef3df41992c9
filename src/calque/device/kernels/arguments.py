"""Keys of operator calls on the fast path.

Calls of the same kind have the same description: the dtypes, shapes and strides of the tensors, and
the other arguments, except numbers that are passed as data. Their executable, which the general
path (`call.Runner`) creates, takes the arrays found in the call, in this order.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any

import torch
from torch.nn import Parameter

from calque.device.kernels.applying import LARGEST_SIGNED, UNUSED
from calque.device.kernels.argument_slots import number_array, viewed
from calque.device.memory.cell import Cell, is_whole
from calque.device.runtime.placement import placement_of, spread

Tensor = torch.Tensor
Description = tuple[Any, ...]
NUMBERS = frozenset((bool, int, float, complex))
_OPTIONS = frozenset((str, torch.dtype))
_default_dtype = torch.get_default_dtype


def describe(
    args: Sequence[Any],
    kwargs: dict[str, Any],
    dynamic: Iterable[bool],
    named: dict[str, bool],
    arrays: list[Any],
) -> Description | None:
    """Returns the description of a call; None if it needs the general path.

    Args:
        args, kwargs: the arguments, as PyTorch passed them.
        dynamic: for each parameter in order, whether its numbers are data.
        named: the same, by name.
        arrays: a list, to which the arrays of tensors and of data numbers are appended.
    """
    key: list[Any] = [_default_dtype()]
    pairs: Any = zip(args, dynamic)
    if kwargs:
        if not UNUSED.isdisjoint(kwargs):
            return None
        key.append(tuple(kwargs))
        pairs = chain(pairs, [(value, named.get(n, False)) for n, value in kwargs.items()])
    for value, is_dynamic in pairs:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            cell = getattr(value.untyped_storage(), "cell", None)
            if cell is None:
                return None
            array = cell.array
            aval = array.aval  # `array.shape` is a Python property
            key.append(aval.dtype)
            key.append(aval.shape)
            if spread.exists:
                key.append(placement_of(array))
            if not cell.viewed or (cell.stride is None and is_whole(cell, value)):
                arrays.append(array)
                continue
            slot = viewed(cell, value, arrays)
            if slot is None:
                return None
            key.append(slot)
            key.append(value.stride())
        elif kind in NUMBERS:
            if is_dynamic and not (kind is int and value > LARGEST_SIGNED):  # `is_unsigned`
                arrays.append(number_array(kind, value))
                key.append(kind)
            else:
                key.append(static_number(value))
        elif kind is list and value:
            if type(value[0]) is int:
                found = None if is_dynamic else tuple(value)
            else:
                whole = cell_behind(value[0]) is not None
                found = describe(value, {}, repeat(is_dynamic), {}, arrays) if whole else None
            if found is None:
                return None
            key.append(found)
        elif value is None:
            key.append(None)
        elif kind in _OPTIONS:
            key.append(value)
        else:
            return None
    return tuple(key)


def static_number(value: Any) -> tuple[type, Any]:
    """Returns the part of a key for a number, which tells 0.0 from -0.0, and takes nan for nan."""
    kind = type(value)
    plain = value and value == value and kind is not complex
    return kind, value if plain else repr(value)


def cell_behind(tensor: Any) -> Cell | None:
    """Returns the cell of a plain tensor of the device; None for anything else."""
    kind = type(tensor)
    if kind is not Tensor and kind is not Parameter:
        return None
    return getattr(tensor.untyped_storage(), "cell", None)


def is_among(cell: Cell, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Returns True if one of the arguments, or of the items of lists, is in a cell."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            if getattr(value.untyped_storage(), "cell", None) is cell:
                return True
        elif type(value) is list and value and is_among(cell, value, {}):
            return True
    return False


def check_generator(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise RuntimeError if a random operator gets a generator of another device."""
    generator = kwargs.get("generator")
    if generator is None and args and isinstance(args[-1], torch.Generator):
        generator = args[-1]
    if generator is not None and generator.device.type != "jax":
        raise RuntimeError(
            f"Expected a 'jax' device type for generator but found '{generator.device.type}': "
            "seed the device with torch.manual_seed or torch.jax.manual_seed instead, or draw on "
            "the generator's device and move the result. A shuffling DataLoader or random_split "
            "draws on the CPU, so it must not run under torch.set_default_device('jax'): name the "
            "device where tensors are made instead, or put `with torch.device('cpu'):` around it"
        )
