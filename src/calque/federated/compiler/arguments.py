"""Converts users' arguments to held values of a type, stacking values that differ between clients.

On the clients, a list contains one value per client; anything else is already stacked, with the
clients as the leading axis of its arrays. The same holds for the elements of sequences. Sequences
of different lengths are concatenated in the same arrays (`Ragged`).
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from calque.device.backend.interop import to_jax
from calque.errors import ClientError
from calque.federated.compiler.layout import is_placed
from calque.federated.errors import type_error
from calque.federated.ragged import Ragged, over_ragged
from calque.federated.representation import Sequence, shapes_of
from calque.federated.types import (
    CLIENTS,
    DTYPES,
    FederatedType,
    SequenceType,
    StructType,
    TensorType,
    Type,
    fields_of,
    is_assignable,
    is_numeric_leaf,
    type_of_value,
    walk,
)
from calque.federated.types.kinds import native

_NARROWED = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}


def hold(value: Any, kind: Type, path: str = "the argument") -> Any:
    """Converts a user's argument to a held value.

    Args:
        value: arrays, tensors, numbers, and containers of them.
        kind: the expected type.
        path: the name of the value in errors.

    Raises:
        FederatedTypeError: it has a different type; shows both.
        ClientError: one client's value has a different type, or a different shape than others.
    """
    if isinstance(kind, FederatedType):
        if kind.placement is CLIENTS and not kind.all_equal:
            return _of_clients(value, kind.member, path)
        return hold(value, kind.member, path)
    if isinstance(kind, StructType):
        parts = _fields(value, kind, path)
        return tuple(
            hold(part, t, f"{path}{_step(name, i)}")
            for i, (part, (name, t)) in enumerate(zip(parts, kind.elements, strict=True))
        )
    if isinstance(kind, SequenceType):
        return _sequence(value, kind, path)
    if isinstance(kind, TensorType):
        return _tensor(value, kind, path)
    raise type_error(
        f"{path} is of type {kind}, which only exists inside a computation",
        "Call the computation inside another one.",
    )


def count_clients(held: Any, kind: Type) -> set[int]:
    """Returns the numbers of clients found in the parts of a held argument."""
    if isinstance(kind, StructType):
        return set().union(*(count_clients(h, t) for h, t in zip(held, kind, strict=True)))
    if isinstance(kind, FederatedType) and kind.placement is CLIENTS and not kind.all_equal:
        counted = over_ragged(held, lambda part: part.length, lambda leaf: leaf)
        return {leaf.shape[0] for leaf in jax.tree.leaves(counted)}
    return set()


def shapes(kind: Type, clients: int) -> Any:
    """Returns the shapes of a held argument of a type.

    Raises:
        FederatedTypeError: a size, or the number of clients, is not known.
    """
    if isinstance(kind, StructType):
        return tuple(shapes(part, clients) for part in kind)
    if not isinstance(kind, FederatedType):
        return _known_shapes(kind, ())
    if kind.placement is not CLIENTS or kind.all_equal:
        return _known_shapes(kind.member, ())
    if clients < 0:
        raise type_error(
            f"the number of clients of {kind} is not known",
            "Pass arguments, or set it: computation.configured(clients=10).",
        )
    return _known_shapes(kind.member, (clients,))


def _known_shapes(kind: Type, leading: tuple[int, ...]) -> Any:
    sizes = (part for part in walk(kind) if isinstance(part, TensorType | SequenceType))
    odd = next((p for p in sizes if isinstance(p, SequenceType) or not p.is_fully_defined), None)
    if odd is not None:
        raise type_error(f"{odd} has sizes that are known only from arguments", "Pass arguments.")
    return shapes_of(kind, 0, leading)


def _of_clients(value: object, member: Type, path: str) -> Any:
    if isinstance(value, tuple) and not isinstance(member, StructType):
        raise type_error(
            f"{path} is a tuple, but {{{member}}}@CLIENTS is expected",
            "Pass a list with one value for each client, or arrays whose first axis is the "
            "clients.",
        )
    if not isinstance(value, list):
        return _stacked(value, member, path, ())
    if not value:
        raise type_error(
            f"{path} is an empty list, but needs values of clients",
            "Pass a list with one value for each client.",
        )
    held = []
    for client, one in enumerate(value):
        try:
            held.append(_on_host(one, member, f"{path} of client {client}"))
        except (TypeError, ValueError) as error:
            raise ClientError(str(error)) from None
    return _together(held, member, path)


def _together(held: list[Any], member: Type, path: str) -> Any:
    """Returns all clients' values, stacked along a leading axis."""
    if isinstance(member, StructType):
        columns = zip(*held, strict=True)
        return tuple(
            _together(list(column), t, f"{path}{_step(name, i)}")
            for i, (column, (name, t)) in enumerate(zip(columns, member.elements, strict=True))
        )
    if isinstance(member, SequenceType):
        return _ragged(held, path)
    shapes = [np.shape(one) for one in held]
    odd = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
    if odd is not None:
        raise ClientError(
            f"{path} of client {odd} has shape {list(shapes[odd])}, but that of client 0 has "
            f"{list(shapes[0])}.\nDeclare data of different sizes as a sequence."
        )
    return jnp.stack(held) if isinstance(held[0], jax.Array) else jnp.asarray(np.stack(held))


