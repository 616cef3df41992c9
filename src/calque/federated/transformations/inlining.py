"""Resolves calls of lambdas, local names and selections, leaving a flat list of calls.

The result is in A-normal form: a Block whose locals are calls of intrinsics, of compiled
computations and of parameters, and whose arguments are references, selections from them, literals,
functions, and structs of these. It is found by evaluating the program with blocks as values, so
that every call occurs once, however often its result is used.
"""

import itertools
from collections.abc import Iterator, Mapping

from calque.federated.building_blocks import (
    Block,
    BuildingBlock,
    Call,
    Lambda,
    Reference,
    Selection,
    Struct,
    free_references,
)

Names = Iterator[str]
Environment = Mapping[str, BuildingBlock]


def inline(block: BuildingBlock) -> BuildingBlock:
    """Returns a program in A-normal form, in which all bound names are new and unique."""
    taken = free_references(block)
    names = (name for n in itertools.count() if (name := f"v{n}") not in taken)
    return _function(block, {}, names) if isinstance(block, Lambda) else _scope(block, {}, names)


def _scope(block: BuildingBlock, environment: Environment, names: Names) -> BuildingBlock:
    """Returns a block whose calls are its own locals."""
    calls: list[tuple[str, BuildingBlock]] = []
    result = _evaluate(block, environment, names, calls)
    return Block(tuple(calls), result) if calls else result


def _function(block: Lambda, environment: Environment, names: Names) -> Lambda:
    if block.parameter is None or block.parameter_type is None:
        return Lambda(None, None, _scope(block.result, environment, names))
    name = next(names)
    inner = {**environment, block.parameter: Reference(name, block.parameter_type)}
    return Lambda(name, block.parameter_type, _scope(block.result, inner, names))


def _evaluate(
    block: BuildingBlock,
    environment: Environment,
    names: Names,
    calls: list[tuple[str, BuildingBlock]],
) -> BuildingBlock:
    """Returns the block's value as a block, and adds its calls to `calls`."""
    match block:
        case Reference():
            return environment.get(block.name, block)
        case Selection():
            source = _evaluate(block.source, environment, names, calls)
            if isinstance(source, Struct):
                return source.elements[block.index][1]
            return Selection(source, block.index)
        case Struct():
            parts = [_evaluate(part, environment, names, calls) for part in block.children()]
            return block.with_children(tuple(parts))
        case Lambda():
            return _function(block, environment, names)
        case Block():
            inner = dict(environment)
            for name, value in block.locals:
                inner[name] = _evaluate(value, inner, names, calls)
            return _evaluate(block.result, inner, names, calls)
        case Call():
            function = _evaluate(block.function, environment, names, calls)
            argument = None
            if block.argument is not None:
                argument = _evaluate(block.argument, environment, names, calls)
            if isinstance(function, Lambda):
                # Its free names belong to the enclosing program, and its bound names are renamed.
                bound = {}
                if function.parameter is not None and argument is not None:
                    bound[function.parameter] = argument
                return _evaluate(function.result, bound, names, calls)
            name = next(names)
            call = Call(function, argument, block.origin)
            calls.append((name, call))
            return Reference(name, call.type)
    return block
