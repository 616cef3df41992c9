"""Fuses a map of a map into one map of a composed function."""

import itertools
from collections.abc import Mapping

from calque.federated.building_blocks import (
    Block,
    BuildingBlock,
    Call,
    Intrinsic,
    Lambda,
    Reference,
    Struct,
)
from calque.federated.types import FederatedType, FunctionType, StructType

_NEW = "mapped_"
_numbers = itertools.count()
_MAPS = ("federated_map", "federated_map_all_equal", "federated_apply")


def fuse_maps(block: BuildingBlock) -> BuildingBlock:
    """Merges each map into the map that uses its result, if that is the only use.

    Takes and returns the form that `inline` returns: a Lambda around a Block, or a Block. The map
    that was merged is left out: a chain of them would be the sum of all its beginnings.
    """
    if isinstance(block, Lambda):
        return block.with_children((fuse_maps(block.result),))
    if not isinstance(block, Block):
        return block
    uses = _uses(block)
    fused: dict[str, Call] = {}
    kept: dict[str, BuildingBlock] = {}
    for name, value in block.locals:
        if isinstance(value, Call):
            value, merged = _composed(value, fused, uses)
            if merged is not None:
                del kept[merged]
            if isinstance(value.function, Intrinsic) and value.function.uri in _MAPS:
                fused[name] = value
        kept[name] = value
    return Block(tuple(kept.items()), block.result)


def _composed(
    call: Call, earlier: Mapping[str, Call], uses: Mapping[str, int]
) -> tuple[Call, str | None]:
    """Returns a call of a map, composed with the map that computes its argument, and the name of
    that map's result; the call itself and None if there is no such map.
    """
    intrinsic, argument = call.function, call.argument
    if not isinstance(intrinsic, Intrinsic) or intrinsic.uri not in _MAPS:
        return call, None
    if not isinstance(argument, Struct):
        return call, None
    outer, source = argument.children()
    if not isinstance(source, Reference) or uses[source.name] > 1:
        return call, None
    before = earlier.get(source.name)
    if before is None or not isinstance(before.argument, Struct):
        return call, None
    inner, first = before.argument.children()
    kind = before.function.type
    assert isinstance(kind, FunctionType) and isinstance(first.type, FederatedType)
    if not isinstance(before.function, Intrinsic) or before.function.uri != intrinsic.uri:
        return call, None
    function = _one_after_the_other(_as_lambda(inner, before), _as_lambda(outer, call))
    fused = Struct(((None, function), (None, first)))
    result = intrinsic.type.result
    parameter = StructType(((None, function.type), (None, first.type)))
    merged = Intrinsic(intrinsic.uri, FunctionType(parameter, result))
    return Call(merged, fused, call.origin), source.name


def _as_lambda(function: BuildingBlock, call: Call) -> Lambda:
    """Returns the function of a map as a Lambda whose call has the map's line."""
    if isinstance(function, Lambda):
        return function
    assert isinstance(function.type, FunctionType) and function.type.parameter is not None
    name = f"{_NEW}{next(_numbers)}"
    called = Call(function, Reference(name, function.type.parameter), call.origin)
    return Lambda(name, function.type.parameter, called)


def _one_after_the_other(first: Lambda, second: Lambda) -> Lambda:
    """Composes two blocks into one block with a flat list of names; the second uses the first's
    result.
    """
    assert second.parameter is not None
    before, result = _names_and_result(first.result)
    after, last = _names_and_result(second.result)
    names = (*before, (second.parameter, result), *after)
    return Lambda(first.parameter, first.parameter_type, Block(names, last))


def _names_and_result(
    block: BuildingBlock,
) -> tuple[tuple[tuple[str, BuildingBlock], ...], BuildingBlock]:
    return (block.locals, block.result) if isinstance(block, Block) else ((), block)


def _uses(block: BuildingBlock) -> dict[str, int]:
    """Returns the number of references to each name."""
    found: dict[str, int] = {}
    stack = [block]
    while stack:
        one = stack.pop()
        if isinstance(one, Reference):
            found[one.name] = found.get(one.name, 0) + 1
        stack.extend(one.children())
    return found