def _ragged(held: list[Sequence], path: str) -> Sequence | Ragged:
    """Returns the sequences of all clients, stacked if they have the same length."""
    lengths = [int(one.length) for one in held]
    for leaves in zip(*(jax.tree.leaves(one.elements) for one in held), strict=True):
        shapes = [leaf.shape[1:] for leaf in leaves]
        odd = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
        if odd is not None:
            raise ClientError(
                f"an element of {path} of client {odd} has shape {list(shapes[odd])}, but one of "
                f"client 0 has {list(shapes[0])}.\nGive all elements the same shape."
            )
    own = [
        jax.tree.map(lambda leaf, length=length: np.asarray(leaf)[:length], one.elements)
        for one, length in zip(held, lengths, strict=True)
    ]
    if len(set(lengths)) > 1 or not lengths[0]:
        return Ragged.of(own)
    elements = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *own)
    return Sequence(elements, jnp.asarray(lengths, jnp.int32))


def _stacked(value: object, member: Type, path: str, axes: tuple[None, ...]) -> Any:
    """Returns a value whose arrays have leading axes in front of the type's shapes."""
    if isinstance(member, StructType):
        parts = _fields(value, member, path)
        return tuple(
            _stacked(part, t, f"{path}{_step(name, i)}", axes)
            for i, (part, (name, t)) in enumerate(zip(parts, member.elements, strict=True))
        )
    if isinstance(member, SequenceType):
        if isinstance(value, Ragged) and axes == ():
            return value.with_elements(_elements(value.elements, member.element, path, False))
        if not isinstance(value, Sequence):
            raise type_error(
                f"{path} must be a sequence on each client",
                "Pass a list with one value for each client, or a federated.Sequence.",
            )
        elements = _stacked(value.elements, member.element, path, (*axes, None))
        whole = _whole(Sequence(elements, value.length), 1, path)
        return Sequence(elements, jnp.asarray(whole.length, jnp.int32))
    assert isinstance(member, TensorType)
    return _tensor(value, TensorType(member.dtype, (None, *axes, *member.shape)), path)


def _on_host(value: object, kind: Type, path: str) -> Any:
    """Converts one client's value like `hold`, but keeps NumPy arrays, for stacking."""
    if isinstance(kind, StructType):
        parts = _fields(value, kind, path)
        return tuple(
            _on_host(part, t, f"{path}{_step(name, i)}")
            for i, (part, (name, t)) in enumerate(zip(parts, kind.elements, strict=True))
        )
    if isinstance(kind, SequenceType):
        return _sequence(value, kind, path, on_host=True)
    assert isinstance(kind, TensorType)
    return _array(value, kind, path)


