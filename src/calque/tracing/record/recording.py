"""`Recording`: what a run did, for inspection and as the basis of graphs."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, Literal

import torch
from torch.fx.graph_module import GraphModule

from calque.errors import with_user_frames
from calque.errors.handlers import is_of_handler
from calque.errors.printable import printable
from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.lowering.lowering import lower
from calque.tracing.record.build import Builder
from calque.tracing.record.escapes import Escape
from calque.tracing.record.events import Begin, Event, ModuleCall, ModuleEnd, RecordedCall
from calque.tracing.record.inputs_outputs import mapped
from calque.tracing.record.keeping import Gradient, Keeper
from calque.tracing.record.leaf_modules import is_layer
from calque.tracing.record.operator_mode import OperatorCounts
from calque.tracing.record.values import RunValue
from calque.upstream.torch_internals import pytree

RAISED = "the program has raised"
_LISTED = 20
"""The number of problems that an error lists."""
Level = Literal["module", "function", "aten"]


class FinishedRun:
    """A finished run, as `Builder` reads it.

    Attributes:
        root, method, name: the program: a module and the name of its method, or a function.
        signature, code, names: those of the method or function; the names of parameters include
            stars.
        arguments: the argument for each parameter, with values instead of tensors.
        twins: pairs of values for tensors that were passed twice.
        classes: the class names of the tensors among the arguments, by value.
        asks_class, asks_identity: whether the program may check the classes of tensors, and whether
            it may compare tensors by identity.
        numbers: the numbers that the program read, and their uses.
        events, result: the calls of the program, and its result.
        assignments: the module (or dictionary, or tensor), attribute (or key) and value of each
            assignment.
        asked, asked_of_members, assumed: what the graph must check.
    """

    def __init__(
        self, root: Any, method: str, name: str, function: Callable[..., Any], recorder: Any
    ) -> None:
        self.root: Any = root
        self.method: str = method
        self.name: str = name
        bare = inspect.unwrap(function)
        self.signature: inspect.Signature = inspect.signature(bare)
        self.code: CodeType = bare.__code__
        self.names: list[str] = _names(self.code, isinstance(root, torch.nn.Module))
        self.arguments: dict[str, Any] = {}
        self.twins: list[tuple[RunValue, RunValue]] = []
        self.classes: dict[RunValue | None, str] = {}
        self.asks_class = self.asks_identity = False
        self.events: list[Event] = recorder.events
        self.numbers: Any = recorder.numbers
        self.result: Any = None
        self.assignments: list[tuple[Any, Any, Any]] = []
        self.asked: set[str] = recorder.asked
        self.asked_of_members: list[Any] = recorder.asked_of_members
        self.assumed: Any = recorder.assumed

    def following(self) -> "FinishedRun":
        """Returns the run with numbers that are read again instead of guarded."""
        made = copy.copy(self)
        made.events = self.numbers.following(self.events)
        return made

    def values_given(self) -> Iterator[RunValue]:
        """Returns the values among the arguments."""
        found: list[RunValue] = []
        mapped(self.arguments, lambda leaf: found.append(leaf) if type(leaf) is RunValue else None)
        return iter(found)

    def values_of_result(self) -> Any:
        """Returns the program's result and assignments, in containers that `values_in` knows."""
        return self.result, [value for *_, value in self.assignments]


