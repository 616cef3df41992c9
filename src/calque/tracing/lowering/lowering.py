"""`lower`: turns a graph of calls into a graph of ATen operators.

The graph is run by `_Replay` on FakeTensors, under `make_fx`, which records the operators that
reach PyTorch's dispatcher below autograd. Parameters, buffers and constants are inputs of that run,
so that writes to them are seen; afterwards each is a `get_attr` again.
"""

import copy
import operator
from typing import Any

import torch
import torch.fx
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.errors import tidy, with_user_frames
from calque.errors.handlers import is_of_handler
from calque.tracing.abstract.fakes import AbstractMode
from calque.tracing.graph import checks
from calque.tracing.graph.modes import left_on_error
from calque.tracing.graph.purity import has_effect
from calque.tracing.graph.value_guards import (
    AUTOGRAD,
    HOST,
    expect_answer,
    expect_itself,
    expect_one,
)
from calque.tracing.lowering import composites, explained
from calque.tracing.lowering.assembly import Assembly, tensors_in
from calque.tracing.lowering.bindings import (
    INTO_CONTAINERS,
    GraphState,
    Inputs,
    in_plain_containers,
    parameters_and_buffers,
    refuse_changed_arguments,
    resolve,
)
from calque.tracing.lowering.checked_properties import is_unknown
from calque.tracing.lowering.choices import refuse_writes_to_choices
from calque.tracing.lowering.complex_parts import writes_complex
from calque.tracing.lowering.detaching import DetachingMode, forward_of
from calque.tracing.lowering.functional_forms import FUNCTIONAL, IN_PLACE
from calque.tracing.lowering.indexed_copies import IndexedCopies
from calque.tracing.lowering.inner_gradients import (
    computes_gradients,
    gradients,
    noticing_saved_results,
    of_autograd,
    refuse_gradients_in_branches,
    without_saved_results,
)
from calque.tracing.lowering.isolation import alone, quiet
from calque.tracing.lowering.layer_attributes import LayerAttributes
from calque.tracing.lowering.nested import refuse_nested
from calque.tracing.lowering.overlaps import Overlaps
from calque.tracing.lowering.own_leaves import OwnLeaves, creates, marks, times_written
from calque.tracing.lowering.reads import (
    NUMBERS,
    GuardedRead,
    PendingAnswer,
    is_guard,
    name_of_target,
    read_of,
    reads_elements,
)
from calque.tracing.lowering.recorded_nodes import RecordedNodes
from calque.tracing.lowering.unseen_writes import OF_AUTOGRAD, refuse_unseen_writes, takes_gradient
from calque.tracing.lowering.writes import without_writes
from calque.upstream import torch_c
from calque.upstream.torch_internals import (
    DataDependentOutputException,
    pytree,
    reparametrize_module,
)