def _sequence(value: object, kind: SequenceType, path: str, on_host: bool = False) -> Sequence:
    if isinstance(value, Sequence):
        elements = _elements(value.elements, kind.element, path, on_host)
        return _whole(Sequence(elements, value.length), 0, path)
    if isinstance(value, list):
        parts = [
            _on_host(one, kind.element, f"{path}, element {index},")
            for index, one in enumerate(value)
        ]
        if not parts:
            return Sequence(_empty(kind.element, path), np.int32(0))
        elements = jax.tree.map(lambda *leaves: np.stack(leaves), *parts)
        elements = elements if on_host else jax.tree.map(jnp.asarray, elements)
        return Sequence(elements, np.int32(len(value)))
    elements = _elements(value, kind.element, path, on_host)
    lengths = {leaf.shape[0] for leaf in jax.tree.leaves(elements)}
    if len(lengths) > 1:
        raise type_error(
            f"{path} has arrays of {' and '.join(map(str, sorted(lengths)))} elements",
            "All arrays of a sequence must have one row for each element.",
        )
    return Sequence(elements, np.int32(min(lengths, default=0)))


def _whole(sequence: Sequence, leading: int, path: str) -> Sequence:
    """Returns a user's sequence, after checking its lengths."""
    length, first = sequence.length, jax.tree.leaves(sequence.elements)[0]
    wanted, capacity = first.shape[:leading], first.shape[leading]
    if np.shape(length) != wanted:
        raise type_error(
            f"{path} has lengths of shape {list(np.shape(length))}, but shape {list(wanted)} is "
            "expected",
            "Give a sequence one length, and a sequence on the clients one length for each client.",
        )
    known = length if is_placed(length) else np.asarray(length)
    if known.size and known.dtype.kind not in "iu":
        raise type_error(f"{path} has lengths of dtype {known.dtype}", "Lengths must be integers.")
    if is_placed(length):
        return sequence
    if known.size and not 0 <= known.min() <= known.max() <= capacity:
        raise type_error(
            f"{path} has arrays of {capacity} elements, but lengths from {known.min()} to "
            f"{known.max()}",
            "A length is the number of elements that are used.",
        )
    return sequence


def _elements(value: object, element: Type, path: str, on_host: bool) -> Any:
    """Returns the elements of a sequence, stacked: arrays with a leading axis."""
    if isinstance(element, StructType):
        parts = _fields(value, element, path)
        return tuple(
            _elements(part, t, f"{path}{_step(name, i)}", on_host)
            for i, (part, (name, t)) in enumerate(zip(parts, element.elements, strict=True))
        )
    assert isinstance(element, TensorType)
    wanted = TensorType(element.dtype, (None, *element.shape))
    return (_array if on_host else _tensor)(value, wanted, path)


def _empty(element: Type, path: str) -> Any:
    if isinstance(element, StructType):
        return tuple(_empty(part, path) for part in element)
    assert isinstance(element, TensorType)
    if None in element.shape:
        raise type_error(
            f"{path} is an empty list, so the size of its elements is not known",
            "Pass arrays with no rows.",
        )
    return np.zeros((0, *(size or 0 for size in element.shape)), element.dtype)


def _tensor(value: Any, kind: TensorType, path: str) -> Any:
    return jnp.asarray(_array(value, kind, path))


