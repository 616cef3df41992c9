"""The operators of the language and their types, one row each.

Letters are type variables, for which any type may be substituted. Intrinsics whose type is written
as `...` take structs of any length, which the function beside them checks.
"""

from collections.abc import Callable

from calque.federated.errors import type_error
from calque.federated.types import (
    FederatedType,
    FunctionType,
    StructType,
    Type,
    is_assignable,
    parse_type,
    substitute,
    unify,
)


def zip_result(argument: Type) -> FederatedType | None:
    """Returns the type of a zipped struct of federated values; None if they cannot be zipped.

    Nested structs are zipped too. All-equal values may be zipped with others.
    """
    if isinstance(argument, FederatedType):
        return argument
    if not isinstance(argument, StructType) or not len(argument):
        return None
    parts = [zip_result(part) for part in argument]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts) or len({part.placement for part in found}) != 1:
        return None
    members = tuple(zip(argument.names, (part.member for part in found), strict=True))
    all_equal = all(part.all_equal for part in found)
    return FederatedType(StructType(members, argument.container), found[0].placement, all_equal)


def _is_zip(kind: FunctionType) -> bool:
    zipped = None if kind.parameter is None else zip_result(kind.parameter)
    return zipped is not None and is_assignable(kind.result, zipped)


INTRINSICS: dict[str, Type | Callable[[FunctionType], bool]] = {
    **{
        uri: parse_type(pattern)
        for uri, pattern in {
            "federated_value_at_clients": "(T -> T@CLIENTS)",
            "federated_value_at_server": "(T -> T@SERVER)",
            "federated_eval_at_clients": "(( -> T) -> {T}@CLIENTS)",
            "federated_eval_at_server": "(( -> T) -> T@SERVER)",
            "federated_map": "(<(T -> U),{T}@CLIENTS> -> {U}@CLIENTS)",
            "federated_map_all_equal": "(<(T -> U),T@CLIENTS> -> U@CLIENTS)",
            "federated_apply": "(<(T -> U),T@SERVER> -> U@SERVER)",
            "federated_broadcast": "(T@SERVER -> T@CLIENTS)",
            "federated_sum": "({T}@CLIENTS -> T@SERVER)",
            "federated_mean": "({T}@CLIENTS -> T@SERVER)",
            "federated_weighted_mean": "(<{T}@CLIENTS,{U}@CLIENTS> -> T@SERVER)",
            "federated_min": "({T}@CLIENTS -> T@SERVER)",
            "federated_max": "({T}@CLIENTS -> T@SERVER)",
            "federated_aggregate": (
                "(<{T}@CLIENTS,U,(<U,T> -> U),(<U,U> -> U),(U -> R)> -> R@SERVER)"
            ),
            "federated_reduce": "(<{T}@CLIENTS,U,(<U,T> -> U)> -> U@SERVER)",
            "federated_collect": "({T}@CLIENTS -> T*@SERVER)",
            "federated_select": (
                "(<{int32[?]}@CLIENTS,int32,T@SERVER,(<T,int32> -> U)> -> {U*}@CLIENTS)"
            ),
            "federated_secure_sum": "(<{T}@CLIENTS,int32> -> T@SERVER)",
            "sequence_map": "(<(T -> U),T*> -> U*)",
            "sequence_reduce": "(<T*,U,(<U,T> -> U)> -> U)",
            "sequence_sum": "(T* -> T)",
        }.items()
    },
    "federated_zip": _is_zip,
}


def check_intrinsic(uri: str, kind: Type) -> None:
    """Raise unless the intrinsic exists and can have this type.

    Raises:
        FederatedTypeError: the intrinsic does not exist, or cannot have this type.
    """
    pattern = INTRINSICS.get(uri)
    if pattern is None:
        raise type_error(f"there is no intrinsic {uri!r}", f"There are {', '.join(INTRINSICS)}.")
    fits = False
    if isinstance(kind, FunctionType) and kind.parameter is not None:
        if not isinstance(pattern, Type):
            fits = pattern(kind)
        elif isinstance(pattern, FunctionType) and pattern.parameter is not None:
            bindings = unify(pattern.parameter, kind.parameter)
            fits = is_assignable(kind.result, substitute(pattern.result, bindings))
    if not fits:
        raise type_error(
            f"the intrinsic {uri} cannot be of type {kind}",
            f"It is {pattern}." if isinstance(pattern, Type) else "Check its arguments.",
        )
