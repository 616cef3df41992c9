"""Converters: who makes what of a call, and what of a program nobody can convert."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.fx.graph_module import GraphModule

from calque.convert.calls import Call, Calls, TensorInfo, name_of
from calque.tracing.record import Recording

Converter = Callable[[Call], Any]


@dataclass(frozen=True)
class Placeholder:
    """Stands for a call that no converter made anything of.

    Attributes:
        call: which.
        reason: why: nobody claims it, or what its converter raised.
    """

    call: Call
    reason: str


@dataclass
class Converted:
    """A program in another form.

    Attributes:
        inputs: the tensors it takes.
        nodes: what the converters made, in order; `Placeholder` where they did not.
        outputs: what it gives, in its containers.
    """

    inputs: list[TensorInfo]
    nodes: list[Any]
    outputs: Any

    @property
    def placeholders(self) -> list[Placeholder]:
        """The calls that were not converted."""
        return [node for node in self.nodes if isinstance(node, Placeholder)]


@dataclass
class Coverage:
    """What of a program can be converted, found out before it is.

    Attributes:
        claimed: how often each operation occurs that has a converter.
        missing: the calls that have none, by operation.
    """

    claimed: Counter[str] = field(default_factory=Counter)
    missing: dict[str, list[Call]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether every call has a converter."""
        return not self.missing

    def __str__(self) -> str:
        missing = sum(map(len, self.missing.values()))
        total = missing + self.claimed.total()
        lines = [f"{self.claimed.total()} of {total} calls can be converted"]
        for op, calls in sorted(self.missing.items(), key=lambda row: -len(row[1])):
            lines.append(f"  {len(calls):4} x {op}")
            places = list(dict.fromkeys(str(call.source) for call in calls))
            lines += [f"         {place}" for place in places[:3]]
            if len(places) > 3:
                lines.append(f"         and {len(places) - 3} more lines")
        return "\n".join(lines)


class Converters:
    """A registry of converters, each a function from a `Call` to anything.

    A call belongs to the last predicate that claims it, else to the converter of its function,
    method, module class or operator. A module whose class (or a class that it derives from) has a
    converter is one call; any other is opened.

    Args:
        level: how deep a recording is opened: `"function"` or `"aten"`.

    >>> import calque, torch
    >>> converters = Converters()
    >>> @converters.module(torch.nn.Linear)
    ... def linear(call):
    ...     return "matmul", call.weights["weight"].shape, call.inputs[0].name
    >>> recording = calque.record(torch.nn.Sequential(torch.nn.Linear(3, 2)), torch.ones(1, 3))
    >>> converters.convert(recording).nodes
    [('matmul', (2, 3), 'input')]
    """

    def __init__(self, level: Literal["function", "aten"] = "function") -> None:
        self.level = level
        self._by_name: dict[str, Converter] = {}
        self._by_class: dict[type, Converter] = {}
        self._predicates: list[tuple[Callable[[Call], bool], Converter]] = []

    def function(self, *targets: Callable[..., Any] | str) -> Callable[[Converter], Converter]:
        """For functions of PyTorch, and for methods by their name, such as `"Tensor.view"`."""
        return self._named([t if isinstance(t, str) else _name(t) for t in targets])

    def operator(self, *targets: Any) -> Callable[[Converter], Converter]:
        """For operators, `torch.ops.aten.relu.default` or `"aten.relu.default"`."""
        return self._named([str(target) for target in targets])

    def module(self, *classes: type[torch.nn.Module]) -> Callable[[Converter], Converter]:
        """For modules of these classes, as a whole."""

        def enter(converter: Converter) -> Converter:
            self._by_class.update(dict.fromkeys(classes, converter))
            return converter

        return enter

    def when(self, predicate: Callable[[Call], bool]) -> Callable[[Converter], Converter]:
        """For calls of which `predicate` is true."""

        def enter(converter: Converter) -> Converter:
            self._predicates.append((predicate, converter))
            return converter

        return enter

    def _named(self, names: list[str]) -> Callable[[Converter], Converter]:
        def enter(converter: Converter) -> Converter:
            self._by_name.update(dict.fromkeys(names, converter))
            return converter

        return enter

    def find(self, call: Call) -> Converter | None:
        """The converter of a call; None where nobody claims it."""
        for predicate, converter in reversed(self._predicates):
            if predicate(call):
                return converter
        if call.kind == "module":
            return self._of_class(type(call.target))
        return self._by_name.get(call.op)

    def _of_class(self, kind: type) -> Converter | None:
        return next((self._by_class[k] for k in kind.__mro__ if k in self._by_class), None)

    def calls(self, program: Recording | GraphModule) -> Calls:
        """The calls that are to be converted; modules without a converter are opened."""
        if isinstance(program, GraphModule):
            return Calls(program)
        if self.level == "aten":
            return Calls(program.graph("aten"))
        claimed = self._of_class

        def is_claimed(module: torch.nn.Module, path: str) -> bool:
            return claimed(type(module)) is not None

        return Calls(program.graph(leaf=is_claimed, whole=True))

    def coverage(self, program: Recording | GraphModule) -> Coverage:
        """What can be converted and what cannot, where and how often."""
        found = Coverage()
        for call in self.calls(program):
            if self.find(call) is not None:
                found.claimed[call.op] += 1
            else:
                found.missing.setdefault(call.op, []).append(call)
        return found

    def convert(self, program: Recording | GraphModule) -> Converted:
        """Convert every call; where that is not possible, there is a `Placeholder`.

        Raises:
            TraceError: no graph of the recording would be right (`Recording.graph`).
        """
        calls = self.calls(program)
        return Converted(calls.inputs, [self._converted(call) for call in calls], calls.outputs)

    def _converted(self, call: Call) -> Any:
        converter = self.find(call)
        if converter is None:
            return Placeholder(call, "no converter claims it")
        try:
            return converter(call)
        except Exception as error:
            return Placeholder(call, f"{type(error).__name__}: {error}")


def _name(target: Callable[..., Any]) -> str:
    if torch.overrides.is_tensor_method_or_property(target):
        return f"Tensor.{target.__name__}"
    return name_of(target)
