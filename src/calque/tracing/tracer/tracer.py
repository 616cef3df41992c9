"""`Tracer`: runs a program on proxies and records what it does as a graph, as torch.fx's does."""

import copy
import functools
import inspect
import math
from collections import OrderedDict
from collections.abc import Callable
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any, Self, get_args

import torch
from torch.fx.graph import Graph
from torch.fx.node import Argument

from calque.tracing.core.active import tracing
from calque.tracing.core.patching import Patches
from calque.tracing.core.scope import Scope, ScopeContextManager
from calque.tracing.proxies.modules import ModuleHooks, hold_modules
from calque.tracing.proxies.node_creation import TracerBase
from calque.tracing.proxies.proxy import ParameterProxy
from calque.tracing.proxies.wrapping import LeafFunctions
from calque.tracing.tracer.constants import constant_argument
from calque.tracing.tracer.placeholders import arguments_for_root, placeholder
from calque.upstream.torch_internals import ConstantAttributeType, LazyGraphModule, PyTreeCodeGen

_CONSTANTS = get_args(ConstantAttributeType)


@functools.lru_cache(maxsize=64)
def _takes_factory(create_proxy: Callable[..., Any]) -> bool:
    return "proxy_factory_fn" in inspect.signature(create_proxy).parameters


class Tracer(TracerBase):
    """Traces modules and functions, like torch.fx's tracer.

    Subclass it and override a method to trace differently: each method says what it decides.

    Args:
        autowrap_modules: modules whose public functions are leaves under any name.
        autowrap_functions: functions that are leaves under any name.
        param_shapes_constant: read the shape of a parameter while tracing, instead of recording it.

    >>> graph = Tracer().trace(lambda x: torch.relu(x) + 1)
    >>> " ".join(node.name for node in graph.nodes)
    'x relu add output'
    """

    graph_type: type[Graph] = Graph
    pytree_codegen: type[PyTreeCodeGen] = PyTreeCodeGen
    contexts: Any = None

    @classmethod
    def _graph_module_deserialization_tracer(cls, root: torch.nn.Module) -> Self:
        """Returns the class in which later releases of PyTorch unpickle a tracer's graphs."""
        return cls()

    def __init__(
        self,
        autowrap_modules: tuple[ModuleType, ...] = (math,),
        autowrap_functions: tuple[Callable[..., Any], ...] = (),
        param_shapes_constant: bool = False,
    ) -> None:
        super().__init__()
        public = chain.from_iterable(vars(module).items() for module in autowrap_modules)
        self._autowrap_function_ids = {
            id(value) for name, value in public if not name.startswith("_") and callable(value)
        }
        self._autowrap_function_ids |= set(map(id, autowrap_functions))
        self._autowrap_search: list[ModuleType] = list(autowrap_modules)
        self.param_shapes_constant = param_shapes_constant
        self.submodule_paths: dict[torch.nn.Module, str] | None = None
        self.root_module_name: str = ""
        self.scope: Scope = Scope("", None)
        self.module_stack: OrderedDict[str, tuple[str, Any]] = OrderedDict()
        self.num_calls: dict[str, int] = {}
        self.node_name_to_scope: dict[str, tuple[str, Any]] = {}
        self._fresh: dict[str, int] = {}
        self._names: dict[int, tuple[str, Any]] = {}

    def get_fresh_qualname(self, prefix: str) -> str:
        """Returns a name that begins with `prefix` and is not an attribute of the root."""
        number = self._fresh.get(prefix, 0) if hasattr(self.root, f"{prefix}0") else 0
        while hasattr(self.root, f"{prefix}{number}"):
            number += 1
        self._fresh[prefix] = number
        return f"{prefix}{number}"

    def keep(self, name: str, value: Any) -> None:
        """Keep a constant under a name that the graph can refer to: as an attribute of the root."""
        setattr(self.root, name, value)

    def create_arg(self, a: Any) -> Argument:
        """Returns `a` in the form in which a node holds it.

        Beyond the base class: parameters, buffers and submodules of the root become `get_attr`
        nodes; other tensors are kept as attributes of the root; named tuples become nodes.

        Raises:
            NameError: `a` is a parameter that does not belong to the root.
            NotImplementedError: `a` is of a type that a graph cannot hold.
        """
        return constant_argument(self, a)

    def _lower(self, a: object) -> Argument:
        return super().create_arg(a)

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        """Returns True if a call of `m` is one node, instead of the calls in its forward.

        By default the modules of torch.nn are leaves, except `Sequential`.
        """
        home = m.__module__
        leaf = home.startswith(("torch.nn", "torch.ao.nn"))
        return leaf and not isinstance(m, torch.nn.Sequential)

    def is_one_node(self, m: torch.nn.Module, path: str) -> bool:
        """Returns True if this call of `m` is one node: `m` is a leaf, can be called later, and is
        not the root, whose call is the program itself.
        """
        return bool(path) and self.is_leaf_module(m, path)

    def path_of_module(self, mod: torch.nn.Module) -> str:
        """Returns the qualified name of `mod` in the root.

        Raises:
            NameError: `mod` is not a submodule of the root.
        """
        if self.submodule_paths:
            path = self.submodule_paths.get(mod)
        else:
            path = next((name for name, m in self.root.named_modules() if m is mod), None)
        if path is None:
            raise NameError("module is not installed as a submodule")
        return path

    def call_module(
        self,
        m: torch.nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Calls a module: one node for a leaf, otherwise the calls in its `forward`.

        Args:
            forward: calls the module for real.

        Returns:
            The result of the call for the program: a proxy, or what the forward returned.
        """
        path = self.path_of_module(m)
        with ScopeContextManager(self.scope, Scope(path, type(m))):
            calls = self.num_calls.get(path, 0)
            key = f"{path}@{calls}" if calls else path
            self.module_stack[key] = (path, type(m))
            self.num_calls[path] = calls + 1
            try:
                if self.is_one_node(m, path):
                    return self.create_proxy("call_module", path, args, kwargs)
                return forward(*args, **kwargs)
            finally:
                self.module_stack.pop(key)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Reads a parameter, a buffer or a submodule of a module.

        Args:
            attr: the name that was read.
            attr_val: the value of that attribute.
            parameter_proxy_cache: the proxies of earlier reads, by qualified name.
        """
        if isinstance(attr_val, torch.nn.Parameter):
            members = self.root.named_parameters
        elif self.proxy_buffer_attributes and isinstance(attr_val, torch.Tensor):
            members = self.root.named_buffers
        else:
            return attr_val
        name = self._name_of(attr_val, members)
        if name is None:
            return attr_val
        if name not in parameter_proxy_cache:
            parameter_proxy_cache[name] = self._proxy_of_member(name, attr_val)
        return parameter_proxy_cache[name]

    def _name_of(self, value: object, members: Callable[[], Any]) -> str | None:
        known = self._names.get(id(value))
        if known is not None and known[1] is value:
            return known[0]
        for name, member in members():
            self._names[id(member)] = (name, member)
        known = self._names.get(id(value))
        return known[0] if known is not None and known[1] is value else None

    def _proxy_of_member(self, name: str, value: object) -> Any:
        options: dict[str, Any] = {}
        if _takes_factory(type(self).create_proxy):
            options["proxy_factory_fn"] = (
                (lambda node: ParameterProxy(self, node, name, value))
                if self.param_shapes_constant and isinstance(value, torch.nn.Parameter)
                else None
            )
        return self.create_proxy("get_attr", name, (), {}, **options)

    def member_of(self, value: object) -> Any:
        """Returns the value to assign to a module's attribute instead of the program's value."""
        return value

    def make_module(self, module: torch.nn.Module) -> None:
        """Handle the creation of a module by the program."""

    def delete_attribute(self, module: torch.nn.Module, name: str) -> None:
        """Handle the deletion of a module's attribute."""

    def set_attribute(self, module: torch.nn.Module, name: str, value: object) -> bool:
        """Handle an assignment to a module's attribute;
        returns True if it should be carried out.
        """
        return True

    def keep_mode(self, path: str, training: bool) -> bool:
        """Handle the check of a module's mode in a graph that is traced; returns True if the new
        graph takes it over.
        """
        return False

    def keep_setting(self, name: str, args: tuple[Any, ...], answer: object) -> bool:
        """Handle the check of a setting in a graph that is traced; returns True if the new graph
        takes it over.
        """
        return False

    def create_args_for_root(
        self,
        root_fn: Callable[..., Any],
        is_module: bool,
        concrete_args: dict[str, Any] | tuple[Any, ...] | None = None,
    ) -> tuple[Any, list[Any]]:
        """Create the placeholders for `root_fn`; returns the function to call, and its
        arguments.
        """
        return arguments_for_root(self, root_fn, is_module, concrete_args)

    def _proxy_placeholder(
        self, name: str, concrete_args: Any, sig: inspect.Signature, fn_for_analysis: Any
    ) -> Any:
        return placeholder(self, name, concrete_args, sig, fn_for_analysis)

    def trace(
        self,
        root: torch.nn.Module | Callable[..., Any],
        concrete_args: dict[str, Any] | None = None,
    ) -> Graph:
        """Returns the graph of what `root` does.

        Args:
            root: a function, or a module, whose method `traced_func_name` is traced. For a
                function, `self.root` becomes a new module that holds the constants.
            concrete_args: values for some parameters, used instead of proxies. `PH` stands for a
                proxy inside a container.

        Raises:
            TraceError: the program does something that cannot be traced.
        """
        fn = self._enter(root)
        names = fn.__globals__
        with Patches() as patches:
            leaves = LeafFunctions(patches, self._autowrap_function_ids)
            fn, args = self.create_args_for_root(
                fn, isinstance(root, torch.nn.Module), concrete_args
            )
            hold_modules(patches)
            leaves.hold_registered()
            for globals_ in (names, *map(vars, self._autowrap_search)):
                leaves.hold_in(globals_)
            with tracing(ModuleHooks(self, leaves)):
                self._run(fn, args)
        self.submodule_paths = None
        self._names = {}
        return self.graph

    def _enter(self, root: torch.nn.Module | Callable[..., Any]) -> FunctionType:
        if isinstance(root, torch.nn.Module):
            LazyGraphModule.force_recompile(root)
            if not hasattr(type(root), self.traced_func_name):
                raise AssertionError(
                    f"traced_func_name={self.traced_func_name} doesn't exist in "
                    f"{type(root).__name__}"
                )
            self.root: torch.nn.Module | Callable[..., Any] = root
            fn = getattr(type(root), self.traced_func_name)
            self.root_module_name = root._get_name()
            self.submodule_paths = {module: name for name, module in root.named_modules()}
        else:
            self.root = torch.nn.Module()
            fn = root
        # The tracer that unpickling uses; None selects PyTorch's, which works without calque.
        self.graph: Graph = self.graph_type(tracer_cls=None if type(self) is Tracer else type(self))
        code = getattr(fn, "__code__", None)
        if code is not None:
            fields = ("co_name", "co_filename", "co_firstlineno")
            self.graph._co_fields = {field: getattr(code, field) for field in fields}
        self._names = {}
        self.tensor_attrs: dict[Any, str] = {}
        for prefix, module in self.root.named_modules(remove_duplicate=False):
            for name, value in vars(module).items():
                if isinstance(value, _CONSTANTS):
                    self.tensor_attrs[value] = f"{prefix}.{name}" if prefix else name
        if not isinstance(fn, FunctionType):
            raise AssertionError(f"Expected FunctionType, got {type(fn)}")
        return fn

    def _run(self, fn: Callable[..., Any], args: list[Any]) -> None:
        """Call the program with its placeholders, and record what it returns."""
        annotation = inspect.get_annotations(inspect.unwrap(fn)).get("return")
        result = self.result_argument(fn(*args))
        self.create_node("output", "output", (result,), {}, type_expr=annotation)

    def result_argument(self, value: object) -> Argument:
        """Returns the program's result in the form in which the output node holds it."""
        return self.create_arg(value)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tracer":
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        for key, value in vars(self).items():
            keep = key == "_autowrap_search"  # modules cannot be deep-copied
            vars(copied)[key] = copy.copy(value) if keep else copy.deepcopy(value, memo)
        return copied
