"""Relations between types: assignability and unification."""

from collections.abc import Mapping

from calque.errors import with_user_frames
from calque.federated.errors import type_error
from calque.federated.types.kinds import (
    AbstractType,
    FederatedType,
    FunctionType,
    SequenceType,
    StructType,
    TensorType,
    Type,
)


def is_assignable(target: Type, source: Type) -> bool:
    """Returns True if a value of type `source` can be used where `target` is expected.

    Every size is assignable to an unknown size, a field with a name to a field without, and an
    all-equal value to one that may differ between clients. Functions are contravariant in the
    parameter and covariant in the result.

    >>> from calque.federated import to_type
    >>> is_assignable(to_type("float32[?]"), to_type("float32[3]"))
    True
    >>> is_assignable(to_type("float32@CLIENTS"), to_type("{float32}@CLIENTS"))
    False
    """
    match target, source:
        case TensorType(), TensorType():
            return (
                target.dtype == source.dtype
                and len(target.shape) == len(source.shape)
                and all(t in (None, s) for t, s in zip(target.shape, source.shape, strict=True))
            )
        case StructType(), StructType():
            return len(target) == len(source) and all(
                wanted in (None, name) and is_assignable(t, s)
                for (wanted, t), (name, s) in zip(target.elements, source.elements, strict=True)
            )
        case SequenceType(), SequenceType():
            return is_assignable(target.element, source.element)
        case FunctionType(), FunctionType():
            if target.parameter is None or source.parameter is None:
                parameters = target.parameter is source.parameter
            else:
                parameters = is_assignable(source.parameter, target.parameter)
            return parameters and is_assignable(target.result, source.result)
        case FederatedType(), FederatedType():
            return (
                target.placement is source.placement
                and (source.all_equal or not target.all_equal)
                and is_assignable(target.member, source.member)
            )
    return target == source


@with_user_frames
def join(first: Type, second: Type) -> Type:
    """Returns the least type to which both types are assignable.

    Raises:
        FederatedTypeError: there is no such type; the message shows both types.
    """
    match first, second:
        case TensorType(), TensorType() if first.dtype == second.dtype and len(first.shape) == len(
            second.shape
        ):
            pairs = zip(first.shape, second.shape, strict=True)
            return TensorType(first.dtype, tuple(a if a == b else None for a, b in pairs))
        case StructType(), StructType() if len(first) == len(second):
            pairs = zip(first.elements, second.elements, strict=True)
            joined = tuple((n if n == m else None, join(a, b)) for (n, a), (m, b) in pairs)
            container = first.container if first.names == second.names else None
            return StructType(joined, container)
        case SequenceType(), SequenceType():
            return SequenceType(join(first.element, second.element))
        case FederatedType(), FederatedType() if first.placement is second.placement:
            all_equal = first.all_equal and second.all_equal
            return FederatedType(join(first.member, second.member), first.placement, all_equal)
    if is_assignable(first, second):
        return first
    if is_assignable(second, first):
        return second
    raise type_error(
        f"{first} and {second} have no common type", "Give both the same type and placement."
    )


def substitute(pattern: Type, bindings: Mapping[str, Type]) -> Type:
    """Returns a type with its variables replaced by their bindings."""
    match pattern:
        case AbstractType():
            return bindings.get(pattern.label, pattern)
        case StructType():
            replaced = ((n, substitute(t, bindings)) for n, t in pattern.elements)
            return StructType(tuple(replaced), pattern.container)
        case SequenceType():
            return SequenceType(substitute(pattern.element, bindings))
        case FunctionType():
            parameter = pattern.parameter
            if parameter is not None:
                parameter = substitute(parameter, bindings)
            return FunctionType(parameter, substitute(pattern.result, bindings))
        case FederatedType():
            member = substitute(pattern.member, bindings)
            return FederatedType(member, pattern.placement, pattern.all_equal)
    return pattern


@with_user_frames
def unify(pattern: Type, actual: Type) -> dict[str, Type]:
    """Returns bindings of a pattern's variables with which `actual` is assignable to it.

    Raises:
        FederatedTypeError: there are none; shows both types.

    >>> from calque.federated import to_type
    >>> found = unify(to_type("<(T -> U),{T}@CLIENTS>"),
    ...               to_type("<(int32 -> bool),{int32}@CLIENTS>"))
    >>> print(found["T"], found["U"])
    int32 bool
    """
    given: dict[str, Type] = {}
    taken: dict[str, Type] = {}
    _collect(pattern, actual, given, taken)
    bindings = {**taken, **given}
    whole = substitute(pattern, bindings)
    if not is_assignable(whole, actual):
        raise type_error(
            f"{actual} does not fit {pattern}"
            + "".join(f", with {name} = {bound}" for name, bound in sorted(bindings.items())),
            "Check the placements, dtypes and shapes of the arguments.",
        )
    return bindings


def _collect(pattern: Type, actual: Type, given: dict[str, Type], taken: dict[str, Type]) -> None:
    """Collect the bindings of each variable, from values and from parameters."""
    match pattern, actual:
        case AbstractType(), _:
            known = given.get(pattern.label)
            given[pattern.label] = actual if known is None else join(known, actual)
        case StructType(), StructType() if len(pattern) == len(actual):
            for part, other in zip(pattern, actual, strict=True):
                _collect(part, other, given, taken)
        case SequenceType(), SequenceType():
            _collect(pattern.element, actual.element, given, taken)
        case FunctionType(), FunctionType():
            if pattern.parameter is not None and actual.parameter is not None:
                _collect(pattern.parameter, actual.parameter, taken, given)
            _collect(pattern.result, actual.result, given, taken)
        case FederatedType(), FederatedType():
            _collect(pattern.member, actual.member, given, taken)
