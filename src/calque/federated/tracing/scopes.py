"""The names that are bound while a computation is traced.

Every call in the traced function becomes a local name of the enclosing lambda, so that a value that
is used several times is computed once.
"""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from calque.federated.building_blocks import Block, BuildingBlock, Call, Reference
from calque.federated.errors import type_error

_local = threading.local()
_numbers = itertools.count()


class LambdaScope:
    """A lambda that is being traced."""

    def __init__(self, outer: "LambdaScope | None") -> None:
        self.outer = outer
        self.calls: list[tuple[str, BuildingBlock]] = []

    def bind(self, call: Call) -> Reference:
        """Returns a name for the result of a call."""
        name = fresh("call")
        self.calls.append((name, call))
        return Reference(name, call.type)

    def closed(self, result: BuildingBlock) -> BuildingBlock:
        """Returns a block of the result and the calls that it depends on."""
        return Block(tuple(self.calls), result) if self.calls else result


def current() -> LambdaScope | None:
    """Returns the innermost scope of this thread; None outside of computations."""
    return getattr(_local, "scope", None)


@contextmanager
def scope() -> Iterator[LambdaScope]:
    """A context manager in which calls are bound in a new scope."""
    outer = current()
    _local.scope = LambdaScope(outer)
    try:
        yield _local.scope
    finally:
        _local.scope = outer


@contextmanager
def outside() -> Iterator[None]:
    """A context manager outside any trace, for computations that are defined inside others."""
    before = current()
    _local.scope = None
    try:
        yield
    finally:
        _local.scope = before


def required(name: str) -> LambdaScope:
    """Returns the innermost scope.

    Raises:
        FederatedTypeError: `name` is called outside of a federated computation.
    """
    found = current()
    if found is None:
        raise type_error(
            f"{name} is called outside a federated computation",
            "Call it in a function under @federated.computation, and call that.",
        )
    return found


def is_open(scope: LambdaScope) -> bool:
    """Returns True if a scope is the current one, or encloses it."""
    inner = current()
    while inner is not None and inner is not scope:
        inner = inner.outer
    return inner is scope


def fresh(stem: str) -> str:
    """Returns a unique name."""
    return f"{stem}_{next(_numbers)}"
