"""Captures a program that branches on tensors, by running it once for each path and joining the
paths.
"""

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.graph import Graph
from torch.fx.node import Node, map_arg

from calque.errors.handlers import is_of_handler, settles
from calque.state import unwatched
from calque.state.ownership import Owner
from calque.tracing.abstract.interning import are_without_data_alike
from calque.tracing.abstract.memory import forget
from calque.tracing.core.bytecode import asks_none
from calque.tracing.core.compiled import as_written
from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph.branching import Branch
from calque.tracing.graph.checks import CHECKS
from calque.tracing.graph.ir import (
    Mismatch,
    Step,
    StepBlock,
    StepValue,
    equal_constants,
    same,
    unified,
)
from calque.tracing.graph.owner import GraphOwner
from calque.tracing.graph.templates import ObjectTemplate, Outside
from calque.tracing.paths.decisions import Budget, ProgramPath
from calque.tracing.paths.ir_to_graph import Emitter, pruned
from calque.tracing.paths.merge import Fork, Joiner, PathSegment, Steps
from calque.tracing.proxies.proxy import has_proxy
from calque.tracing.symbolic.changes import Change, first_difference, install
from calque.tracing.symbolic.leaf_results import erase_checks
from calque.tracing.symbolic.raised_in_trace import Raised, is_deliberate
from calque.tracing.symbolic.watching import StateWatch, refusal
from calque.upstream import torch_c
from calque.upstream.torch_internals import FakeTensorConverter

if TYPE_CHECKING:
    from calque.tracing.symbolic.symbolic_tracer import SymbolicTracer


class ProxyRun:
    """One run of the program, on proxies.

    Attributes:
        tracer: the tracer that recorded it.
        path: the decisions it took.
        error: the exception that a statement of the program raised at the end, if any.
        left: the changes of state that it left, which were undone.
    """

    def __init__(
        self, tracer: "SymbolicTracer", path: ProgramPath, error: Exception | None
    ) -> None:
        self.tracer: Any = tracer
        self.path: ProgramPath = path
        self.error: Exception | None = error
        self.nodes: list[Node] = list(tracer.graph.nodes)
        self.left: list[Change] = []
        self.watch: StateWatch | None = None
        self.values: dict[Node, StepValue] = {}


