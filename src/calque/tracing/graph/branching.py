"""Branches of the traced program in a graph: calls of `cond`."""

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.fx.graph import Graph
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.graph.checks import recorded
from calque.tracing.graph.member_source import RESERVED, renamed
from calque.upstream import torch_c
from calque.upstream.torch_internals import (
    DropoutNd,
    FakeTensor,
    FakeTensorMode,
    FunctionalizeInterpreter,
    FunctionalTensor,
    FunctorchFunctionalizeAPI,
    OpOverloadPacket,
    get_current_dispatch_mode_stack,
    higher_order_utils,
    retrieve_all_functorch_interpreters,
)

_FUNCTIONS = frozenset(("dropout1d", "dropout2d", "dropout3d", "gumbel_softmax"))
"""Functions of torch.nn.functional that draw random numbers and are not operators."""

Implementation = Callable[[Any, "Branch", "Branch", Sequence[Any]], tuple[Any, ...]]
implementations: dict[str, Implementation] = {}
"""Functions that run `cond` on devices with their own implementation, by the condition's device."""


class Branch(GraphModule):
    """One branch of a choice.

    Its `state_dict` leaves out the modules it calls: they belong to the enclosing graph module,
    whose state contains them under their own names.
    """

    draws: bool = False

    @classmethod
    def of(cls, graph: Graph, resolve: Callable[[str], Any]) -> "Branch":
        """Returns the module that runs a graph.

        Args:
            resolve: returns the object that a name in the graph refers to.
        """
        old = renamed(graph, {str(node.target).partition(".")[0] for node in graph.nodes})
        members = {}
        for node in graph.nodes:
            if node.op in ("call_module", "get_attr"):
                first, dot, rest = str(node.target).partition(".")
                members[str(node.target)] = resolve(f"{old.get(first, first)}{dot}{rest}")
        branch = cls(members, graph, "Branch")
        branch.graph.eliminate_dead_code()
        branch.recompile()
        branch.draws = any(map(_draws, branch.graph.nodes))
        return branch

    def is_random(self) -> bool:
        """Returns True if the branch may draw random numbers, given the modes of its modules."""
        return any(
            module.training if isinstance(module, DropoutNd) else getattr(module, "draws", False)
            for module in self.modules()
            if isinstance(module, (DropoutNd, Branch))
        )

    def __reduce__(self) -> Any:
        return _rebuilt, super().__reduce__()[:2]

    def is_like(self, other: "Branch") -> bool:
        """Returns True if another branch does the same with the same modules and tensors."""
        return self.code == other.code and all(map(_is_same, self._named(), other._named()))

    def _named(self) -> Iterator[Any]:
        for node in self.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                yield operator.attrgetter(str(node.target))(self)

    def state_dict(self, *args: Any, destination: object = None, **kwargs: Any) -> Any:
        """Returns nothing; see the class."""
        return {} if destination is None else destination

    def _load_from_state_dict(self, state_dict: dict[Any, Any], prefix: str, *args: Any) -> None:
        for members in (self.named_parameters, self.named_buffers):
            for name, member in members():
                state_dict.setdefault(prefix + name, member.detach())


def in_branches(module: torch.nn.Module, root: torch.nn.Module) -> Iterator[str]:
    """Yields the paths in the traced root of the modules that a graph module's branches call."""
    called = {
        id(inner)
        for branch in module.modules()
        if isinstance(branch, Branch)
        for node in branch.graph.find_nodes(op="call_module")
        for inner in [branch.get_submodule(str(node.target))]
    }
    pending = [("", root)]
    while pending:
        path, one = pending.pop()
        if id(one) in called:
            yield path
        elif not isinstance(one, Branch):
            pending += [
                (f"{path}.{name}" if path else name, inside)
                for name, inside in one._modules.items()
                if inside is not None and (path or name not in RESERVED)  # has another name, too
            ]


def _rebuilt(function: Callable[..., GraphModule], args: tuple[Any, ...]) -> Branch:
    module = function(*args)
    return Branch.of(module.graph, lambda name: operator.attrgetter(name)(module))


def _is_same(a: object, b: object) -> bool:
    return a is b or (isinstance(a, Branch) and isinstance(b, Branch) and a.is_like(b))


