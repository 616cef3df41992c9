"""Merges equal calls, and removes unused ones."""

from calque.federated.building_blocks import (
    Block,
    BuildingBlock,
    Lambda,
    Reference,
    same,
)


def dedupe(block: BuildingBlock) -> BuildingBlock:
    """Replaces every call that repeats an earlier call with its result.

    Computations have no side effects, so equal calls return equal results.
    """
    return _dedupe(block, {})


def _dedupe(block: BuildingBlock, replaced: dict[str, BuildingBlock]) -> BuildingBlock:
    match block:
        case Reference():
            return replaced.get(block.name, block)
        case Block():
            kept: list[tuple[str, BuildingBlock]] = []
            found: dict[str, list[tuple[str, BuildingBlock]]] = {}
            for name, value in block.locals:
                value = _dedupe(value, replaced)
                alike = found.setdefault(_outline(value), [])
                first = next((n for n, other in alike if same(value, other)), None)
                if first is None:
                    alike.append((name, value))
                    kept.append((name, value))
                else:
                    replaced[name] = Reference(first, value.type)
            return Block(tuple(kept), _dedupe(block.result, replaced))
    children = block.children()
    if not children:
        return block
    return block.with_children(tuple(_dedupe(child, replaced) for child in children))


def _outline(block: BuildingBlock) -> str:
    """Returns a key that blocks share if they are equal up to bound names."""
    if isinstance(block, Lambda):
        return f"({block.type})"
    inner = ",".join(_outline(child) for child in block.children())
    return f"{type(block).__name__}({inner})" if inner else str(block)


def remove_unused(block: BuildingBlock) -> BuildingBlock:
    """Removes local names without references."""
    return _with_what_is_used(block)[0]


def _with_what_is_used(block: BuildingBlock) -> tuple[BuildingBlock, set[str]]:
    """Returns a block without unused names, and its free names."""
    if isinstance(block, Block):
        result, needed = _with_what_is_used(block.result)
        kept: list[tuple[str, BuildingBlock]] = []
        for name, value in reversed(block.locals):
            if name in needed:
                value, names = _with_what_is_used(value)
                kept.append((name, value))
                needed.discard(name)
                needed |= names
        return (Block(tuple(reversed(kept)), result) if kept else result), needed
    if isinstance(block, Reference):
        return block, {block.name}
    needed = set()
    children: list[BuildingBlock] = []
    for child in block.children():
        child, names = _with_what_is_used(child)
        children.append(child)
        needed |= names
    if isinstance(block, Lambda) and block.parameter is not None:
        needed.discard(block.parameter)
    return (block.with_children(tuple(children)) if children else block), needed
