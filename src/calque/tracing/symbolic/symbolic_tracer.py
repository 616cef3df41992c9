"""`SymbolicTracer`: the tracer of `calque.trace`, which refuses operations that need unknown
values.

It differs from `Tracer`, which follows torch.fx, in these rows:

    a call of PyTorch without proxies   a node, not a constant
    a buffer                            a proxy, as a parameter is
    a proxy of a tensor                 is a torch.Tensor; has a tensor's attributes and no others
    bool, int, len, str, iteration      known from the abstract value, or refused
    x += 1, x[i] = v                    recorded as in place
    a constant                          kept by the graph module, not put on the user's
    an optional argument left out       checked when the graph runs
    no_grad, autocast, autograd.Function  recorded
"""

import inspect
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import torch
from torch.fx.graph import Graph
from torch.fx.node import Argument, Node

from calque.errors.handlers import is_of_handler
from calque.state import unwatched
from calque.tracing.abstract.abstract_values import UNKNOWN
from calque.tracing.abstract.fakes import hold_log
from calque.tracing.abstract.tensor_properties import ASPECTS, OF_EACH_RUN, OF_PYTORCH, REFUSED
from calque.tracing.core.bytecode import asks_class, asks_identity
from calque.tracing.core.calling import bound_to
from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.core.patching import Patches
from calque.tracing.core.refusals import current_step, refuse, refuse_because
from calque.tracing.core.torch_settings import hold_settings
from calque.tracing.graph import checks
from calque.tracing.graph.codegen import FaithfulPyTree
from calque.tracing.graph.purity import TracedGraph
from calque.tracing.graph.templates import GraphResults
from calque.tracing.graph.training_modes import reads_training
from calque.tracing.paths.bool_of_proxy import truth
from calque.tracing.paths.decisions import ProgramPath
from calque.tracing.proxies.proxy import has_proxy, record_call
from calque.tracing.proxies.wrapping import registered_identities
from calque.tracing.symbolic.abstract_tracer import AbstractTracer
from calque.tracing.symbolic.assignments import Assignments
from calque.tracing.symbolic.assumptions import CHANGING
from calque.tracing.symbolic.contexts import Contexts, hold_contexts
from calque.tracing.symbolic.entering import as_called
from calque.tracing.symbolic.leaves import ModuleLeaves, ModuleState, has_backward_hooks
from calque.tracing.symbolic.operators import hold_operators
from calque.tracing.symbolic.packed import packed_result, takes_packed
from calque.tracing.symbolic.randomness import hold_randomness
from calque.tracing.symbolic.root_inputs import make_placeholder, order_inputs, unheld, writing_back
from calque.tracing.symbolic.symbolic_proxies import TensorProxy
from calque.tracing.symbolic.types import hold_builtins, hold_checks, hold_limits
from calque.tracing.symbolic.unseen_calls import CallCatcher
from calque.tracing.tracer.constants import Constants
from calque.upstream import torch_c
from calque.upstream.torch_internals import PyTreeCodeGen

_HOLDS = (
    *(hold_contexts, hold_operators, hold_settings, hold_randomness),
    *(hold_limits, hold_log, hold_checks),
)


