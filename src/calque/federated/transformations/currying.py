"""Turns a function that returns a function into one function of both arguments."""

from calque.federated.building_blocks import (
    Block,
    BuildingBlock,
    Lambda,
    Reference,
    Selection,
    free_references,
)
from calque.federated.types import FunctionType, StructType, Type, is_assignable


def uncurry(block: BuildingBlock) -> BuildingBlock:
    """Turns `(x -> (y -> z))` into `(p -> (let x=p[0],y=p[1] in z))`; returns other blocks
    unchanged.

    Deeper nested functions become one function of nested structs. The type changes
    (`is_uncurried`), so this rule is not part of the normal form.

    >>> from calque.federated import building_blocks as bb, to_type
    >>> x, y = (bb.Reference(name, to_type("int32")) for name in "xy")
    >>> pair = bb.Struct(((None, x), (None, y)))
    >>> print(uncurry(bb.Lambda("x", x.type, bb.Lambda("y", y.type, pair))))
    (x_y -> (let x=x_y[0],y=x_y[1] in <x,y>))
    """
    if not isinstance(block, Lambda) or block.parameter is None or block.parameter_type is None:
        return block
    body, before = block.result, ()
    if isinstance(body, Block):
        body, before = body.result, body.locals
    inner = uncurry(body)
    if not isinstance(inner, Lambda) or inner.parameter is None or inner.parameter_type is None:
        return block
    name = f"{block.parameter}_{inner.parameter}"
    while name in free_references(block) or name in {n for n, _ in before}:
        name += "_"
    both = StructType(((None, block.parameter_type), (None, inner.parameter_type)))
    first, second = (Selection(Reference(name, both), index) for index in (0, 1))
    names = ((block.parameter, first), *before, (inner.parameter, second))
    return Lambda(name, both, Block(names, inner.result))


def is_uncurried(before: Type, after: Type) -> bool:
    """Returns True if a type is the uncurried form of another, or equal to it.

    >>> from calque.federated import to_type
    >>> curried = to_type("(int32 -> (bool -> float32))")
    >>> is_uncurried(curried, to_type("(<int32,bool> -> float32)"))
    True
    """
    if is_assignable(before, after):
        return True
    match before, after:
        case FunctionType(result=FunctionType() as inner), FunctionType(parameter=StructType()):
            both = after.parameter
            assert isinstance(both, StructType)
            return (
                len(both) == 2
                and both[0] == before.parameter
                and is_uncurried(inner, FunctionType(both[1], after.result))
            )
    return False
