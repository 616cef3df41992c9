"""Proxies: objects that represent the values of nodes while a program is traced.

Our `Proxy` derives from torch.fx's for one reason: code written for torch.fx checks `isinstance(x,
torch.fx.Proxy)`, which no other class can satisfy without changing torch's class globally. Every
method is our own.
"""

import copy
import logging
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.fx
from torch.fx.graph import magic_methods, reflectable_magic_methods
from torch.fx.node import Node

from calque.state import call_watched, unwatched
from calque.tracing.core.bytecode import is_assertion, unpacked_length
from calque.tracing.proxies.node_creation import GraphAppendingTracer, TracerBase
from calque.upstream import torch_c
from calque.upstream.torch_internals import HigherOrderOperator, pytree, tree_leaves

_log = logging.getLogger(__name__)


def assert_fn(x: object) -> None:
    """Adds the node of an `assert` on a proxy.

    Raises:
        AssertionError: `x` is false when the graph runs.
    """
    if isinstance(x, torch.fx.Proxy):
        x.tracer.create_proxy("call_function", assert_fn, (x,), {})
    elif not x:
        raise AssertionError("Assertion failed")


OWN = frozenset(("node", "tracer", "type_of_value"))
"""Attributes of a proxy itself, not of its value."""


class Proxy(torch.fx.Proxy):
    """Represents the value of a node; operations on it are recorded in the graph.

    Args:
        node: the node whose value this is.
        tracer: records the operations on it; by default, they are appended to the node's graph.

    >>> graph = torch.fx.Graph()
    >>> x = Proxy(graph.placeholder("x"))
    >>> (x + 1).relu()
    Proxy(relu)
    """

    tracer: TracerBase

    def __init__(self, node: Node, tracer: TracerBase | None = None) -> None:
        self.tracer = tracer if tracer is not None else GraphAppendingTracer(node.graph)
        self.node = node

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.node.name})"

    def __getattr__(self, k: str) -> "Attribute":
        return Attribute(self, k)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, d: dict[str, Any]) -> None:
        self.__dict__.update(d)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Proxy":
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        for key, value in self.__dict__.items():
            try:
                copied.__dict__[key] = copy.deepcopy(value, memo)
            except (TypeError, ValueError, AttributeError, RuntimeError, NotImplementedError):
                _log.warning("deepcopy does not copy %s of the proxy of %s", key, self.node.name)
                copied.__dict__[key] = copy.copy(value)
        return copied

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __iter__(self) -> Iterator[Any]:
        length = unpacked_length(sys._getframe(1))
        if length is not None:
            return (self[i] for i in range(length))  # pyright: ignore[reportIndexIssue]
        return self.tracer.iter(self)

    def __abs__(self) -> Any:
        return self.tracer.create_proxy("call_function", operator.abs, (self,), {})

    def __bool__(self) -> bool:
        if self.tracer.trace_asserts and is_assertion(sys._getframe(1)):
            self.tracer.create_proxy("call_function", assert_fn, (self,), {})
            return True
        return self.tracer.to_bool(self)

    def keys(self) -> Any:
        """Records a call of the value's `keys`, as `f(**proxy)` makes."""
        return self.tracer.keys(self)

    def __len__(self) -> int:
        raise RuntimeError(
            "'len' is not supported in symbolic tracing by default. If you want "
            "this call to be recorded, please call torch.fx.wrap('len') at "
            "module scope"
        )

    @classmethod
    def __torch_function__(
        cls,
        orig_method: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        return record_call(tracer_of(orig_method, args, kwargs), orig_method, args, kwargs)


def proxies_in(values: Iterable[Any]) -> Iterator[Any]:
    """Yields the proxies among the values and in the containers among them."""
    for value in values:
        if isinstance(value, torch.fx.Proxy):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from proxies_in(value)
        elif isinstance(value, dict):
            yield from proxies_in(value.values())
        elif isinstance(value, slice):
            yield from proxies_in((value.start, value.stop, value.step))
        elif type(value) in pytree.SUPPORTED_NODES:
            yield from proxies_in(call_watched(tree_leaves, value))


def has_proxy(values: Iterable[Any]) -> bool:
    """Returns True if there is a proxy among the values;
    `any` would use the proxies as conditions.
    """
    return next(proxies_in(values), None) is not None


def tracer_of(function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TracerBase:
    """Returns the tracer that all proxies among the arguments share.

    Raises:
        RuntimeError: the call has proxies of different tracers.
    """
    found: dict[TracerBase, None] = {p.tracer: None for p in proxies_in((*args, *kwargs.values()))}
    if len(found) > 1:
        raise RuntimeError(
            f"Found multiple different tracers {list(found)} while trying to trace operations "
            f"{function}"
        )
    return next(iter(found))


@unwatched
def record_call(
    tracer: TracerBase, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Records the node for a call dispatched by PyTorch: a method, a property or a function."""
    if isinstance(function, torch_c.ScriptMethod):
        owner = function.owner
        return tracer.create_proxy("call_method", function.name, (owner, *args), kwargs)
    is_method = getattr(torch.Tensor, function.__name__, None) is function  # `new_ones` too
    if is_method or torch.overrides.is_tensor_method_or_property(function):
        return tracer.create_proxy("call_method", function.__name__, args, kwargs)
    if isinstance(function, HigherOrderOperator):
        callback = next(filter(_is_python_callable, tree_leaves((args, kwargs))), None)
        if callback is not None:
            raise RuntimeError(
                f"Unable to symbolically trace the HigherOrderOperator {function._name} because it "
                f"received an arbitrary callable argument {callback}. Use make_fx or dynamo "
                "tracing instead."
            )
    name = tracer.graph._target_to_str(function.__name__)
    return tracer.create_proxy("call_function", function, args, kwargs, name=name)


def _is_python_callable(value: object) -> bool:
    return callable(value) and not isinstance(value, (torch.fx.Proxy, torch.nn.Module, type))


class Attribute(Proxy):
    """An attribute of a proxy. It becomes a node when it is used; if it is called, the method call
    is the only node.

    >>> graph = torch.fx.Graph()
    >>> Attribute(Proxy(graph.placeholder("x")), "relu")()
    Proxy(relu)
    """

    def __init__(self, root: Proxy, attr: str) -> None:
        self.root = root
        self.attr = attr
        self.tracer: TracerBase = root.tracer
        self._node: Node | None = None

    @property
    def node(self) -> Node:
        if self._node is None:
            proxy = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {})
            self._node = proxy.node
        return self._node  # pyright: ignore[reportReturnType]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


class ParameterProxy(Proxy):
    """A proxy of a parameter that answers questions about its shape from the parameter itself,
    so that `if self.weight.shape[0] > 4:` is decided while tracing.

    Args:
        name: the qualified name of the parameter.
        param: the parameter.
    """

    def __init__(
        self, tracer: TracerBase, node: Node, name: str, param: torch.nn.Parameter
    ) -> None:
        super().__init__(node, tracer)
        if not isinstance(param, torch.nn.Parameter):
            raise AssertionError(f"Expected Parameter, got {type(param)}")
        self.param = param
        self.name = name

    def __repr__(self) -> str:
        return f"ParameterProxy({self.name})"

    @property
    def shape(self) -> torch.Size:
        """The shape of the parameter."""
        return self.param.shape

    def size(self) -> torch.Size:
        """Returns the shape of the parameter."""
        return self.param.size()

    def dim(self) -> int:
        """Returns the number of dimensions of the parameter."""
        return self.param.dim()

    @property
    def ndim(self) -> int:
        """The number of dimensions of the parameter."""
        return self.param.ndim

    def numel(self) -> int:
        """Returns the number of elements of the parameter."""
        return self.param.numel()

    def nelement(self) -> int:
        """Returns the number of elements of the parameter."""
        return self.param.nelement()


def _operator(name: str) -> Callable[..., Any]:
    return operator.truediv if name == "div" else getattr(operator, name)  # Python 2's name


def _magic(name: str) -> Callable[..., Any]:
    target = _operator(name)

    def method(self: Proxy, *args: Any) -> Any:
        return self.tracer.create_proxy("call_function", target, (self, *args), {})

    method.__name__ = method.__qualname__ = f"__{name.strip('_')}__"
    return method


def _reflected(name: str) -> Callable[..., Any]:
    target = _operator(name)

    def method(self: Proxy, left: object) -> Any:
        return self.tracer.create_proxy("call_function", target, (left, self), {})

    method.__name__ = method.__qualname__ = f"__r{name.strip('_')}__"
    return method


for _method in (*map(_magic, magic_methods), *map(_reflected, reflectable_magic_methods)):
    setattr(Proxy, _method.__name__, _method)

TracerBase.proxy_type = Proxy
