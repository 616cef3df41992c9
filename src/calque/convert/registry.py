"""The registry of converters, and the report on which parts of a program have none."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.convert.calls import Call, Calls
from calque.convert.decomposition import opened
from calque.convert.names import function_names, is_operator, operator_names
from calque.convert.opened_modules import Opened, call_of
from calque.convert.structure import is_label, needless
from calque.convert.tensor_infos import TensorInfo
from calque.errors import with_user_frames
from calque.errors.frames import is_librarys
from calque.errors.handlers import is_of_handler
from calque.tracing.lowering.own_leaves import without_marks
from calque.tracing.record import Recording
from calque.tracing.record.events import ModuleCall

Converter = Callable[[Call], Any]


@dataclass(frozen=True)
class Placeholder:
    """Represents a call that was not converted.

    Attributes:
        call: the call.
        reason: the reason: no converter accepts it, or its converter raised an error.
        place: the line of the converter or predicate that raised; "" if none did.
    """

    call: Call
    reason: str
    place: str = ""


@dataclass
class Converted:
    """A converted program.

    Attributes:
        inputs: the program's inputs.
        nodes: the results of the converters, in order, with a `Placeholder` for each call without
            one.
        outputs: its result, in its containers.
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
    """A report on which parts of a program can be converted.

    Attributes:
        claimed: the number of occurrences of each operation that has a converter.
        missing: the calls that have no converter, by operation.
        opened: the calls of modules that have a converter, but whose contents are converted
            instead, because one call cannot represent them.
    """

    claimed: Counter[str] = field(default_factory=Counter)
    missing: dict[str, list[Call]] = field(default_factory=dict)
    opened: list[Opened] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Returns True if every call has a converter."""
        return not self.missing

    def __str__(self) -> str:
        missing = sum(map(len, self.missing.values()))
        total = missing + self.claimed.total()
        lines = [f"{self.claimed.total()} of {total} calls can be converted"]
        for op, calls in sorted(self.missing.items(), key=lambda row: -len(row[1])):
            lines.append(f"  {len(calls):4} x {op}")
            lines += _places(calls)
        kinds: dict[tuple[str, str], list[Opened]] = {}
        for each in self.opened:
            kinds.setdefault((each.op, each.reason), []).append(each)
        for (op, reason), modules in kinds.items():
            lines.append(
                f"  {len(modules):4} x {op} has a converter, but its contents are converted "
                f"instead: {reason}"
            )
            lines += _places(modules)
        return "\n".join(lines)


def _places(calls: Iterable[Call | Opened]) -> list[str]:
    places = list(dict.fromkeys(str(call.source) for call in calls))
    lines = [f"         {place}" for place in places[:3]]
    return [*lines, f"         and {len(places) - 3} more lines"] if len(places) > 3 else lines


class Converters:
    """A registry of converters, each a function from a `Call` to anything.

    A call is converted by the last registered predicate that claims it, or else by the converter of
    its function, method, module class or operator. A module that a predicate claims, or whose class
    (or a base class) has a converter, is one call; other modules are opened. So is a function call
    that no converter claims, if there are converters for all operators that it runs.

    Args:
        level: the level to which unclaimed calls are opened: `"function"` calls, or always `"aten"`
            operators. With `"aten"`, predicates are not called for modules.

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
        if level not in ("function", "aten"):
            raise ValueError(f"level must be 'function' or 'aten', not {level!r}")
        self.level = level
        self._by_name: dict[str, Converter] = {}
        self._operators: set[str] = set()
        self._by_class: dict[type, Converter] = {}
        self._predicates: list[tuple[Callable[[Call], bool], Converter]] = []

    def function(self, *targets: Callable[..., Any] | str) -> Callable[[Converter], Converter]:
        """Registers a converter of PyTorch functions, and of methods by name, such as
        `"Tensor.view"`.

        An `autograd.Function` counts as one, by class or by `apply`; `operator.add` is `x + y`.

        Raises:
            ValueError: there is no function of this name.
            TypeError: a target is a module, or cannot be called.
        """
        return self._named([name for target in targets for name in function_names(target)])

    def operator(self, *targets: Any) -> Callable[[Converter], Converter]:
        """Registers a converter of operators, `torch.ops.aten.relu.default` or
        `"aten.relu.default"`.

        Without an overload (`torch.ops.aten.add` or `"aten.add"`), it applies to all overloads.

        Raises:
            ValueError: there is no operator of this name.
            TypeError: a target is a function or a module.
        """
        return self._named([name for target in targets for name in operator_names(target)])

    def module(self, *classes: type[torch.nn.Module]) -> Callable[[Converter], Converter]:
        """Registers a converter of whole modules of these classes."""
        for each in classes:
            if not (isinstance(each, type) and issubclass(each, torch.nn.Module)):
                raise TypeError(f"{each!r} is not a subclass of torch.nn.Module")

        def enter(converter: Converter) -> Converter:
            self._by_class.update(dict.fromkeys(classes, converter))
            return converter

        return enter

    def when(self, predicate: Callable[[Call], bool]) -> Callable[[Converter], Converter]:
        """Registers a converter of calls for which `predicate` is true, including calls of modules.

        It is called for modules from the outside in, beginning with the program itself; a claimed
        module is not opened. `call.kind` distinguishes modules from calls in them. With
        `level="aten"`, it is called for operators, and for calls that the converter of a module or
        function claims.
        """

        def enter(converter: Converter) -> Converter:
            self._predicates.append((predicate, converter))
            return converter

        return enter

    def _named(self, names: list[str]) -> Callable[[Converter], Converter]:
        def enter(converter: Converter) -> Converter:
            self._by_name.update(dict.fromkeys(names, converter))
            self._operators.update(filter(is_operator, names))
            return converter

        return enter

    def find(self, call: Call) -> Converter | None:
        """Returns the converter of a call; None if none accepts it,
        or a predicate raised an error.
        """
        return self._found(call)[0]

    def _found(self, call: Call) -> tuple[Converter | None, str, str]:
        """Returns the converter of a call, or None, the reason and the line that raised."""
        for predicate, converter in reversed(self._predicates):
            try:
                claims = predicate(call)
            except Exception as error:
                if is_of_handler(error):
                    raise
                name = getattr(predicate, "__qualname__", repr(predicate))
                reason = f"the predicate {name} raised {type(error).__name__}: {error}"
                return None, reason, _line_of(error)
            if claims:
                return converter, "", ""
        if call.kind == "module":
            return self._of_class(type(call.target)), _UNCLAIMED, ""
        return self._by_name.get(call.op), _UNCLAIMED, ""

    def _of_class(self, kind: type) -> Converter | None:
        return next((self._by_class[k] for k in kind.__mro__ if k in self._by_class), None)

    def calls(self, program: Recording | GraphModule) -> Calls:
        """Returns the calls to convert; modules without a converter are replaced by their calls."""
        return self._read(program)[0]

    def _read(self, program: Recording | GraphModule) -> tuple[Calls, list[Opened]]:
        """Returns the calls to convert, and the modules inlined although they have a converter."""
        if isinstance(program, GraphModule):
            calls = Calls(program)
            return self._opened(calls) if self.level == "function" else self._labelless(calls), []
        if not isinstance(program, Recording):
            raise TypeError(
                f"convert expects a recording or a graph, not {type(program).__name__}: pass "
                "calque.record(model, *args)"
            )
        if self.level == "function":
            calls, modules = self._with_modules(program)
            return self._opened(calls), modules
        modules: list[Opened] = []
        if self._by_class or self._by_name.keys() > self._operators:
            calls, modules = self._with_modules(program)
            if any(self.find(call) is not None for call in calls):
                return self._opened(calls), modules
        return self._labelless(Calls(without_marks(program.graph("aten")))), modules

    def _labelless(self, calls: Calls) -> Calls:
        """Returns the calls without profiler labels that have no converter."""
        unclaimed = {call.name for call in calls if self.find(call) is None}
        labels = {n for n in calls.graph.graph.nodes if is_label(n) and n.name in unclaimed}
        return Calls(calls.graph, labels) if labels else calls

    def _with_modules(self, program: Recording) -> tuple[Calls, list[Opened]]:
        """Returns the calls of modules with a converter, and the function calls outside them.

        Also returns the claimed calls of modules that are not among these.
        """
        asks = bool(self._predicates) and self.level == "function"
        entered: set[ModuleCall] = set()

        def is_leaf(call: ModuleCall) -> bool:
            to_be_asked = asks and call not in entered
            return to_be_asked or self._of_class(type(call.module)) is not None

        while True:
            graph, modules, opened = program.graph_of_calls(is_leaf)
            calls = Calls(graph)
            names = [call.name for call in calls if self._is_unclaimed(call)]
            # Excludes TorchScript's.
            unclaimed = {modules[name] for name in names if name in modules}
            if unclaimed <= entered:
                break
            entered |= unclaimed
        found = [(call_of(made), reason) for made, reason in opened.items() if made not in entered]
        claimed = [(call, why) for call, why in found if not self._is_unclaimed(call)]
        return calls, [Opened(call.op, call.path, call.source, why) for call, why in claimed]

    def _opened(self, calls: Calls) -> Calls:
        """Returns the calls, with those that have no converter replaced by their operators.

        At the level of functions, only if all its operators are claimed. Nodes that need no
        conversion are left out.
        """
        unclaimed = {call.name for call in calls if self.find(call) is None}
        if unclaimed and (self.level == "aten" or self._operators):
            may_open = partial(_is_named, unclaimed)
            calls = Calls(opened(calls.graph, may_open, self._wants))
            unclaimed = {call.name for call in calls if self.find(call) is None}
        left_out = needless(calls.graph, lambda node: node.name not in unclaimed)
        return Calls(calls.graph, left_out) if left_out else calls

    def _wants(self, operators: GraphModule) -> bool:
        """Returns True if a call should be replaced by its operators."""
        parts = (call for call in Calls(operators) if call.kind == "operator")
        return self.level == "aten" or all(self.find(part) is not None for part in parts)

    def _is_unclaimed(self, call: Call) -> bool:
        return call.kind == "module" and self.find(call) is None

    @with_user_frames
    def coverage(self, program: Recording | GraphModule) -> Coverage:
        """Reports which calls can and which cannot be converted, with lines and counts."""
        calls, opened = self._read(program)
        found = Coverage(opened=opened)
        for call in calls:
            if self.find(call) is not None:
                found.claimed[call.op] += 1
            else:
                found.missing.setdefault(call.op, []).append(call)
        return found

    @with_user_frames
    def convert(self, program: Recording | GraphModule) -> Converted:
        """Converts every call; calls that cannot be converted become a `Placeholder`.

        Raises:
            TraceError: no graph of the recording would be right (`Recording.graph`).
        """
        calls = self.calls(program)
        return Converted(calls.inputs, [self._converted(call) for call in calls], calls.outputs)

    def _converted(self, call: Call) -> Any:
        converter, reason, place = self._found(call)
        if converter is None:
            return Placeholder(call, reason, place)
        try:
            return converter(call)
        except Exception as error:
            if is_of_handler(error):
                raise
            return Placeholder(call, f"{type(error).__name__}: {error}", _line_of(error))


def _line_of(error: Exception) -> str:
    """Returns the user's innermost line in a traceback."""
    found, traceback = "", error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not is_librarys(traceback.tb_frame):
            found = f"{code.co_filename}:{traceback.tb_lineno} in {code.co_name}"
        traceback = traceback.tb_next
    return found


def _is_named(names: Collection[str], node: Node) -> bool:
    return node.name in names


_UNCLAIMED = "no converter accepts it"
