"""Assignments to attributes of modules.

The program reads an assigned value again in the same call. After the trace, the attribute has its
earlier value, and the graph assigns the new one at its end, when it runs.
"""

from typing import TYPE_CHECKING, Any

import torch

from calque.tracing.core.refusals import here, refuse_because
from calque.tracing.graph import checks
from calque.tracing.graph.owner import GraphOwner
from calque.tracing.graph.purity import has_effect
from calque.tracing.proxies.proxy import has_proxy
from calque.tracing.symbolic.changes import MISSING, Change, change_of, is_same

if TYPE_CHECKING:
    from calque.tracing.symbolic.symbolic_tracer import SymbolicTracer

_SLOTS = ("_parameters", "_buffers", "_modules")


class Assignments:
    """The attributes that one run of the program has assigned.

    Args:
        tracer: a SymbolicTracer.
    """

    def __init__(self, tracer: "SymbolicTracer") -> None:
        self._tracer = tracer
        self._before: dict[tuple[torch.nn.Module, str], tuple[Any, str]] = {}
        self._converted: dict[tuple[torch.nn.Module, str], Any] = {}

    def allow(self, module: torch.nn.Module, name: str, value: object) -> bool:
        """Returns True if an assignment of the traced program should be carried out; see
        `set_attribute`.

        `self.count += 1` on a buffer is two steps: a change in place, which is recorded, and an
        assignment of the same tensor, which is skipped. So is `self.table = self.table.to(x)` where
        nothing has to be converted; the program then reads the result of the conversion.

        Raises:
            TraceError: a parameter or buffer would become a different tensor.
        """
        if not self._tracer.leaves.assigned(module):
            return True  # the module was created in this run
        if self._tracer.member_of(value) is not value:
            self.note(module, name)  # the value is a parameter itself
            return True
        if isinstance(value, torch.fx.Proxy):
            if self._is_in_place(module, name, value):
                return False
            if self._is_unconverted(module, name, value):
                self._cover(module, name, value)
                return False
            if name in module._buffers or name in module._parameters:
                refuse_because(
                    self._tracer,
                    f"self.{name}, a parameter or buffer, is replaced by a value of the traced "
                    "program",
                    f"Write into it with self.{name}.copy_(value), or return the value.",
                )
        self.note(module, name)
        return True

    def has_set(self, module: torch.nn.Module, name: str) -> bool:
        """Returns True if the program has assigned this attribute."""
        return (module, name) in self._before

    def note(self, module: torch.nn.Module, name: str) -> None:
        """Note that an attribute is assigned or deleted."""
        self._uncover(module, name)
        if self._tracer.leaves.assigned(module) and (module, name) not in self._before:
            self._before[module, name] = _read(module, name), here(self._tracer)

    def _is_in_place(self, module: torch.nn.Module, name: str, value: Any) -> bool:
        old = module._buffers.get(name)
        if old is None:
            old = module._parameters.get(name)
        node = value.node
        if old is None or not has_effect(node) or not node.args:
            return False
        source: Any = node.args[0]
        return source.op == "get_attr" and self._tracer.resolve(source.target) is old

    def _is_unconverted(self, module: torch.nn.Module, name: str, value: Any) -> bool:
        """Returns True if the value is what conversions give that return their input itself."""
        old = self._converted.get((module, name), MISSING)
        old = _read(module, name) if old is MISSING else old
        node = value.node
        known = node.meta.get("val", MISSING)
        while node.op in ("call_method", "call_function") and not has_effect(node):
            source: Any = node.args[0] if node.args else None
            if not isinstance(source, torch.fx.Node) or source.meta.get("val") is not known:
                return False
            node = source
        if not isinstance(old, torch.Tensor) or node is value.node or node.op != "get_attr":
            return False
        return self._tracer.resolve(node.target) is old

    def _cover(self, module: torch.nn.Module, name: str, value: object) -> None:
        members = vars(module)
        self._converted.setdefault((module, name), members.get(name, MISSING))
        members[name] = value

    def _uncover(self, module: torch.nn.Module, name: str) -> None:
        if (module, name) in self._converted:
            held = self._converted.pop((module, name))
            vars(module).pop(name)
            if held is not MISSING:
                vars(module)[name] = held

    def record(self) -> None:
        """Add assignments, at the end of the graph, of the attributes that hold values of the
        trace.

        Raises:
            TraceError: a value is inside an object that a graph cannot hold.
        """
        root = GraphOwner(self._tracer.root)
        for module, name in self._before:
            value = _read(module, name)
            if value is MISSING or not has_proxy((value,)):
                continue
            if module is self._tracer.root:
                owner = self._tracer.create_arg(root)
            else:
                path = self._tracer.path_of_module(module)
                owner = self._tracer.create_node("get_attr", path, (), {})
            target = (owner, name, self._tracer.results.held(value))
            self._tracer.create_node("call_function", checks.assign, target, {})

    def undo(self) -> list[Change]:
        """Restore each attribute to its value before the run; returns the changes."""
        for module, name in [*self._converted]:
            self._uncover(module, name)
        changes = []
        for (module, name), (before, place) in self._before.items():
            after = _read(module, name)
            if is_same(after, before):
                continue

            def write(value: Any, module: Any = module, name: str = name) -> None:
                _write(module, name, value)

            write(before)
            # A function is a cache that the program creates again if it is missing.
            replaced = isinstance(before, torch.nn.Module)
            made_anew = callable(after) and not has_proxy((after,)) and not replaced
            if not made_anew:
                what = change_of(before, after)
                key = (id(module), name)
                changes.append(Change(key, f"self.{name}", what, place, before, after, write))
        return changes


def _read(module: torch.nn.Module, name: str) -> Any:
    members = vars(module)
    for slot in _SLOTS:
        if name in members[slot]:
            return members[slot][name]
    return members.get(name, MISSING)


def _write(module: torch.nn.Module, name: str, value: object) -> None:
    members = vars(module)
    if name in members and not isinstance(value, (torch.Tensor, torch.nn.Module, type(MISSING))):
        members[name] = value  # in the dictionary that has it
        return
    for names in (members, *(members[slot] for slot in _SLOTS)):
        names.pop(name, None)
    if value is not MISSING:
        setattr(module, name, value)
