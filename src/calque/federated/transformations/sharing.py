"""Merges equal calls, and removes unused ones."""

from calque.federated.building_blocks import (
    Block,
    BuildingBlock,
    Lambda,
    Reference,
    free_references,
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
    children = block.children()
    if not children:
        return block
    block = block.with_children(tuple(remove_unused(child) for child in children))
    if not isinstance(block, Block):
        return block
    needed = set(free_references(block.result))
    kept: list[tuple[str, BuildingBlock]] = []
    for name, value in reversed(block.locals):
        if name in needed:
            kept.append((name, value))
            needed |= set(free_references(value))
    return Block(tuple(reversed(kept)), block.result) if kept else block.result
