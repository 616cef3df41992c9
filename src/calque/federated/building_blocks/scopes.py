"""Free names, equality up to the names of bound variables, and the verifier."""

from collections.abc import Mapping

from calque.errors import InternalError
from calque.federated.building_blocks import blocks as bb
from calque.federated.types import Type, is_assignable


def free_references(block: bb.BuildingBlock) -> dict[str, Type]:
    """Returns the free names of a block, with their types."""
    match block:
        case bb.Reference():
            return {block.name: block.type}
        case bb.Lambda():
            return {n: t for n, t in free_references(block.result).items() if n != block.parameter}
        case bb.Block():
            found: dict[str, Type] = free_references(block.result)
            for name, value in reversed(block.locals):
                found.pop(name, None)
                found = {**free_references(value), **found}
            return found
    free: dict[str, Type] = {}
    for child in block.children():
        free.update(free_references(child))
    return free


def same(first: bb.BuildingBlock, second: bb.BuildingBlock) -> bool:
    """Returns True if two blocks differ only in the names of bound variables.

    >>> from calque.federated import to_type
    >>> int32 = to_type(int)
    >>> def identity(name): return bb.Lambda(name, int32, bb.Reference(name, int32))
    >>> identity("x") == identity("y"), same(identity("x"), identity("y"))
    (False, True)
    """
    return _same(first, second, {}, {})


def _same(
    a: bb.BuildingBlock,
    b: bb.BuildingBlock,
    left: Mapping[str, object],
    right: Mapping[str, object],
) -> bool:
    match a, b:
        case bb.Reference(), bb.Reference():
            return a.type == b.type and left.get(a.name, a.name) == right.get(b.name, b.name)
        case bb.Lambda(), bb.Lambda():
            mark = object()
            return a.parameter_type == b.parameter_type and _same(
                a.result,
                b.result,
                _bound(left, a.parameter, mark),
                _bound(right, b.parameter, mark),
            )
        case bb.Block(), bb.Block():
            if len(a.locals) != len(b.locals):
                return False
            for (name, value), (other, other_value) in zip(a.locals, b.locals, strict=True):
                if not _same(value, other_value, left, right):
                    return False
                mark = object()
                left, right = _bound(left, name, mark), _bound(right, other, mark)
            return _same(a.result, b.result, left, right)
    if type(a) is not type(b):
        return False
    children, others = a.children(), b.children()
    if not children and not others:
        return a == b
    if isinstance(a, bb.Struct) and isinstance(b, bb.Struct) and a.type.names != b.type.names:
        return False
    if isinstance(a, bb.Selection) and isinstance(b, bb.Selection) and a.key != b.key:
        return False
    return len(children) == len(others) and all(
        _same(x, y, left, right) for x, y in zip(children, others, strict=True)
    )


def _bound(names: Mapping[str, object], name: str | None, mark: object) -> Mapping[str, object]:
    return names if name is None else {**names, name: mark}


def verify(block: bb.BuildingBlock, bound: Mapping[str, Type] | None = None) -> None:
    """Raise unless every name is bound to a value of the type with which it is used.

    Blocks check the types of their parts at construction; this checks names, which they cannot.

    Raises:
        InternalError: a name is not bound, or is bound to a value of a different type.
    """
    bound = bound or {}
    match block:
        case bb.Reference():
            kind = bound.get(block.name)
            if kind is None:
                raise InternalError(f"the name {block.name!r} of type {block.type} is not bound")
            if not is_assignable(block.type, kind):
                raise InternalError(f"{block.name!r} has type {kind}, but is used as {block.type}")
        case bb.Lambda() if block.parameter is not None and block.parameter_type is not None:
            verify(block.result, {**bound, block.parameter: block.parameter_type})
        case bb.Block():
            inner = dict(bound)
            for name, value in block.locals:
                verify(value, inner)
                inner[name] = value.type
            verify(block.result, inner)
        case _:
            for child in block.children():
                verify(child, bound)
