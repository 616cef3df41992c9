"""Assignments to attributes of modules, which a graph cannot make."""

from typing import Any

import torch

from calque.trace.purity import has_effect
from calque.trace.refusals import refuse_because

_MISSING = object()


def may_assign(tracer: Any, module: torch.nn.Module, name: str, value: Any) -> bool:
    """Whether an assignment of the traced program is carried out; see `set_attribute`.

    `self.count += 1` on a buffer is two steps, a change in place, which is recorded, and an
    assignment of the same tensor, which is left out. A Python number that changes would change
    once, while tracing, and then never again.

    Raises:
        TraceError: the assignment would have to be repeated whenever the graph runs.
    """
    if isinstance(value, torch.fx.Proxy):
        if _is_in_place(tracer, module, name, value):
            return False
        refuse_because(
            tracer,
            f"self.{name} = a value of the traced program; a graph cannot assign attributes",
            f"Write into it, self.{name}.copy_(value), or return the value.",
        )
    old = vars(module).get(name, _MISSING)
    if type(value) in (bool, int, float, str) and old is not _MISSING and old != value:
        refuse_because(
            tracer,
            f"self.{name} changes from {old!r} to {value!r}; it would change once, not in each run",
            f"Keep self.{name} in a buffer and write into it: self.{name}.add_(1).",
        )
    return True


def _is_in_place(tracer: Any, module: torch.nn.Module, name: str, value: Any) -> bool:
    old = module._buffers.get(name)
    if old is None:
        old = module._parameters.get(name)
    node = value.node
    if old is None or not has_effect(node) or not node.args:
        return False
    source: Any = node.args[0]
    return source.op == "get_attr" and tracer.resolve(source.target) is old
