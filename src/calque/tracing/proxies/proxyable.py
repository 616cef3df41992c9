"""Classes whose construction from proxies is recorded as a node."""

from typing import Any

from calque.tracing.core.active import is_tracing
from calque.tracing.proxies.proxy import proxies_in

proxyable_classes: dict[type, None] = {}


class ProxyableClassMeta(type):
    """The metaclass of classes whose construction from proxies is recorded in the graph.

    >>> class Pair(metaclass=ProxyableClassMeta):
    ...     def __init__(self, left, right):
    ...         self.left, self.right = left, right
    >>> Pair(1, 2).right
    2
    """

    def __init__(cls, name: str, bases: tuple[type, ...], attrs: dict[str, Any]) -> None:
        proxyable_classes.setdefault(cls)
        super().__init__(name, bases, attrs)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            for proxy in proxies_in((*args, *kwargs.values())):
                return proxy.tracer.create_proxy("call_function", cls, args, kwargs)
        return super().__call__(*args, **kwargs)
