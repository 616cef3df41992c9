"""Transformations of the AST: a table of rules, each followed by the verifier.

A rule preserves the meaning and the type of a program: the new type must be assignable to the old.
For rules that change the type, `TYPES` has the relation that holds instead.
"""

from collections.abc import Callable

from calque.errors import InternalError
from calque.federated.building_blocks import BuildingBlock, free_references, verify
from calque.federated.transformations.currying import is_uncurried, uncurry
from calque.federated.transformations.fusing import fuse_maps
from calque.federated.transformations.inlining import inline
from calque.federated.transformations.sharing import dedupe, remove_unused
from calque.federated.types import Type, is_assignable

Rule = Callable[[BuildingBlock], BuildingBlock]

RULES: dict[str, Rule] = {
    "inline": inline,
    "dedupe": dedupe,
    "remove_unused": remove_unused,
    "fuse_maps": fuse_maps,
    "uncurry": uncurry,
}
TYPES: dict[str, Callable[[Type, Type], bool]] = {"uncurry": is_uncurried}
"""For each rule, a check whether it may change the first type to the second; other rules keep the
type.
"""

NORMAL_FORM = ("inline", "dedupe", "remove_unused", "fuse_maps", "remove_unused", "inline")
"""The rules that the compiler applies, in order; fused functions are inlined again."""


def transform(block: BuildingBlock, *rules: str) -> BuildingBlock:
    """Apply rules in sequence, and verify the result of each.

    Args:
        block: a building block.
        rules: names of `RULES`; by default those of `NORMAL_FORM`.

    Raises:
        InternalError: a rule has changed the type, or left an unbound name.

    >>> import numpy as np
    >>> from calque.federated import building_blocks as bb, to_type
    >>> x = bb.Reference("x", to_type("<a=int32,b=float32>"))
    >>> called = bb.Call(bb.Lambda("y", x.type, bb.Selection(bb.Reference("y", x.type), "a")), x)
    >>> print(called, "becomes", transform(bb.Lambda("x", x.type, called)))
    (y -> y.a)(x) becomes (v0 -> v0.a)
    """
    for name in rules or NORMAL_FORM:
        changed = RULES[name](block)
        verify(changed, free_references(block))
        if not TYPES.get(name, is_assignable)(block.type, changed.type):
            raise InternalError(f"the rule {name!r} changed {block.type} to {changed.type}")
        block = changed
    return block


__all__ = [
    "NORMAL_FORM",
    "RULES",
    "TYPES",
    "Rule",
    "dedupe",
    "fuse_maps",
    "inline",
    "remove_unused",
    "transform",
    "uncurry",
]
