"""Calls of maps, zips and Python operators, at the placement of their arguments."""

import functools
import operator
import typing
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
import torch

from calque.errors import Origin, user_origin
from calque.federated.building_blocks import (
    BuildingBlock,
    Call,
    CompiledComputation,
    Intrinsic,
    Lambda,
    Reference,
    Selection,
    Struct,
    zip_result,
)
from calque.federated.errors import type_error
from calque.federated.local_functions import SIZES, is_open, precision
from calque.federated.representation import shapes_of
from calque.federated.tracing.scopes import fresh
from calque.federated.types import (
    CLIENTS,
    SERVER,
    FederatedType,
    FunctionType,
    SequenceType,
    StructType,
    TensorType,
    Type,
    join,
    to_type,
)

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, f"__{name}__")
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and", "or", "xor", "lshift", "rshift", "lt", "le", "gt", "ge", "eq", "ne"),
    )
}
REFLECTED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
"""Operators without a reflected form, and the operators that Python uses for them."""

UNARY: dict[str, Callable[[Any], Any]] = {
    name: getattr(operator, f"__{name}__") for name in ("neg", "pos", "abs", "invert")
}
_IN_NUMPY = {
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "left_shift",
    "rshift": "right_shift",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
    "pow": "power",
    "mod": "remainder",
    "neg": "negative",
    "pos": "positive",
    "abs": "absolute",
}
UFUNCS: dict[Any, str] = {
    getattr(np, _IN_NUMPY.get(name, name)): name for name in (*BINARY, *UNARY)
}
"""NumPy's functions that are Python operators, by which NumPy computes these for its arrays."""

_MAPS = {
    (CLIENTS, False): "federated_map",
    (CLIENTS, True): "federated_map_all_equal",
    (SERVER, True): "federated_apply",
}


def member_type(kind: Type) -> Type:
    """Returns the member type of a federated type; other types unchanged."""
    return kind.member if isinstance(kind, FederatedType) else kind


def intrinsic_call(uri: str, argument: BuildingBlock, result: Type) -> Call:
    """Returns a call of an intrinsic with the result type `result`."""
    return Call(Intrinsic(uri, FunctionType(argument.type, result)), argument)


def unnamed(*blocks: BuildingBlock) -> Struct:
    """Returns a struct of blocks without names."""
    return Struct(tuple((None, block) for block in blocks))


def map_call(function: BuildingBlock, argument: BuildingBlock) -> Call:
    """Returns a call of a function at the placement of its argument.

    Args:
        function: a function of members.
        argument: a block of a federated type.
    """
    kind, taken = function.type, argument.type
    assert isinstance(kind, FunctionType) and isinstance(taken, FederatedType)
    result = FederatedType(kind.result, taken.placement, taken.all_equal)
    return intrinsic_call(
        _MAPS[taken.placement, taken.all_equal], unnamed(function, argument), result
    )


def zip_call(argument: BuildingBlock) -> Call:
    """Zips a struct of values with the same placement into one placed struct.

    Raises:
        FederatedTypeError: they have different placements, or none; shows the type.
    """
    result = zip_result(argument.type)
    if result is None:
        raise type_error(
            f"values with different placements cannot be zipped: {argument.type}",
            "Move them to one placement first: federated_broadcast, federated_value, or an "
            "aggregation.",
        )
    return intrinsic_call("federated_zip", argument, result)


@dataclass(frozen=True)
class PythonOperator:
    """A Python operator on tensors, and field by field on structs of tensors.

    Args:
        name: the name in the module `operator`.
        function: the function of arrays.
        known: the Python number among two operands: whether it is the left one, its `repr` (which
            distinguishes 0.0 and -0.0, or 1 and True), and the number.
        origin: the user's line.
    """

    name: str
    function: Callable[..., Any]
    known: tuple[bool, str, Any] | None = None
    origin: Origin | None = field(default=None, compare=False)

    def __call__(self, held: Any) -> Any:
        """Returns the result for the held operands: one, or a tuple of two.

        Raises:
            FederatedTypeError: their sizes, which the types leave open, do not match.
        """
        operands = [held] if self.known or self.name not in BINARY else list(held)
        return _field_by_field(self._on_sized, operands)

    def _on_sized(self, *arrays: Any) -> Any:
        try:
            return self._on_arrays(*arrays)
        except (TypeError, ValueError, IndexError) as error:
            raise self._error(tuple(map(to_type, arrays))) from error

    def _on_arrays(self, *arrays: Any) -> Any:
        if self.known is None:
            return self.function(*arrays)
        left, _, number = self.known
        return self.function(number, *arrays) if left else self.function(*arrays, number)

    def result_type(self, *operands: Type) -> Type:
        """Returns the type of the result.

        Raises:
            FederatedTypeError: it cannot be applied to these types; shows both.
        """
        struct = next((t for t in operands if isinstance(t, StructType)), None)
        if struct is not None:
            fields = [_fields(t, len(struct)) for t in operands]
            if not all(isinstance(t, TensorType) or _alike(t, struct) for t in operands):
                raise self._error(operands)
            parts = [self.result_type(*part) for part in zip(*fields, strict=True)]
            return StructType(tuple(zip(struct.names, parts, strict=True)), struct.container)
        if any(isinstance(t, SequenceType | FunctionType) for t in operands):
            raise self._error(operands)
        if not all(self._can_hold_number(t) for t in operands):
            raise self._error(operands)
        try:
            return _of_arrays(self, operands)
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            raise self._error(operands) from error

    def _can_hold_number(self, kind: Type) -> bool:
        """Returns False if JAX would wrap the known integer around in the other operand's dtype."""
        if self.known is None or self.name == "truediv" or not isinstance(kind, TensorType):
            return True
        number, dtype = self.known[2], np.dtype(kind.dtype)
        if not isinstance(number, int) or dtype.kind not in "iu":
            return True
        limits = np.iinfo(dtype)
        return limits.min <= number <= limits.max

    def _error(self, operands: tuple[Type, ...]) -> Exception:
        shown = [str(t) for t in operands]
        if self.known:
            shown.insert(0 if self.known[0] else 1, repr(self.known[2]))
        fits = all(map(self._can_hold_number, operands))
        return type_error(
            f"the operator {self.name!r} cannot be applied to {' and '.join(shown)}",
            "Use tensors whose shapes broadcast, or structs of them with the same fields."
            if fits
            else "The dtype cannot hold that number: convert to a wider dtype in a local function.",
            origin=self.origin,
        )


