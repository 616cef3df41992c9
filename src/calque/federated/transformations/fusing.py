"""A map of a map becomes one map of the composed function."""

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

_MAPS = ("federated_map", "federated_map_all_equal", "federated_apply")


def fuse_maps(block: BuildingBlock) -> BuildingBlock:
    """The program with maps whose result only another map takes made part of that one.

    Expects, and gives, what `inline` gives: a Lambda around a Block, or a Block.
    """
    if isinstance(block, Lambda):
        return block.with_children((fuse_maps(block.result),))
    if not isinstance(block, Block):
        return block
    uses = _uses(block)
    fused: dict[str, Call] = {}
    kept: list[tuple[str, BuildingBlock]] = []
    for name, value in block.locals:
        if isinstance(value, Call):
            value = _composed(value, fused, uses)
            if isinstance(value.function, Intrinsic) and value.function.uri in _MAPS:
                fused[name] = value
        kept.append((name, value))
    return Block(tuple(kept), block.result)


def _composed(call: Call, earlier: Mapping[str, Call], uses: Mapping[str, int]) -> Call:
    """A call of a map, with the map that it takes its argument from composed into it."""
    intrinsic, argument = call.function, call.argument
    if not isinstance(intrinsic, Intrinsic) or intrinsic.uri not in _MAPS:
        return call
    if not isinstance(argument, Struct):
        return call
    outer, source = argument.children()
    before = earlier.get(source.name) if isinstance(source, Reference) else None
    if before is None or uses[source.name] > 1 or not isinstance(before.argument, Struct):
        return call
    inner, first = before.argument.children()
    kind = before.function.type
    assert isinstance(kind, FunctionType) and isinstance(first.type, FederatedType)
    if not isinstance(before.function, Intrinsic) or before.function.uri != intrinsic.uri:
        return call
    taken = inner.type
    assert isinstance(taken, FunctionType) and taken.parameter is not None
    name = f"{source.name}_"
    first_call = Call(inner, Reference(name, taken.parameter), before.origin)
    body = Call(outer, first_call, call.origin)
    function = Lambda(name, taken.parameter, body)
    fused = Struct(((None, function), (None, first)))
    result = intrinsic.type.result
    parameter = StructType(((None, function.type), (None, first.type)))
    return Call(Intrinsic(intrinsic.uri, FunctionType(parameter, result)), fused, call.origin)


def _uses(block: BuildingBlock) -> dict[str, int]:
    """How often each name is referred to."""
    found: dict[str, int] = {}
    stack = [block]
    while stack:
        one = stack.pop()
        if isinstance(one, Reference):
            found[one.name] = found.get(one.name, 0) + 1
        stack.extend(one.children())
    return found