class Capture:
    """Traces a program along every path through it.

    Args:
        make: creates a tracer for each run.
        root, concrete_args: as for `Tracer.trace`.

    Attributes:
        tracer: the tracer of the first run, which gets the constants of all runs.
    """

    def __init__(self, make: Callable[[], Any], root: Any, concrete_args: Any) -> None:
        self._make, self._root, self._concrete = make, root, concrete_args
        self._budget = Budget()
        self._runs: list[ProxyRun] = []
        self._watched: list[tuple[StateWatch, Any]] = []
        self.tracer: Any = None

    def graph(self) -> Graph:
        """Returns the graph of the program.

        Raises:
            TraceError: the program does what no graph can repeat, has too many paths, or returns
                different kinds of values on them.
        """
        try:
            with as_written():
                graph = self._graph()
            if not any(watch.asks(asks_none, Owner.PACKAGE) for watch, _ in self._watched):
                erase_checks(graph)
            return graph
        finally:
            for watch, tracer in self._watched:
                watch.forget()
                tracer.leaves.forget()

    def _graph(self) -> Graph:
        first = self._run(())
        way = self._way(first, 0) if first.path.decisions else None
        self._settle(first.left)
        if way is None:
            if first.error is not None:
                raise first.error
            return self.tracer.graph
        steps, error = Joiner(self.tracer.resolve).join(way)
        if error is not None:
            raise self.tracer.kept[error.target].error
        return self._emit(first, StepBlock(steps))

    def _run(self, answers: tuple[bool, ...]) -> ProxyRun:
        tracer, path = self._make(), ProgramPath(answers)
        tracer.path = path
        if self.tracer is None:
            self.tracer = tracer
        else:
            mode = self.tracer.abstract.mode
            mode.fake_tensor_converter = FakeTensorConverter()  # drop the changes of earlier runs
            tracer.abstract.mode = mode
        watch = StateWatch(self._root, tracer.traced_func_name, tracer.examples, tracer.starts)
        self._watched.append((watch, tracer))
        tracer.modules, tracer.outside = watch.modules, watch.known
        error: Exception | None = None
        gradients = torch.is_grad_enabled()  # the graph sets the mode
        try:
            with watch.running():
                unwatched(tracer.trace)(self._root, self._concrete)
        except BaseException as raised:  # no signal handler may run before everything is restored
            error = _caught(raised, path, tracer, watch, gradients)
            if error is None:
                if isinstance(raised, Exception) and not is_of_handler(raised):
                    self._explain(raised, path)
                raise
        left = _taken_back(tracer, watch, gradients)
        self.tracer.assumed.update(tracer.assumed)
        run = ProxyRun(tracer, path, error)
        run.left, run.watch = left, watch
        self._runs.append(run)
        return run

    def _settle(self, left: list[Change]) -> None:
        """If the program has changed state, check that the next call does the same.

        Each path must leave the same changes, and must do the same again when it starts from them.
        Then numbers keep their new values, and tensors are assigned when the graph runs.

        Raises:
            TraceError: the program depends on what it has changed.
        """
        for change in left:
            if isinstance(change.before, torch.nn.Module):
                raise refusal(change)  # nodes refer to modules by name
        runs, self._runs = self._runs, []
        for run in runs:
            change = first_difference(left, run.left)
            if change is not None:
                raise refusal(change)
        for run in runs if left else ():
            install(left)
            try:
                again = self._run(tuple(d.answer for d in run.path.decisions))
                self._check_again(run, again)
            except Exception as error:
                if is_of_handler(error):
                    raise
                raise refusal(left[0]) from error
            finally:
                install(change._replace(after=change.before) for change in reversed(left))
                if run.watch is not None:
                    run.watch.restore()  # including the order of keys
        install(change for change in left if change.is_constant)

    def _check_again(self, run: ProxyRun, again: ProxyRun) -> None:
        """Check that a run from the state that another run left does the same.

        Raises:
            Mismatch: it does something different.
        """
        for each in (run, again):
            each.nodes = [node for node in each.nodes if not _is_check(node)]
        for node in run.nodes if not run.values else ():
            self._step(run, node)
        self._compare(run, again, max(len(run.nodes), len(again.nodes)))
        if type(run.error) is not type(again.error) or any(c.is_constant for c in again.left):
            raise Mismatch

    def _explain(self, error: Exception, path: ProgramPath) -> None:
        asked = isinstance(error, TypeError) or has_proxy(error.args)
        if asked and self.tracer.examples is None and not isinstance(error, SymbolicTraceError):
            error.add_note(
                "Traced without example inputs, so sizes are not known; pass some: "
                "calque.trace(f, x)."
            )
        if path.decisions:
            decision = path.decisions[-1]
            word = "true" if decision.answer else "false"
            error.add_note(f"on the path where the condition at {decision.origin} is {word}")

    def _way(self, run: ProxyRun, depth: int) -> PathSegment:
        """Returns the segment of a run after a decision, including the alternative runs."""
        decisions = run.path.decisions
        start = decisions[depth - 1].position if depth else 0
        if depth == len(decisions):
            steps: Steps = [self._step(run, node) for node in run.nodes[start:]]
            return PathSegment(steps, None if run.error is None else self._error(run.error))
        decision = decisions[depth]
        steps: Steps = [self._step(run, node) for node in run.nodes[start : decision.position]]
        condition = run.values[decision.condition]
        true = self._way(run, depth + 1)
        self._budget.spend(decisions[: depth + 1])
        answers = (*(d.answer for d in decisions[:depth]), not decision.answer)
        other = self._run(answers)
        self._check_repeated(run, other, depth)
        return PathSegment(steps, Fork(decision, condition, true, self._way(other, depth + 1)))

    def _check_repeated(self, run: ProxyRun, other: ProxyRun, depth: int) -> None:
        """Check that another run is the same up to the decision where it branches off."""
        decision, again = run.path.decisions[depth], other.path.decisions[depth : depth + 1]
        if not again or again[0].position != decision.position:
            raise _not_repeated(decision.origin)
        self._compare(run, other, decision.position)

    def _compare(self, run: ProxyRun, other: ProxyRun, length: int) -> None:
        """Check that the first nodes of two runs are the same."""
        for node, twin in itertools.zip_longest(run.nodes[:length], other.nodes[:length]):
            if node is None or twin is None:
                raise Mismatch
            step = self._step(other, twin)
            value = run.values[node]
            try:
                if not isinstance(value, Step) or value.op != step.op:
                    raise Mismatch
                if not same(value.target, step.target):
                    raise Mismatch
                unified((value.args, value.kwargs), (step.args, step.kwargs), _identical)
            except Mismatch:
                raise _not_repeated(node.meta.get("origin")) from None
            other.values[twin] = value

    def _step(self, run: ProxyRun, node: Node) -> Step:
        values: Any = run.values
        args, kwargs = (map_arg(a, lambda n: values[n]) for a in (node.args, node.kwargs))
        target: Any = node.target
        if node.op in ("get_attr", "call_module"):
            target = self._name(run.tracer, str(target))
        step = Step(node.op, target, args, kwargs, node)
        step.optional = node in run.tracer.optional
        values[node] = step
        return step

    def _name(self, tracer: "SymbolicTracer", target: str) -> str:
        """Returns the name in the joined graph of a run's `target`."""
        first, dot, rest = target.partition(".")
        if tracer is self.tracer or first not in tracer.kept:
            return target
        value = tracer.kept[first]
        for name, kept in self.tracer.kept.items():
            if kept is value or _are_alike(kept, value):
                return f"{name}{dot}{rest}"
        name = self.tracer.get_fresh_qualname(first.rstrip("0123456789"))
        self.tracer.keep(name, value)
        return f"{name}{dot}{rest}"

    def _error(self, error: Exception) -> Step:
        for name, kept in self.tracer.kept.items():
            if isinstance(kept, Raised) and kept.is_like(error):
                return Step("get_attr", name, (), {})
        name = self.tracer.get_fresh_qualname("_raised")
        self.tracer.keep(name, Raised(error))
        return Step("get_attr", name, (), {})

    def _emit(self, first: ProxyRun, block: StepBlock) -> Graph:
        tracer, old = self.tracer, self.tracer.graph
        block = pruned(block, set(), tracer.resolve)
        graph = type(old)(tracer_cls=type(tracer))
        graph._codegen, graph._co_fields = old._codegen, old._co_fields
        nodes: dict[StepValue, Node] = {}
        Emitter(tracer).emit(block, graph, nodes)
        kept = {node: nodes[v] for node, v in first.values.items() if v in nodes}
        tracer.graph = graph
        tracer.assumed.move(kept)
        scopes = tracer.node_name_to_scope
        scoped = {n.name: o.name for o, n in kept.items() if o.name in scopes}
        tracer.node_name_to_scope = {new: scopes[old] for new, old in scoped.items()}
        tracer.assumed.insert_checks(graph)
        return graph