def checked_index(key: object, kind: TensorType) -> Any:
    """Returns an index into a tensor, with lists and tensors converted to NumPy arrays.

    Raises:
        FederatedTypeError: it is not a valid index into tensors of this shape.
    """
    parts = [_index_part(part) for part in (key if isinstance(key, tuple) else (key,))]
    where = tuple(parts) if isinstance(key, tuple) else parts[0]
    if None not in kind.shape:  # JAX would clamp an out-of-bounds index
        try:
            np.broadcast_to(np.zeros((), bool), typing.cast(Any, kind.shape))[where]
        except IndexError as error:
            raise type_error(
                f"{kind} has no item {key!r}: {error}", "Use an index that is within its shape."
            ) from None
    return where


def _index_part(part: object) -> Any:
    if isinstance(part, torch.Tensor):
        return part.detach().cpu().numpy()
    return np.asarray(part) if isinstance(part, list) else part


@functools.lru_cache(maxsize=4096)
def _of_arrays(op: PythonOperator, operands: tuple[Type, ...]) -> Type:
    """Returns the result type of an operator on tensors, computed by JAX."""
    with precision(*operands):
        kinds = (
            to_type(jax.eval_shape(op._on_arrays, *(shapes_of(t, size) for t in operands)))
            for size in (SIZES if any(map(is_open, operands)) else SIZES[:1])
        )
        return functools.reduce(join, kinds)


def operator_call(op: PythonOperator, operands: list[BuildingBlock]) -> Call:
    """Returns a call of an operator at the placement of its values; places values without a
    placement there.

    Raises:
        FederatedTypeError: their placements differ, or their types do not match; shows both.
    """
    placed = [block for block in operands if isinstance(block.type, FederatedType)]
    if not placed:
        kinds = [block.type for block in operands]
        argument = operands[0] if len(operands) == 1 else unnamed(*operands)
        return Call(_compiled(op, kinds, argument.type), argument)
    if len({block.type.placement for block in placed if isinstance(block.type, FederatedType)}) > 1:
        raise type_error(
            f"the operator {op.name!r} is applied to values with different placements: "
            + " and ".join(str(block.type) for block in operands),
            "Move both to one placement: federated_broadcast, federated_sum or federated_mean.",
        )
    source = placed[0] if len(placed) == 1 else zip_call(unnamed(*placed))
    whole = source.type
    assert isinstance(whole, FederatedType)
    name = fresh("arg")
    member = Reference(name, whole.member)
    inner = [
        block
        if block not in placed
        else (member if len(placed) == 1 else Selection(member, placed.index(block)))
        for block in operands
    ]
    return map_call(Lambda(name, whole.member, operator_call(op, inner)), source)


def _compiled(op: PythonOperator, kinds: list[Type], parameter: Type) -> CompiledComputation:
    label = op.name if op.known is None else f"{op.name}_{op.known[2]}"
    op = replace(op, origin=user_origin())
    return CompiledComputation(label, op, FunctionType(parameter, op.result_type(*kinds)))


def _field_by_field(function: Callable[..., Any], operands: list[Any]) -> Any:
    sizes = {len(held) for held in operands if isinstance(held, tuple)}
    if not sizes:
        return function(*operands)
    (size,) = sizes
    parts = ([h[i] if isinstance(h, tuple) else h for h in operands] for i in range(size))
    return tuple(_field_by_field(function, part) for part in parts)


def _fields(kind: Type, count: int) -> list[Type]:
    return list(kind) if isinstance(kind, StructType) else [kind] * count


def _alike(first: Type, second: StructType) -> bool:
    return isinstance(first, StructType) and first.names == second.names