@recorded
def cond(
    condition: object, true: Branch, false: Branch, operands: Sequence[Any]
) -> tuple[Any, ...]:
    """Returns the results of `true` or of `false`, called with the operands.

    Like `torch.cond`, but outside a compiler only one of the two runs, as in Python: on the
    operands themselves, recorded by autograd, with side effects.

    Args:
        condition: a tensor of one element, or a Python value.
        true, false: functions of the operands that return tuples of the same structure.
        operands: the values that the functions use.

    Raises:
        RuntimeError: the condition is a tensor that does not have exactly one element.
    """
    if isinstance(condition, torch.Tensor):
        staged = torch.compiler.is_dynamo_compiling() or _is_staged(condition)
        if staged and (true.is_random() or false.is_random()) and torch_c.is_grad_enabled():
            _leave_compiler()
        elif staged:
            return _staged(condition, true, false, operands)
        own = implementations.get(condition.device.type)
        if own is not None:
            return own(condition, true, false, operands)
    return (true if condition else false)(*operands)


def _leave_compiler() -> None:
    """Breaks the graph of a compiler, because `torch.cond` would draw random numbers again in the
    backward pass.

    Raises:
        TraceError: this does not run under torch.compile, where a call can run outside the graph.
    """
    if torch.compiler.is_dynamo_compiling():
        torch._dynamo.graph_break()  # noqa: TID251  (dynamo knows it by this name)
        return
    raise SymbolicTraceError(
        "a branch draws random numbers, but torch.cond would draw different ones for its "
        "gradient.\nCall this under torch.no_grad(), put the model in evaluation mode, or draw "
        "the numbers before the `if`."
    )


def _draws(node: Node) -> bool:
    name = getattr(node.target, "__name__", str(node.target))
    if not node.op.startswith("call_") or node.op == "call_module":
        return False
    return _may_draw(name) and node.kwargs.get("training") is not False


@functools.lru_cache(maxsize=4096)
def _may_draw(name: str) -> bool:
    """Returns True if PyTorch tags a function, method or operator as drawing random numbers."""
    packet = getattr(torch.ops.aten, name.partition(".")[0], None)
    if not isinstance(packet, OpOverloadPacket):
        return name in _FUNCTIONS
    tags = (getattr(packet, overload).tags for overload in packet.overloads())
    return any(torch.Tag.nondeterministic_seeded in found for found in tags)


def _staged(
    condition: torch.Tensor, true: Branch, false: Branch, operands: Sequence[Any]
) -> tuple[Any, ...]:
    """Calls PyTorch's own operator, for a compiler; it takes tensors and returns new ones."""
    flag = condition.reshape(()).bool()
    tensors = tuple(o for o in operands if isinstance(o, torch.Tensor))

    def call(
        branch: Branch, members: dict[str, torch.Tensor] | None, given: Any
    ) -> tuple[Any, ...]:
        rest = iter(given)
        args = tuple(next(rest) if isinstance(o, torch.Tensor) else o for o in operands)
        results = branch(*args) if members is None else functional_call(branch, members, args)
        return tuple(r.clone() if isinstance(r, torch.Tensor) else r for r in results)

    if torch.compiler.is_dynamo_compiling():
        return torch.cond(
            flag, lambda *g: call(true, None, g), lambda *g: call(false, None, g), tensors
        )
    names = [dict(_members(branch)) for branch in (true, false)]
    members = [list(found) for found in names]
    extra = tuple(tensor for found in names for tensor in found.values())
    first, last = len(tensors), len(tensors) + len(members[0])
    return _chosen(
        flag,
        lambda *g: call(true, dict(zip(members[0], g[first:last])), g[:first]),
        lambda *g: call(false, dict(zip(members[1], g[last:])), g[:first]),
        (*tensors, *extra),
    )


def _chosen(flag: torch.Tensor, true: Any, false: Any, operands: tuple[Any, ...]) -> Any:
    """Calls `torch.cond`, but to remove writes, does not make the schema, which nothing reads then.

    For it, PyTorch traces both branches once more at each level of nesting, which takes twice the
    time for each.
    """
    layers = retrieve_all_functorch_interpreters()
    if not layers or not isinstance(layers[-1], FunctionalizeInterpreter):
        return torch.ops.higher_order.cond(flag, true, false, operands)
    rule = FunctorchFunctionalizeAPI(layers[-1])
    given: Any = rule.unwrap_tensors(operands)
    condition: Any = rule.unwrap_tensors(flag)
    with rule.redispatch_to_next():
        for branch, name in ((true, "cond_true"), (false, "cond_false")):
            _refuse_writes(branch, given, name)
        functional = map(rule.functionalize, (true, false))
        found = torch.ops.higher_order.cond(condition, *functional, given)
        return rule.wrap_tensors(found)


