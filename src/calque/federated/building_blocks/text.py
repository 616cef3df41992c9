"""Building blocks as text: on one line, over several, and as a tree of their kinds."""

import numpy as np

from calque.federated.building_blocks import blocks as bb

_WIDTH = 80
_MOST_SHOWN = 6


def compact(block: bb.BuildingBlock) -> str:
    """Returns a block on one line.

    >>> import numpy as np
    >>> compact(bb.Struct((("a", bb.Literal(np.int32(1))), (None, bb.Literal(np.float32(2))))))
    '<a=1,2.0>'
    """
    match block:
        case bb.Selection():
            return compact(block.source) + _key(block.key)
        case bb.Struct():
            return f"<{','.join(_named(n) + compact(b) for n, b in block.elements)}>"
        case bb.Call():
            argument = "" if block.argument is None else compact(block.argument)
            return f"{compact(block.function)}({argument})"
        case bb.Lambda():
            return f"({block.parameter or ''} -> {compact(block.result)})"
        case bb.Block():
            names = ",".join(f"{name}={compact(value)}" for name, value in block.locals)
            return f"(let {names} in {compact(block.result)})"
    return _leaf(block)


def formatted(block: bb.BuildingBlock, indent: int = 0) -> str:
    """Returns a block over several lines of 80 columns if possible."""
    short = compact(block)
    if len(short) + indent <= _WIDTH:
        return short
    inner = " " * (indent + 2)
    close = "\n" + " " * indent
    match block:
        case bb.Selection():
            return formatted(block.source, indent) + _key(block.key)
        case bb.Struct():
            lines = (_named(n) + formatted(b, indent + 2) for n, b in block.elements)
            return "<\n" + ",\n".join(inner + line for line in lines) + close + ">"
        case bb.Call() if block.argument is not None:
            function = formatted(block.function, indent)
            return f"{function}(\n{inner}{formatted(block.argument, indent + 2)}{close})"
        case bb.Lambda():
            result = formatted(block.result, indent + 2)
            return f"({block.parameter or ''} ->\n{inner}{result}{close})"
        case bb.Block():
            lines = (f"{name}={formatted(value, indent + 2)}" for name, value in block.locals)
            names = ",\n".join(inner + line for line in lines)
            return f"(let\n{names}{close} in {formatted(block.result, indent + 1)})"
    return short


def structural(block: bb.BuildingBlock, indent: int = 0) -> str:
    """Returns a block as a tree, with the kind, name and type of each part on a line."""
    kind = type(block).__name__
    match block:
        case bb.Selection():
            label = f" {_key(block.key)}"
        case bb.Lambda():
            label = f" {block.parameter}" if block.parameter else ""
        case bb.Struct() | bb.Call() | bb.Block():
            label = ""
        case _:
            label = f" {_leaf(block)}"
    lines = [f"{' ' * indent}{kind}{label}: {block.type}"]
    if isinstance(block, bb.Block):
        for name, value in block.locals:
            lines += [f"{' ' * indent}  {name} =", structural(value, indent + 4)]
        lines += [f"{' ' * indent}  in", structural(block.result, indent + 4)]
    else:
        lines += [structural(child, indent + 2) for child in block.children()]
    return "\n".join(lines)


def _leaf(block: bb.BuildingBlock) -> str:
    match block:
        case bb.Reference():
            return block.name
        case bb.Intrinsic() | bb.Data():
            return block.uri
        case bb.Placement():
            return str(block.literal)
        case bb.CompiledComputation():
            return f"comp#{block.name}"
        case bb.Literal():
            return _array(block.value)
    raise TypeError(f"{block!r} is not a leaf")


def _array(value: np.ndarray) -> str:
    if value.ndim == 0:
        return str(value.item())
    if value.size > _MOST_SHOWN:
        return f"{value.dtype}[{','.join(map(str, value.shape))}]{{...}}"
    return str(value.tolist()).replace(" ", "")


def _named(name: str | None) -> str:
    return "" if name is None else f"{name if name.isidentifier() else repr(name)}="


def _key(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key if key.isidentifier() else repr(key)}"


bb.BuildingBlock.__str__ = compact  # set here, because this module imports the blocks
