"""`MetaProxy`, a proxy of torch.fx that computes abstract values."""

from typing import Any

import torch.fx
from torch.fx.node import Node

from calque.tracing.proxies.node_creation import TracerBase
from calque.tracing.proxies.proxy import Proxy


class MetaProxy(Proxy):
    """A proxy that keeps an abstract value in `node.meta["val"]`, computed under `fake_mode`."""

    def __init__(self, node: Node, tracer: TracerBase | None = None, fake_mode: Any = None) -> None:
        super().__init__(node, tracer)
        self.fake_mode = fake_mode

    @classmethod
    def __torch_function__(
        cls,
        orig_method: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        first = next((arg for arg in args if isinstance(arg, MetaProxy)), None)
        if first is None:
            raise AssertionError("No MetaProxy found in arguments, but one is expected.")
        proxy = super().__torch_function__(orig_method, types, args, kwargs)
        values = [a.node.meta["val"] if isinstance(a, torch.fx.Proxy) else a for a in args]
        with first.fake_mode:
            proxy.node.meta["val"] = orig_method(*values, **kwargs)
        return MetaProxy(proxy.node, proxy.tracer, first.fake_mode)