@with_user_frames
def lower(graph: GraphModule, /, *args: Any, functional: bool = True, **kwargs: Any) -> GraphModule:
    """Replaces each call of a graph with the ATen operators that it runs.

    As in graphs of `torch.export`, the operators are those below autograd, and none of them
    writes in place. But the parameters and buffers stay members of the graph, the signature stays
    the same, and each node has the `origin` of the node that it is part of.

    Args:
        graph: a graph made by `calque.trace`, `calque.symbolic_trace` or any other tracer.
        *args: an example call, of which only the shapes, dtypes and devices matter. Without any
            arguments, the abstract values that the graph was traced with are used.
        **kwargs: the keyword arguments of the example call.
        functional: whether to remove operators that write in place; what the program writes to
            inputs, parameters and buffers is then copied to them at the end, by `aten.copy_`.
            With False, in-place operators are kept.

    Returns:
        A `torch.fx.GraphModule` that shares the parameters of `graph`. The nodes have `val`,
        `origin`, `nn_module_stack` and `stack_trace` in their `meta`. The graph checks that its
        inputs have the shapes and dtypes, and the module the mode, that it was lowered with.

    Raises:
        TraceError: a call of the graph depends on values of tensors, or defines a gradient that
            the operators do not have (an `autograd.Function`, while gradients are enabled).
        TypeError: `graph` is not a graph, but the module or function itself.

    >>> import calque, torch
    >>> graph = calque.trace(lambda x: torch.nn.functional.silu(x) * 2, torch.ones(3))
    >>> print(calque.lower(graph).code)
    <BLANKLINE>
    ...
        silu = torch.ops.aten.silu.default(x);  x = None
        mul = torch.ops.aten.mul.Tensor(silu, 2);  silu = None
        return mul
    <BLANKLINE>
    """
    if not isinstance(graph, GraphModule):
        what = type(graph).__name__
        raise TypeError(f"calque.lower takes a graph, not a {what}: calque.trace makes one")
    if computes_gradients(graph.graph) and not torch.is_grad_enabled():
        with torch.enable_grad():  # otherwise there is nothing to differentiate
            return lower(graph, *args, functional=functional, **kwargs)
    if torch.is_grad_enabled():
        refuse_unseen_writes(graph.graph)
    refuse_writes_to_choices(graph.graph)
    refuse_changed_arguments(graph.graph)
    refuse_gradients_in_branches(graph)
    mode = AbstractMode()
    inputs, state = Inputs(graph, args, kwargs, mode), GraphState(graph, mode)
    try:
        return _lowered(graph, inputs, state, functional)
    except RuntimeError as error:
        if not explained.is_write_to_leaf(error):
            raise
    inputs.ungraded()  # the inputs are not leaves, so the program may write to them
    return _lowered(graph, inputs, state, functional)


def _lowered(
    graph: GraphModule, inputs: Inputs, state: GraphState, functional: bool
) -> GraphModule:
    replay = _Replay(graph, state, functional)

    def run(*leaves: torch.Tensor) -> list[torch.Tensor]:
        count = replay.count_of_members
        held = dict(zip(state.names, leaves[:count]))
        return replay.flat(held, inputs.filled(leaves[count:]), leaves)

    table = FUNCTIONAL if functional else {}
    traced = torch.func.functionalize(run, remove="mutations") if functional else run
    try:
        with alone(), composites.held(functional), fx_traceback.preserve_node_meta(), quiet():
            found = make_fx(traced, table, tracing_mode="fake", _allow_non_fake_inputs=True)(
                *state.values, *inputs.tensors
            )
            place = replay.recorded.source_in(found, replay.writers)
            without_saved_results(found)
            if functional:
                found, place = without_writes(found, place, [*state.values, *inputs.tensors], table)
    except Exception as error:
        if is_of_handler(error):
            raise
        raise tidy(replay.located(error)) from None
    return Assembly(graph, found, state.names, inputs, place, replay, functional).module()