@settles
def _caught(
    raised: BaseException,
    path: ProgramPath,
    tracer: "SymbolicTracer",
    watch: StateWatch,
    gradients: bool,
) -> Exception | None:
    """Returns the error with which the program ends on a path; or restores its state, and returns
    None, if the trace fails.
    """
    torch_c.set_grad_enabled(gradients)
    if not isinstance(raised, Exception):
        forget()  # an interrupt may leave a cache inconsistent
    elif not is_of_handler(raised):
        error = _failed_assertion(raised, path)
        if error is not None or is_deliberate(raised):
            return error or raised
    tracer.assignments.undo()
    watch.restore()
    return None


@settles
def _taken_back(tracer: "SymbolicTracer", watch: StateWatch, gradients: bool) -> list[Change]:
    """Undo the changes that a run has made to the state; returns them."""
    torch_c.set_grad_enabled(gradients)
    return tracer.assignments.undo() + watch.leave(tracer.member_of)


def _failed_assertion(error: Exception, path: ProgramPath) -> AssertionError | None:
    """Returns the error for an `assert` whose message contains values; it shows the statement
    instead.
    """
    last = path.decisions[-1] if path.decisions else None
    if last is None or not last.asserts or last.answer or not isinstance(error, SymbolicTraceError):
        return None
    return AssertionError(last.origin.text if last.origin is not None else "")


def _are_alike(a: object, b: object) -> bool:
    """Returns True if two constants, from different runs, are the same."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return equal_constants(a, b)
    if isinstance(a, ObjectTemplate) and isinstance(b, ObjectTemplate):
        return a == b
    if isinstance(a, torch.nn.Module) and not isinstance(a, Branch):
        return isinstance(b, torch.nn.Module) and are_without_data_alike(a, b)
    kinds = Branch, GraphOwner, Outside  # not by type(a): each graph module has its own class
    return any(isinstance(a, kind) and isinstance(b, kind) and a.is_like(b) for kind in kinds)


def _is_check(node: Node) -> bool:
    """Returns True if a node is one of those that `insert_checks` adds to a run."""
    if node.op == "get_attr":
        return bool(node.users) and all(map(_is_check, node.users))
    return node.target in CHECKS


def _identical(a: StepValue, b: StepValue) -> StepValue:
    if a is not b:
        raise Mismatch
    return a


def _not_repeated(origin: object) -> SymbolicTraceError:
    return SymbolicTraceError(
        f"{origin}: the program branches on tensors, but did something else here when it was run "
        "again for the other branch.\nMake it depend only on its arguments, not on state of an "
        "earlier run (a counter, a cache, random numbers of Python or NumPy)."
    )
