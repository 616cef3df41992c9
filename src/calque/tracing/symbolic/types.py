"""`type(x)` and `callable(x)` in traced programs, where proxies must look like their values.

`type` and `callable` cannot be overridden by an object. So in traced code, the name `type` refers
to an object that handles proxies, and otherwise behaves like `type`, except for its identity. The
same holds for `callable`.
"""

import builtins
import functools
from types import CodeType
from typing import Any

import torch

from calque.state.names import names_of
from calque.tracing.core.active import current_trace
from calque.tracing.core.patching import Patches
from calque.tracing.core.refusals import describe, refuse_because

_type = builtins.type


class _Type:
    """Replaces `type` during a trace; in other threads it behaves like `type`."""

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

    def __getitem__(self, item: object) -> Any:
        return _type[item]

    def __or__(self, other: object) -> Any:
        return _type | other

    def __ror__(self, other: object) -> Any:
        return other | _type

    def __repr__(self) -> str:
        return repr(_type)


TYPE = _Type()


def type_of(proxy: Any) -> Any:
    """Returns the type of the value that a proxy represents.

    Raises:
        TraceError: the type is not known.
    """
    if not isinstance(proxy, torch.Tensor):
        refuse_because(
            proxy.tracer,
            f"the type of {describe(proxy)} is read, but it is not known",
            "Use isinstance(x, torch.Tensor), or pass example inputs: calque.trace(f, x).",
        )
    return proxy.type_of_value


def can_be_called(value: object) -> bool:
    """Like `callable`, but False for proxies of tensors, which inherit `__call__` from torch.fx's
    class.
    """
    is_tensor = isinstance(value, torch.fx.Proxy) and isinstance(value, torch.Tensor)
    return not is_tensor and callable(value)


def is_instance(value: Any, kinds: Any) -> bool:
    """Like `isinstance`; what it answers for the result of a leaf function is checked when the
    graph runs.
    """
    answer = isinstance(value, kinds)
    results = None if answer else getattr(getattr(value, "tracer", None), "leaf_results", None)
    if results is not None and not isinstance(value, torch.Tensor):
        results.answer(value.node, kinds)
    return answer


class _Limits:
    """Replaces `torch.finfo` or `torch.iinfo` during a trace; the limits of an unknown dtype are a
    node.
    """

    def __init__(self, original: Any) -> None:
        self._original = original

    def __call__(self, *args: Any, **options: Any) -> Any:
        given = next((a for a in (*args, *options.values()) if isinstance(a, torch.fx.Proxy)), None)
        if given is None or current_trace() is None:
            return self._original(*args, **options)
        return given.tracer.create_proxy("call_function", self._original, args, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._original)

    def __eq__(self, other: object) -> bool:
        return other is self._original or other is self

    def __hash__(self) -> int:
        return hash(self._original)

    def __repr__(self) -> str:
        return repr(self._original)


def hold_limits(patches: Patches) -> None:
    """Patch `torch.finfo` and `torch.iinfo` so that the trace sees their uses."""
    for name in ("finfo", "iinfo"):
        patches.hold(torch, name, _Limits)


def hold_checks(patches: Patches) -> None:
    """Let the trace decide a condition of `torch._check` as that of an `assert`."""
    patches.hold(torch, "_check_with", _decided)


def _decided(original: Any) -> Any:
    @functools.wraps(original)
    def check_with(error_type: Any, cond: Any, message: Any) -> None:
        if isinstance(cond, torch.fx.Proxy) and not isinstance(cond, torch.Tensor):
            cond = bool(cond)
        original(error_type, cond, message)

    return check_with


_STAND_INS = {
    "type": (TYPE, _type),
    "callable": (can_be_called, callable),
    "isinstance": (is_instance, isinstance),
}
STAND_INS = frozenset(id(stand_in) for stand_in, _ in _STAND_INS.values())
"""The possible replacements of builtins in traced code, by id."""


def hold_builtins(patches: Patches, code: CodeType, held: dict[str, Any]) -> None:
    """Replace `type` and `callable` in the globals of code that is about to run, if it uses the
    builtins.
    """
    for name in names_of(code).globals & _STAND_INS.keys():
        stand_in, builtin = _STAND_INS[name]
        if name not in held:
            patches.hold(held, name, lambda original, own=stand_in: own, builtin)