def _array(value: object, kind: TensorType, path: str) -> Any:
    """Returns an array of a tensor type; NumPy arrays stay NumPy arrays, for stacking."""
    if not is_numeric_leaf(value):
        raise type_error(
            f"{path} is {_shown(value)}, but {kind} is expected", "Pass an array of that type."
        )
    if isinstance(value, torch.Tensor):
        value = to_jax(value.detach())
        value = np.asarray(value) if not isinstance(value, jax.core.Tracer) else value
    if isinstance(value, bool | int | float | complex):
        array = _number(value, kind, path)
    else:
        array = value if isinstance(value, jax.Array) else _native(np.asarray(value))
        if DTYPES.get(array.dtype.name) != array.dtype:
            key = jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
            raise type_error(
                f"{path} has dtype {array.dtype}, but {kind} is expected",
                f"Pass {'its bits: jax.random.key_data' if key else 'an array of that type'}.",
            )
        array = _narrowed(array, kind, path)
        if getattr(array, "weak_type", False):  # a traced Python number
            array = jax.lax.convert_element_type(array, array.dtype)
    if not is_assignable(kind, TensorType(np.dtype(array.dtype), array.shape)):
        given = TensorType(np.dtype(array.dtype), array.shape)
        raise type_error(
            f"{path} is {given}, but {kind} is expected", "Pass an array of that type."
        )
    return array


def _native(array: np.ndarray) -> np.ndarray:
    """Returns an array in native byte order, which JAX needs."""
    return array.astype(native(array.dtype), copy=False)


def _number(value: Any, kind: TensorType, path: str) -> np.ndarray:
    """Returns a Python number in the requested dtype, if that is at least as general."""
    kinds = ((bool, "bool"), (int, "int32"), (float, "float32"), (complex, "complex64"))
    given = np.dtype(next(name for one, name in kinds if issubclass(type(value), one)))
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and kind.dtype.kind in "iu":
        info = np.iinfo(kind.dtype)
        if not info.min <= value <= info.max:
            raise type_error(f"{path} is {value}, which {kind} cannot hold", "Use a wider dtype.")
        return np.asarray(value, kind.dtype)
    fits = np.can_cast(given, kind.dtype, "same_kind") or kind.dtype.kind == "V"
    with np.errstate(over="ignore"):
        number = np.asarray(value, kind.dtype if fits else None if whole else given)
    if number.dtype.kind in "fc" and np.isfinite(value) and not np.isfinite(number):
        raise type_error(f"{path} is {value}, which {kind} cannot hold", "Use a wider dtype.")
    return number


def _narrowed(array: Any, kind: TensorType, path: str) -> Any:
    """Narrows 64 bits to 32 as JAX does, if the type requires it; integers only if they fit."""
    if _NARROWED.get(np.dtype(array.dtype).name) != kind.dtype.name:
        return array
    refusal = f"{path} has numbers that {kind} cannot hold"
    if kind.dtype.kind in "iu" and not isinstance(array, jax.core.Tracer) and array.size:
        info, known = np.iinfo(kind.dtype), np.asarray(array)
        if known.min() < info.min or known.max() > info.max:
            raise type_error(refusal, "Use a wider dtype.")
    try:
        with np.errstate(over="raise"):
            if isinstance(array, jax.Array) and not is_placed(array):
                np.asarray(array).astype(kind.dtype)  # JAX would silently return infinity
            return array.astype(kind.dtype)
    except FloatingPointError:
        raise type_error(refusal, "Use a wider dtype.") from None


def _fields(value: Any, kind: StructType, path: str) -> list[Any]:
    """Returns the fields of a container, in the order of a struct type."""
    if isinstance(value, Mapping):
        if set(value) == set(kind.names):
            return [value[name] for name in kind.names]
    elif (fields := fields_of(value)) is not None:
        if tuple(fields) == kind.names:
            return list(fields.values())
    elif isinstance(value, list | tuple) and len(value) == len(kind):
        names = getattr(value, "_fields", getattr(value, "names", kind.names))
        if all(wanted in (None, name) for wanted, name in zip(kind.names, names, strict=True)):
            return list(value)
    raise type_error(
        f"{path} is {_shown(value)}, but {kind} is expected",
        "Pass a container with these fields.",
    )


def _shown(value: object) -> str:
    try:
        return str(type_of_value(value))
    except TypeError:
        return f"a value of class {type(value).__name__}"


def _step(name: str | None, index: int) -> str:
    return f"[{index if name is None else repr(name)}]"