class Recording:
    """The run of a program: its calls of modules and PyTorch functions, in order.

    Attributes:
        result: what the program returned; None if it raised.
        escapes: the values that it read into Python, each of which is a guard of the graph.
        problems: the reasons why no graph of the recording would be right, each with its line.
        operator_counts: how many operators ran, in recorded calls and outside them.
        kept: the results of the calls that `keep` matched, by name, one for each call. The
            tensors are copies made at the time of the call, through which gradients flow.

    >>> import calque, torch
    >>> recording = calque.record(lambda x: torch.relu(x) + 1, torch.tensor([-1.0, 2.0]))
    >>> recording.result
    tensor([1., 3.])
    >>> recording.graph()(torch.tensor([5.0, -5.0]))
    tensor([6., 1.])
    """

    def __init__(self, tape: FinishedRun, recorder: Any) -> None:
        self._tape = tape
        self.result: Any = None
        self.escapes: list[Escape] = recorder.escapes
        self.problems: list[str] = recorder.problems
        self.kept: dict[str, list[Any]] = recorder.keeper.kept
        self._gradients: dict[str, list[Any]] = recorder.keeper.gradients
        self.constants: list[torch.Tensor] = []
        self._graphs: dict[Any, GraphModule] = {}

    @property
    def gradients(self) -> dict[str, list[Any]]:
        """Like `kept`, with the gradients that `backward()` computed; None if there is none."""
        return {
            name: [pytree.tree_map_only(Gradient, lambda part: part.now, each) for each in results]
            for name, results in self._gradients.items()
        }

    @property
    def calls(self) -> list[RecordedCall]:
        """The calls of PyTorch, in order."""
        return [event for event in self._tape.events if isinstance(event, RecordedCall)]

    @property
    def operator_counts(self) -> OperatorCounts:
        """The number of operators that ran, within recorded calls and outside them."""
        calls = self.calls
        alone = sum(1 for call in calls if call.what == "operator")
        count = sum(call.operators for call in calls)
        return OperatorCounts(count, count - alone, alone)

    @with_user_frames
    def graph(
        self,
        level: Level = "function",
        *,
        leaf: Callable[[torch.nn.Module, str], bool] | None = None,
        edits: Mapping[str, Callable[[Any], Any]] | None = None,
        whole: bool = False,
        follow: bool = True,
    ) -> GraphModule:
        """Returns the program as a graph that can be run on other inputs.

        Args:
            level: with `"module"`, calls of PyTorch's own layers are one node each. With
                `"function"`, every node is a call of PyTorch as it is written in the program or in
                a layer. With `"aten"`, every node is an operator (`calque.lower`).
            leaf: a function of a module and its path that says whether the module is one node,
                instead of what `level` says. A call that one node cannot represent is opened all
                the same.
            edits: a dict from patterns, as for `calque.record`, to functions. A function takes the
                result of a call, and returns the value that everything later uses instead, of the
                same shape and dtype.
            whole: whether the program itself, if it is such a module, may be one node; otherwise it
                is opened.
            follow: whether the graph reads again those numbers that the program has only passed to
                PyTorch; otherwise, and in a graph of operators, they are guards like all others.

        Returns:
            A `torch.fx.GraphModule` that shares the parameters of the program. Its nodes have
            `origin`, `nn_module_stack` and `val` in their `meta`. When it runs, it checks what the
            program read: sizes, modes, and the values in `escapes`.

        Raises:
            TraceError: a graph would not do what the program did; every reason is named. Or the
                value to be edited is an argument that a module only returns.
            ValueError: no call matches a pattern.
        """
        if level not in ("module", "function", "aten"):
            raise ValueError(f"level must be 'module', 'function' or 'aten', not {level!r}")
        if level == "aten":
            return lowered(self.graph("function", leaf=leaf, edits=edits, follow=False))
        is_leaf = leaf or (_is_layer if level == "module" else _is_script)
        keeper = Keeper((), edits or {})
        tape = self._tape.following() if follow else self._tape
        leaves = lambda call: is_leaf(call.module, call.path)  # noqa: E731
        graph = self._built(leaves, keeper, whole, tape).build()
        keeper.check_seen()
        return graph

    def graph_of_calls(
        self, is_leaf: Callable[[ModuleCall], bool]
    ) -> tuple[GraphModule, dict[str, ModuleCall], dict[ModuleCall, str]]:
        """Like `graph`, but decides for each call of a module whether it is one node.

        Returns:
            The graph, the calls of modules that are one node in it, by the node's name, and the
            reasons why others had to be opened.
        """
        builder = self._built(is_leaf, Keeper((), {}), True, self._tape)
        return builder.build(), builder.modules, builder.opened

    def _built(
        self, is_leaf: Callable[[ModuleCall], bool], keeper: Keeper, whole: bool, tape: FinishedRun
    ) -> Builder:
        if self.problems:
            listed = "\n".join(self.problems[:_LISTED])
            if len(self.problems) > _LISTED:
                listed += f"\n... and {len(self.problems) - _LISTED} more (in recording.problems)"
            hint = (
                "If only the first call does this, call the program once before recording. "
                "Otherwise, record a part that does not do it. (Tensors that are written to in "
                "place, such as buffers, may change.)"
            )
            if RAISED in self.problems[-1]:
                hint = "calque.show shows what was recorded up to that point."
            raise SymbolicTraceError(f"a graph cannot repeat this recording:\n{listed}\n{hint}")
        return Builder(tape, is_leaf, keeper, whole)

    def __str__(self) -> str:
        return "\n".join(_lines(self._tape.events))

    def __repr__(self) -> str:
        calls, modules = len(self.calls), sum(isinstance(e, Begin) for e in self._tape.events)
        return f"<recording of {calls} calls of PyTorch functions and {modules} of modules>"


def lowered(graph: GraphModule) -> GraphModule:
    """Like `lower`, for the graph of a program that has run.

    Raises:
        TraceError: it cannot be lowered.
    """
    try:
        return lower(graph)
    except SymbolicTraceError:
        raise
    except Exception as error:  # the program did run, so the error is not its own
        if is_of_handler(error):
            raise
        notes = "\n".join(getattr(error, "__notes__", ()))
        raise SymbolicTraceError(
            f"{type(error).__name__}: {error}\n{notes}\n"
            "The program cannot run on tensors without data; use the graph of functions."
        ) from error


def _lines(events: Sequence[Event]) -> Iterator[str]:
    depth = 0
    for event in events:
        if isinstance(event, ModuleEnd):
            depth -= 1
            continue
        call = event.call if isinstance(event, Begin) else event
        origin = call.origin()
        place = f"  [{origin.file}:{origin.line}]" if origin is not None else ""
        yield f"{'  ' * depth}{printable(repr(call) + place)}"
        depth += isinstance(event, Begin)


def _names(code: CodeType, is_module: bool) -> list[str]:
    count = code.co_argcount + code.co_kwonlyargcount
    names = list(code.co_varnames[is_module:count])
    starred = iter(code.co_varnames[count:])
    if code.co_flags & inspect.CO_VARARGS:
        names.append("*" + next(starred))
    if code.co_flags & inspect.CO_VARKEYWORDS:
        names.append("**" + next(starred))
    return names


def _is_layer(module: torch.nn.Module, path: str) -> bool:
    return is_layer(module)


def _is_script(module: torch.nn.Module, path: str) -> bool:
    return False