def _refuse_writes(branch: Any, given: Any, name: str) -> None:
    """Raises PyTorch's error for a branch that writes to its inputs or returns one of them.

    PyTorch's own check also refuses inputs that share memory, such as a layer that both branches
    call, but without writes they do no harm.
    """
    found: Any = higher_order_utils.potential_input_alias_or_mutation(branch, given)
    (_, with_inputs, among_results), written = ((), (), ()), True
    if isinstance(found, tuple):  # not for a branch inside that writes
        (_, with_inputs, among_results), written = found
    if with_inputs or among_results:
        raise RuntimeError(f"{name} might be aliasing the input or the output!")
    if written:
        raise RuntimeError(f"{name} might be modifying the input!")


Loop = Callable[["Branch", "Branch", Sequence[Any], Sequence[Any]], tuple[Any, ...]]
loop_implementations: dict[str, Loop] = {}
"""Functions that run `while_loop` on devices with their own implementation."""


@recorded
def while_loop(
    test: Branch, body: Branch, carried: Sequence[Any], captured: Sequence[Any]
) -> tuple[Any, ...]:
    """Runs the body while the test is true, and returns the loop variables.

    Like `torch.while_loop`, but outside a compiler it runs as a Python loop.

    Args:
        test: takes the carried and the captured values; returns the condition, in a tuple.
        body: takes the same values; returns the next carried values.
    """
    first = next((c for c in carried if isinstance(c, torch.Tensor)), None)
    if torch.compiler.is_dynamo_compiling():
        return torch.while_loop(
            lambda *c: test(*c, *captured)[0].reshape(()).bool(),
            lambda *c: tuple(r.clone() for r in body(*c, *captured)),
            tuple(carried),
        )
    if first is not None and _is_staged(first):
        return _staged_loop(test, body, tuple(carried), tuple(captured))
    own = loop_implementations.get(first.device.type) if first is not None else None
    if own is not None:
        return own(test, body, carried, captured)
    values = tuple(carried)
    while test(*values, *captured)[0]:
        values = body(*values, *captured)
    return values


def _staged_loop(
    test: Branch, body: Branch, carried: tuple[Any, ...], captured: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Calls PyTorch's own operator, which also takes the members of the two branches."""
    names = [dict(_members(branch)) for branch in (test, body)]
    extra = {id(tensor): tensor for found in names for tensor in found.values()}
    places = {key: place for place, key in enumerate(extra)}
    given = len(carried) + len(captured)

    def call(branch: Branch, found: dict[str, torch.Tensor], values: tuple[Any, ...]) -> Any:
        members = values[given:]
        held = {name: members[places[id(tensor)]] for name, tensor in found.items()}
        return functional_call(branch, held, values[:given])

    def is_going(*values: Any) -> torch.Tensor:
        return call(test, names[0], values)[0].reshape(()).bool()

    def next_values(*values: Any) -> tuple[Any, ...]:
        return tuple(result.clone() for result in call(body, names[1], values))

    constant = (*captured, *extra.values())
    operator = torch.ops.higher_order.while_loop
    layers = retrieve_all_functorch_interpreters()
    if not layers or not isinstance(layers[-1], FunctionalizeInterpreter):
        return operator(is_going, next_values, carried, constant)
    rule = FunctorchFunctionalizeAPI(layers[-1])
    start: Any = rule.unwrap_tensors(carried)
    constant = rule.unwrap_tensors(constant)
    with rule.redispatch_to_next():
        for branch, name in ((is_going, "while_loop_test"), (next_values, "while_loop_body")):
            _refuse_writes(branch, (*start, *constant), name)
        functional = map(rule.functionalize, (is_going, next_values))
        return rule.wrap_tensors(operator(*functional, start, constant))


def _members(branch: Branch) -> Iterator[tuple[str, torch.Tensor]]:
    yield from branch.named_parameters()
    yield from branch.named_buffers()


def _is_staged(condition: torch.Tensor) -> bool:
    """Returns True if a compiler is capturing the program instead of running it."""
    modes = get_current_dispatch_mode_stack()
    if any(isinstance(mode, (ProxyTorchDispatchMode, FakeTensorMode)) for mode in modes):
        return True
    return isinstance(condition, (FakeTensor, FunctionalTensor))