class _Replay(torch.fx.Interpreter):
    """Runs the graph for `make_fx`, and tracks which node is running.

    Attributes:
        recorded: the nodes that `make_fx` created.
        writers: for each leaf that was written to, the node of the last write.
        result: what the graph returned, with its containers.
        given_back: for each tensor that it returned or assigned, the index of the leaf that it is,
            or None.
        assigned: the nodes that assign attributes, with the assigned values.
        leaves: the members and inputs.
        count_of_members: how many of `leaves` are members.
        is_differentiable: whether gradients are enabled where it begins.
        layers: the attributes that layers assign to their modules.
        reads: the guards of values.
    """

    def __init__(self, graph: GraphModule, state: GraphState, functional: bool) -> None:
        super().__init__(graph, garbage_collect_values=True)
        self._overlaps = Overlaps() if functional else None
        self._copies = IndexedCopies()
        self.extra_traceback = False
        self.recorded = RecordedNodes()
        self.writers: dict[int, Node] = {}
        self.result: Any = None
        self.given_back: list[int | None] = []
        self.assigned: dict[Node, Any] = {}
        self.reads: list[GuardedRead] = []
        self.layers = LayerAttributes(self.module)  # pyright: ignore[reportArgumentType]
        self.count_of_members = len(state.names)
        self._state = state
        self._held: dict[str, torch.Tensor] = {}
        self._given: dict[str, Any] = {}
        self.leaves: tuple[torch.Tensor, ...] = ()
        self._running: Node | None = None
        self.is_differentiable = True
        self._ungraded = DetachingMode()
        self.own_leaves = OwnLeaves()

    def flat(
        self, held: dict[str, torch.Tensor], args: list[Any], leaves: tuple[torch.Tensor, ...]
    ) -> list[torch.Tensor]:
        """Returns the tensors in the graph's result for `args`, with `held` as its members.

        The order is: the returned tensors, those assigned to attributes, and copies of those that
        guards read.
        """
        self.assigned, self.reads = {}, []
        self._held = {name: held[first] for name, first in self._state.aliases.items()}
        self.leaves = leaves
        self.is_differentiable = torch_c.is_grad_enabled()
        pairs = [*zip(leaves, self._state.values)]
        self._ungraded.computes_gradients = computes_gradients(self.module.graph)
        self._ungraded.takes_pairs = writes_complex(self.module.graph)
        self._ungraded.frozen = {id(leaf) for leaf, old in pairs if not old.requires_grad}
        self.own_leaves.trained = {id(leaf) for leaf, old in pairs if old.requires_grad}
        own = parameters_and_buffers(self.module)
        members = {name: tensor for name, tensor in self._held.items() if name in own}
        module: Any = self.module
        with (
            reparametrize_module(module, members),
            left_on_error(self),
            self.layers,
            self._ungraded,
            noticing_saved_results(module.graph),
        ):
            names = [str(node.target) for node in module.graph.find_nodes(op="placeholder")]
            self._given = dict(zip(names, args, strict=True))
            shapes = [leaf.shape for leaf in leaves]
            self.result = self.run(enable_io_processing=False)
            if any(leaf.shape != shape for leaf, shape in zip(leaves, shapes)):
                raise explained.changed_geometry()
        kept = [each.value for each in self.layers.assigned]
        values = (self.result, *self.assigned.values(), *kept)
        given = [t for each in values for t in tensors_in(each)]
        places = {id(leaf): place for place, leaf in enumerate(leaves)}
        self.given_back = [places.get(id(tensor)) for tensor in given]
        return [*given, *(tensor for read in self.reads for tensor in read.tensors)]

    def run_node(self, n: Node) -> Any:
        """Run a node, and attribute to it the nodes that `make_fx` records meanwhile."""
        self._running = n
        if marks(n):
            return self.own_leaves.marked(n, self)
        if reads_elements(n):
            if (later := self._later(n)) is None:
                raise explained.depends_on_values(name_of_target(n.target))
            return later
        if n.op == "call_method" and n.target in HOST:
            raise explained.reads_a_number(n.target)
        writes = n.op.startswith("call") and has_effect(n)
        before = [times_written(leaf) for leaf in self.leaves] if writes else []
        if writes and self._overlaps is not None:
            self._overlaps.refuse_write(n)
        try:
            result = super().run_node(n)
        except DataDependentOutputException as error:
            self.recorded.forget(error.func)
            if (later := self._later(n)) is not None:
                return later
            if n.target in NUMBERS:
                raise explained.reads_a_number(name_of_target(n.target)) from None
            given = self.fetch_args_kwargs_from_env(n)[0]
            is_done, result = self._copies.instead(n, given) if self._overlaps else (False, None)
            if not is_done:
                raise
        if self._overlaps is not None:
            self._overlaps.ran(n, result)
            self._copies.ran(n)
        if self._is_ungraded(n):
            # Operators ignore the gradient mode, so detach the results of a no_grad block.
            result = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, result)
        if self.is_differentiable and creates(n):
            result = self.own_leaves.created(result)
        for index, count in enumerate(before):
            if times_written(self.leaves[index]) != count:
                self.writers[index] = n
        if writes:
            self.own_leaves.refuse_write(n)
        self.recorded.claim(n)
        return result

    def _is_ungraded(self, n: Node) -> bool:
        """Returns True if a call is in a `no_grad` block, and its results have no gradient."""
        if not n.op.startswith("call") or not self.is_differentiable or torch_c.is_grad_enabled():
            return False
        is_part = n.target is operator.getitem and not isinstance(
            self.env.get(n.args[0]), torch.Tensor
        )
        return n.target is not torch.autograd.grad and not is_part

    def _later(self, n: Node) -> PendingAnswer | None:
        """Returns a placeholder for a value that only a guard needs; None for other values."""
        read = read_of(n, *self.fetch_args_kwargs_from_env(n)) if is_guard(n) else None
        if read is None:
            return None
        self.reads.append(read)
        self.recorded.claim(n)
        return PendingAnswer(n)

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[Any, Any]]:
        """Copies lists, as the generated code does, because the function may change them."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return in_plain_containers(args), in_plain_containers(kwargs)

    def placeholder(self, target: Any, args: object, kwargs: object) -> Any:
        """Returns an input, in its containers."""
        return self._given[target]

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Returns the tensor that represents a member of the graph in this run."""
        return self._held[target] if target in self._held else resolve(self.module, target)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Calls a method of a tensor."""
        target = IN_PLACE.get(target, target)
        if target == "requires_grad_" and False in (*args[1:], *kwargs.values()):
            return args[0].detach()
        if target in OF_AUTOGRAD:
            raise explained.computes_gradients(target)
        return super().call_method(target, args, kwargs)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Calls a layer of the graph."""
        module = self.fetch_attr(target)
        modules = list(module.modules())
        refuse_nested(module, modules, args, kwargs)
        self.layers.callers |= dict.fromkeys(modules, self._running)
        hooked = any(m._backward_hooks or m._backward_pre_hooks for m in modules)
        if hooked and self.is_differentiable:
            raise explained.has_hooks(target)
        self._ungraded.in_layer = self.is_differentiable
        try:
            return super().call_module(target, args, kwargs)
        finally:
            self._ungraded.in_layer = False

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Calls a function of the graph."""
        if (refusal := explained.REFUSED.get(target)) is not None:
            raise refusal()
        if target is torch.autograd.grad:
            return gradients(*args, **kwargs)
        if target is getattr and isinstance(args[0], torch.Tensor) and is_unknown(args[1]):
            return of_autograd(*args[:2])
        if target is checks.raise_when and isinstance(args[0], torch.Tensor):
            return checks.assert_later(*args)
        if target is expect_one:
            raise explained.two_for_one(args[2])
        if target is checks.assign:
            assert self._running is not None
            self.assigned[self._running] = args[2]  # `Assembly` adds the assignment
            return None
        if target in (checks.expect_given, checks.expect_mode, checks.expect_distinct):
            return None  # `Assembly` adds the check
        if target is expect_itself or (target is checks.expect_value and args[0] is ...):
            return None  # holds for the example; or `Assembly` checks a default that is an object
        if target in INTO_CONTAINERS and not isinstance(args[0], torch.Tensor):
            raise explained.changes_container()
        if target is checks.expect_tensor:  # functional tensors have no autograd state
            unasked = (*AUTOGRAD, checks.GRADIENT)
            args = (*args[:2], {k: v for k, v in args[2].items() if k not in unasked})
        if target is expect_answer and (is_unknown(args[2]) or isinstance(args[0], PendingAnswer)):
            return None  # nor do they know of autograd
        kind = getattr(target, "differentiates", None)
        if target is copy.deepcopy and isinstance(args[0], torch.Tensor):
            return args[0].detach().clone()
        if target in (copy.copy, torch.nn.Parameter) and isinstance(args[0], torch.Tensor):
            return args[0].detach()
        name = IN_PLACE.get(name_of_target(target), "")
        if name and args and isinstance(args[0], torch.Tensor):
            return getattr(args[0], name)(*args[1:])
        if self._overlaps is not None:
            is_graded = torch_c.is_grad_enabled() and takes_gradient(self._running)
            done = composites.in_turn(target, args, kwargs, is_graded)
            if done is not None:
                return done
        target = composites.written_here(target)
        if kind is None:
            return target(*args, **kwargs)
        return forward_of(kind, args, kwargs, self._ungraded.computes_gradients)

    def located(self, error: Exception) -> Exception:
        """Returns the error with a note that names the program's line."""
        error = explained.explained(error)
        if self._running is not None and (origin := self._running.meta.get("origin")) is not None:
            error.add_note(f"while lowering {origin}: {origin.text}")
        return error