class SymbolicTracer(AbstractTracer):
    """Like `Tracer`, but where torch.fx is silently wrong, it is right or raises an error.

    Args:
        examples: the arguments of an example call, `(args, kwargs)`: each proxy then has an
            abstract value, and what depends on shapes and dtypes is decided while tracing. With
            None, nothing is known about the inputs.
        options: the arguments of `Tracer`.
    """

    proxy_buffer_attributes = True
    trace_asserts = True
    graph_type: type[Graph] = TracedGraph
    pytree_codegen: type[PyTreeCodeGen] = FaithfulPyTree

    def __init__(
        self, examples: tuple[tuple[Any, ...], dict[str, Any]] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self._autowrap_function_ids |= registered_identities()
        self.examples = examples
        self.given: dict[str, Any] | None = None
        self.decorated: bool = False
        self._members: dict[Node, torch.Tensor] = {}
        self.deferred: list[tuple[Any, tuple[Any, ...]]] = []
        self.containers: list[tuple[Node, Any, Any, Any]] = []
        # Tensors whose Python attributes the program has changed.
        self.annotated: dict[int, Any] = {}
        self.annotated_before: dict[int, dict[str, Any]] = {}
        self.path: ProgramPath | None = None
        self.loops: int = 0  # how many bodies of `torch.while_loop` are being traced
        self._patches: Patches | None = None
        self.modules: Mapping[int, ModuleState] = {}
        self.outside: Mapping[int, Any] = {}
        self.nodes_of: dict[int, tuple[Node, Any]] = {}
        self.ended: bool = False
        self.gradients: bool | None = None
        self.refusal: Exception | None = None
        self.refused_at: tuple[int, int] | None = None
        self.contexts: Contexts = Contexts(self)
        self.constants: Constants = Constants(self)
        self.results: GraphResults = GraphResults(self)
        self.assignments: Assignments = Assignments(self)
        self.leaves: ModuleLeaves = ModuleLeaves({})

    # Running the program

    def trace(
        self,
        root: torch.nn.Module | Callable[..., Any],
        concrete_args: dict[str, Any] | None = None,
    ) -> Graph:
        """Returns the graph of what `root` does; see `Tracer.trace`.

        Raises:
            TraceError: the program does something that no graph can repeat.
        """
        if isinstance(root, torch.nn.Module):
            if reads_training(type(root)):
                self.assumed.modes[""] = root.training
            if self.traced_func_name == "forward":
                self._refuse_backward_hooks(root)
        self.leaves = ModuleLeaves(self.modules)
        with Patches() as patches:
            self._patches = patches
            for hold in _HOLDS:
                hold(patches)
            try:
                graph = super().trace(root, concrete_args)
            except Exception as error:
                if self.refusal is None or is_of_handler(error):
                    raise
                raise self.refusal.with_traceback(error.__traceback__) from None
            finally:
                self.ended, self._patches = True, None
            if self.refusal is not None:
                raise self.refusal  # which the program caught
        if self.path is None or not self.path.decisions:
            for node in reversed(self.optional):
                if not node.users:
                    graph.erase_node(node)
            self.assumed.insert_checks(graph)
        return graph

    def starts(self, code: CodeType, held: dict[str, Any], is_of_user: bool) -> None:
        """Handle code of the program or of a package that runs for the first time,
        with its global variables.
        """
        if is_of_user:
            self.assumed.asks_identity |= asks_identity(code)
            self.assumed.asks_class |= asks_class(code)
        if self._patches is not None:
            hold_builtins(self._patches, code, held)

    def _enter(self, root: Any) -> Any:
        return as_called(root, self.traced_func_name, super()._enter(root))

    def _run(self, fn: Callable[..., Any], args: list[Any]) -> None:
        with CallCatcher(self):
            super()._run(writing_back(self, fn), args)

    def result_argument(self, value: object) -> Argument:
        """Lowers the program's result; objects of classes unknown to graphs are rebuilt."""
        return self.results.argument(value)

    def call_module(
        self,
        m: torch.nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Like `Tracer.call_module`; modules that read `self.training` are remembered."""
        path = self.path_of_module(m)
        self.leaves.add(m)
        if not self.is_one_node(m, path):
            self._refuse_backward_hooks(m)
            if reads_training(type(m)) and not self.assignments.has_set(m, "training"):
                self.assumed.modes[path] = m.training
        result = super().call_module(m, forward, args, kwargs)
        if takes_packed(m, args) and isinstance(result, torch.fx.Proxy):
            return packed_result(self, m, args[0], result)
        return result

    def _refuse_backward_hooks(self, module: torch.nn.Module) -> None:
        if has_backward_hooks(module):
            refuse_because(
                self,
                f"{type(module).__name__} has hooks of the backward pass, and is not one node, so "
                "that the graph would not call them",
                "Register them after the trace, or on a layer of PyTorch's; or trace a module "
                'around it with tracer="record".',
            )

    def is_member(self, root: torch.nn.Module, path: str, value: object) -> bool:
        """Like `NamingTracer.is_member`; False for a value that the program has set temporarily."""
        return self.leaves.is_member(root, path, value)

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        """Like `Tracer.is_leaf_module`; TorchScript modules are leaves, because they run code
        unseen.
        """
        if isinstance(m, torch.jit.ScriptModule):
            return True
        return super().is_leaf_module(m, module_qualified_name)

    def is_one_node(self, m: torch.nn.Module, path: str) -> bool:
        """Like `Tracer.is_one_node`; False for leaves whose call must be traced."""
        return super().is_one_node(m, path) and not self.leaves.must_be_followed(m)

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Returns the placeholders, with the abstract values of the examples, if any."""
        self.decorated = inspect.unwrap(root_fn) is not root_fn
        if self.examples is not None:
            args, kwargs = self.examples
            first = (self.root,) if is_module else ()
            signature = inspect.signature(inspect.unwrap(root_fn))
            name = getattr(root_fn, "__name__", "")
            self.given = bound_to(signature, name, *first, *args, **kwargs)
        made = super().create_args_for_root(root_fn, is_module, concrete_args)
        for check, arguments in self.deferred:
            try:
                lowered = tuple(a if isinstance(a, Node) else self.create_arg(a) for a in arguments)
            except NotImplementedError as error:
                raise unheld(self, *arguments) from error
            self.create_node("call_function", check, lowered, {})
        order_inputs(self.graph, inspect.unwrap(root_fn).__code__)
        self.assumed.last_input = next(iter(reversed(self.graph.nodes)), None)
        return made

    def _proxy_placeholder(
        self, name: str, concrete_args: Any, sig: inspect.Signature, fn_for_analysis: object
    ) -> Any:
        if concrete_args is not None and name in concrete_args:
            return super()._proxy_placeholder(name, concrete_args, sig, fn_for_analysis)
        return make_placeholder(self, name, sig)

    def keep_mode(self, path: str, training: bool) -> bool:
        """Adopt the mode in which a graph within this trace was traced."""
        self.assumed.modes[".".join(filter(None, (self.scope.module_path, path)))] = training
        return True

    def keep_setting(self, name: str, args: tuple[Any, ...], answer: object) -> bool:
        """Adopt an assumption of a graph within this trace."""
        self.assumed.settings[name, args] = answer
        return True

    # Nodes and proxies

    def create_node(self, *args: Any, **kwargs: Any) -> Node:
        """Like `TracerBase.create_node`, and sets `stack_trace` to the line in PyTorch's format."""
        if self.ended:
            raise SymbolicTraceError(
                "a value of a trace is used after the trace has ended, because the traced "
                "program stored it where the trace does not look.\nReturn the value instead."
            )
        node = super().create_node(*args, **kwargs)
        if node.op == "get_attr" and "val" not in node.meta:
            value = self._abstract(node)
            if value is not UNKNOWN:
                node.meta["val"] = value
                self.tensors.add(node)
        self.constants.check(node)
        origin = node.meta.get("origin")
        if origin is not None and not node.stack_trace:
            node.meta["stack_trace"] = (
                f'File "{origin.file}", line {origin.line}, in {origin.function}'
            )
        return node

    @unwatched
    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any
    ) -> Any:
        """Like `TracerBase.create_proxy`, but refuses arguments that no node can hold, and
        addresses of storages.
        """
        if kind == "call_method" and target == "data_ptr":
            refuse(args[0], target)
        try:
            return super().create_proxy(kind, target, args, kwargs, *rest, **options)
        except NotImplementedError as error:
            strange = str(error).removeprefix("argument of type: ")
            if strange == str(error) or not has_proxy((*args, *kwargs.values())):
                raise
            refuse_because(
                self,
                f"{getattr(target, '__name__', target)} gets a value of {strange}, which a graph "
                "cannot hold",
                "Pass tensors, numbers and strings, in tuples, lists, dictionaries or "
                "dataclasses, or use the object as a global or a default of the function.",
            )

    def torch_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle a call of a PyTorch function by the traced program, with or without proxies;
        usually records a node.
        """
        if self.refusal is not None and self.refused_at == current_step():
            self.refusal = None  # PyTorch's argument parser asked, and ignored the error
        name = getattr(func, "__name__", "")
        subject = args[0] if args else None
        if name in ("__get__", "__set__", "__delete__"):
            attribute = func.__self__.__name__
            question = attribute if name == "__get__" else ""
        else:
            attribute, question = "", name
        if question in REFUSED and isinstance(subject, torch.fx.Proxy):
            if question == "grad_fn" and subject.is_leaf is True:
                return None
            refuse(subject, question)
        if question in OF_EACH_RUN and _is_plain(subject):
            refuse(self.proxy(self.create_arg(subject)), OF_EACH_RUN[question])
        aspect = ASPECTS.get(question)
        if aspect is not None:
            if not isinstance(subject, torch.fx.Proxy):
                if aspect in CHANGING and _is_plain(subject):
                    member: Any = self.create_arg(subject)  # the program got it by itself
                    self.assumed.ask_member(member, subject, aspect)
                    self.graph.erase_node(member)
                return func(*args, **kwargs)
            if "val" in subject.node.meta and not has_proxy((*args[1:], *kwargs.values())):
                self.assumed.ask(subject.node, aspect)
                with torch_c.DisableTorchFunction(), self.abstract.mode:
                    return func(subject.node.meta["val"], *args[1:], **kwargs)
        if question in OF_PYTORCH and not has_proxy((*args, *kwargs.values())):
            return func(*args, **kwargs)
        if func is torch_c.set_grad_enabled:
            return self.contexts.set_grad(args[0])
        if name == "__get__":
            return self.create_proxy("call_function", getattr, (subject, attribute), {})
        if name == "__set__":
            return self.create_proxy("call_function", setattr, (subject, attribute, args[1]), {})
        try:
            return record_call(self, func, args, kwargs)
        except NotImplementedError:
            if has_proxy((*args, *kwargs.values())):
                raise
        result = func(*args, **kwargs)  # with arguments that no graph can hold, such as an array
        if isinstance(result, torch.Tensor):
            return self.create_proxy("call_function", checks.fresh, (result,), {})
        return result

    # Python protocols

    def to_bool(self, obj: object) -> bool:
        """Returns the truth value on the current path; refuses it if no path is followed."""
        if self.path is None:
            refuse(obj, "bool")
        return truth(self, self.path, obj)

    def member_of(self, value: object) -> Any:
        """Returns the parameter or buffer that a proxy represents; other values unchanged."""
        return self._members.get(value.node, value) if isinstance(value, TensorProxy) else value

    @unwatched
    def _proxy_of_member(self, name: str, value: Any) -> Any:
        proxy = super()._proxy_of_member(name, value)
        self._members[proxy.node] = value
        proxy.type_of_value = type(value)
        return proxy

    def make_module(self, module: torch.nn.Module) -> None:
        """Note that the program creates a module, whose attributes need no record."""
        self.leaves.made(module)

    def delete_attribute(self, module: torch.nn.Module, name: str) -> None:
        """Handle the deletion of a module's attribute."""
        self.assignments.note(module, name)

    def set_attribute(self, module: torch.nn.Module, name: str, value: object) -> bool:
        """Handle an assignment to a module's attribute;
        returns True if it should be carried out.
        """
        return self.assignments.allow(module, name, value)


def _is_plain(value: object) -> bool:
    """Returns True for a tensor that the program did not get from the trace, such as a parameter
    of a module that it asked for all of its parameters.
    """
    return type(value) in (torch.Tensor, torch.nn.Parameter)
