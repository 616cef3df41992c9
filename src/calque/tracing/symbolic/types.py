"""`type(x)` in the traced program: of a proxy it is what it is when the graph runs.

Python asks nobody for the type of an object. So where code that runs names `type`, the name means
an object here that answers for proxies, and is `type` in every other respect but identity.
"""

import builtins
from types import CodeType
from typing import Any

import torch

from calque.state.names import names_of
from calque.tracing.core.active import current_trace
from calque.tracing.core.patching import Patches
from calque.tracing.core.refusals import describe, refuse_because

_type = builtins.type


class _Type:
    """Stands for `type` while a trace runs; in other threads it is as `type` is."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], torch.fx.Proxy) and current_trace() is not None:
            return type_of(args[0])
        return _type(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(_type, name)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, _type)

    def __subclasscheck__(self, kind: Any) -> bool:
        return issubclass(kind, _type)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (_type,)

    def __eq__(self, other: object) -> bool:
        return other is _type or other is self

    def __hash__(self) -> int:
        return hash(_type)

    def __getitem__(self, item: Any) -> Any:
        return _type[item]

    def __or__(self, other: Any) -> Any:
        return _type | other

    def __ror__(self, other: Any) -> Any:
        return other | _type

    def __repr__(self) -> str:
        return repr(_type)


TYPE = _Type()


def type_of(proxy: Any) -> Any:
    """The type of the value that a proxy stands for.

    Raises:
        TraceError: it is no tensor, and not known.
    """
    if not isinstance(proxy, torch.Tensor):
        refuse_because(
            proxy.tracer,
            f"{describe(proxy)} is asked for its type, which is not known",
            "Use isinstance(x, torch.Tensor), or give example inputs: calque.trace(f, x).",
        )
    return proxy.type_of_value


def hold_type(patches: Patches, code: CodeType, held: dict[str, Any]) -> None:
    """Let code that starts see `TYPE`, if it names `type` and its module means Python's."""
    if "type" in names_of(code).globals and "type" not in held:
        patches.hold(held, "type", lambda original: TYPE, _type)
