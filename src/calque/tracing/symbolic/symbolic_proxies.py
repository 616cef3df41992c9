"""The proxies of `SymbolicTracer`.

`TensorProxy` is both a `torch.Tensor` and a proxy: `isinstance` returns True, attributes that no
tensor has do not exist, and `torch.Tensor.flatten(x)` is accepted and dispatched. It holds no data:
every operation on it reaches the trace, and operations that would bypass the trace raise.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch.fx.node import Node

from calque.tracing.core.refusals import describe, refuse_because
from calque.tracing.proxies.proxy import OWN, Attribute, Proxy, tracer_of
from calque.tracing.symbolic.strict import Strict
from calque.upstream.torch_internals import make_subclass

_NO_DATA = torch.empty(0, device="meta")
_NO_NUMBER = torch.empty((), device="meta")
_NO_INTEGER = torch.empty((), dtype=torch.int64, device="meta")
"""A tensor that PyTorch accepts as a number, and this one also as an integer."""
_INTEGRAL = frozenset(
    (
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    )
)


class ValueProxy(Strict, Proxy):
    """Represents a value of any kind: a number, a tuple, the result of a leaf function."""

    is_tensor = False

    def __getattr__(self, k: str) -> Any:
        if k.startswith("__") and k.endswith("__"):
            raise AttributeError(k)  # Python looks up protocols that a proxy does not have
        return ValueAttribute(self, k)

    def __setattr__(self, name: str, value: object) -> None:
        if name in OWN or name.startswith("_") or not hasattr(self, "node"):
            super().__setattr__(name, value)
        else:
            self.tracer.create_proxy("call_function", setattr, (self, name, value), {})

    def __divmod__(self, other: object) -> Any:
        return self.tracer.create_proxy("call_function", divmod, (self, other), {})

    def __rdivmod__(self, other: object) -> Any:
        return self.tracer.create_proxy("call_function", divmod, (other, self), {})

    def __round__(self, *digits: Any) -> Any:
        return self.tracer.create_proxy("call_function", round, (self, *digits), {})


class ValueAttribute(Strict, Attribute):
    """An attribute of a value, recorded when it is used."""

    is_tensor = False

    def __getattr__(self, k: str) -> Any:
        if k.startswith("__") and k.endswith("__"):
            raise AttributeError(k)
        return ValueAttribute(self, k)

    __divmod__: Callable[..., Any] = ValueProxy.__divmod__
    __rdivmod__: Callable[..., Any] = ValueProxy.__rdivmod__
    __round__: Callable[..., Any] = ValueProxy.__round__


class TensorProxy(Strict, Proxy, torch.Tensor):
    """Represents a tensor.

    >>> x = TensorProxy(torch.fx.Graph().placeholder("x"))
    >>> isinstance(x, torch.Tensor), isinstance(x, torch.fx.Proxy), hasattr(x, "bananas")
    (True, True, False)
    """

    is_tensor = True
    type_of_value: type = torch.Tensor
    __class__ = property(attrgetter("type_of_value"))  # pyright: ignore[reportAssignmentType]

    @staticmethod
    def __new__(cls, node: Node, tracer: object = None) -> "TensorProxy":
        known = node.meta.get("val")
        data = _NO_DATA
        if isinstance(known, torch.Tensor) and not known.ndim:
            data = _NO_INTEGER if known.dtype in _INTEGRAL else _NO_NUMBER
        return make_subclass(cls, data)

    def __getattr__(self, k: str) -> Any:
        raise AttributeError(f"'Tensor' object has no attribute '{k}'")

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in self.__dict__:  # not `requires_grad` and the like
            self._note_change(name)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._note_change(name)

    def _note_change(self, name: str) -> None:
        """Record that a Python attribute of the tensor has been set or deleted."""
        if name not in OWN and hasattr(self.tracer, "annotated"):
            self.tracer.annotated[id(self)] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("'Tensor' object is not callable")

    @property
    def keys(self) -> Any:
        raise AttributeError("'Tensor' object has no attribute 'keys'")

    __hash__: Callable[..., int] = torch.Tensor.__hash__

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tracer = tracer_of(func, args, kwargs)
        return tracer.torch_call(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(
        cls,
        func: object,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        proxy = next(arg for arg in (*args, *(kwargs or {}).values()) if isinstance(arg, cls))
        refuse_because(
            proxy.tracer,
            f"{describe(proxy)} was passed to {func}, which a symbolic trace cannot see",
            "Make the function that calls it a leaf: calque.tracing.wrap.",
        )
