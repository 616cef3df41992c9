"""The tracer's extension points, as code written for torch.fx uses them."""

import collections
import dataclasses
import enum
import importlib.util
import math
import sys
import types
from typing import Any, NamedTuple

import pytest
import torch

import calque
from calque.tracing import fx
from calque.tracing.fx.experimental import normalize, rewriter
from calque.tracing.fx.proxy import (
    Attribute,
    ParameterProxy,
    Scope,
    ScopeContextManager,
    TraceError,
)
from tests import new_process

X = torch.arange(6.0).reshape(2, 3)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight.shape[0] > 2:
            x = x + self.shift
        return self.linear(x) * self.weight

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def operations(graph: torch.fx.Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_leaf_modules_are_what_the_subclass_says() -> None:
    class Through(fx.Tracer):
        def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
            return False

    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    assert "call_module" in operations(fx.Tracer().trace(model))
    assert "call_module" not in operations(Through().trace(model))


def test_shapes_of_parameters_may_be_constant() -> None:
    graph = fx.Tracer(param_shapes_constant=True).trace(Model())
    assert "call_module" in operations(graph)
    with pytest.raises(TraceError):
        fx.Tracer().trace(Model())


def test_buffers_are_proxies_on_request() -> None:
    class Buffers(fx.Tracer):
        proxy_buffer_attributes = True

    graph = Buffers(param_shapes_constant=True).trace(Model())
    assert "shift" in [node.target for node in graph.nodes if node.op == "get_attr"]


def test_another_method_may_be_traced() -> None:
    tracer = fx.Tracer()
    tracer.traced_func_name = "other"
    assert operations(tracer.trace(Model())) == ["placeholder", "call_module", "output"]


def test_proxies_may_be_of_a_class_of_the_users_own() -> None:
    class Doubling(fx.Proxy):
        def twice(self) -> Any:
            return self + self

    class DoublingTracer(fx.Tracer):
        def proxy(self, node: torch.fx.Node) -> fx.Proxy:
            return Doubling(node, self)

    graph = DoublingTracer().trace(lambda x: x.twice())
    assert [node.name for node in graph.nodes] == ["x", "add", "output"]


def test_call_module_and_getattr_may_be_overridden() -> None:
    seen = []

    class Watching(fx.Tracer):
        def call_module(self, m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
            seen.append(self.path_of_module(m))
            return super().call_module(m, forward, args, kwargs)

        def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
            seen.append(attr)
            return attr_val

    Watching().trace(Model())
    assert seen[-3:] == ["linear", "linear", "weight"]


def test_iteration_and_truth_may_be_overridden() -> None:
    class Bold(fx.Tracer):
        def to_bool(self, obj: Any) -> bool:
            return False

        def iter(self, obj: Any) -> Any:
            return iter([obj[0], obj[1]])

    graph = Bold().trace(lambda x: [y for y in x] if x else sum(z for z in x))  # noqa: C416
    assert [node.name for node in graph.nodes].count("getitem") == 1


class Color(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Box:
    inside: Any


class Special:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __fx_create_arg__(self, tracer: Any) -> Any:
        return tracer.create_node("call_function", Special, (tracer.create_arg(self.value),), {})


@fx.wrap
def leaf(*args: Any) -> Any:
    return args


ARGUMENTS = {
    "slice": lambda x: slice(x, 3, None),
    "enum": lambda x: Color.RED,
    "named tuple": lambda x: Pair(x, 1),
    "dataclass": lambda x: Box(x),
    "protocol": lambda x: Special(x),
    "dictionary": lambda x: {"a": x, 1: 2},
    "dtype": lambda x: torch.float32,
    "ellipsis": lambda x: (..., x),
    "size": lambda x: torch.Size((1, 2)),
    "operator": lambda x: torch.ops.aten.add.Tensor,
}


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_an_argument_reaches_the_function_as_it_was(kind: str) -> None:
    make = ARGUMENTS[kind]
    graph = fx.symbolic_trace(lambda x: leaf(make(x), x))
    found, expected = graph(3)[0], make(3)
    if kind == "protocol":
        found, expected = found.value, expected.value
    assert found == expected


def test_a_proxy_cannot_be_a_key() -> None:
    with pytest.raises(RuntimeError, match="cannot contain a Node"):
        fx.symbolic_trace(lambda x: leaf({(1, x): 2}, x))


def test_an_argument_that_no_graph_can_hold_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="argument of type"):
        fx.symbolic_trace(lambda x: leaf(x, object()))


def test_concrete_arguments_are_checked_when_the_graph_runs() -> None:
    graph = fx.symbolic_trace(lambda x, flag: x + 1 if flag else x, {"flag": True})
    torch.testing.assert_close(graph(X, True), X + 1)
    with pytest.raises(AssertionError, match="specialized"):
        graph(X, False)


def test_concrete_containers_become_inputs() -> None:
    concrete = {"d": {"a": fx.PH, "b": [fx.PH]}}
    graph = fx.symbolic_trace(lambda d: {"sum": d["a"] + d["b"][0]}, concrete)
    assert graph({"a": 1, "b": [2]}) == {"sum": 3}


def test_functions_with_every_kind_of_parameter_are_traced() -> None:
    def f(a: Any, b: Any = 2, *rest: Any, c: Any, d: Any = 4, **more: Any) -> Any:
        return a + b + rest[0] + c + d + more["e"]

    assert calque.symbolic_trace(f)(1, 2, 3, c=4, d=5, e=6) == 21


def test_functions_that_torch_fx_has_wrapped_are_leaves() -> None:
    names: dict[str, Any] = {"__name__": "library"}
    exec("import torch.fx\n@torch.fx.wrap\ndef library_leaf(x):\n    return int(x) + 1", names)
    use = types.FunctionType((lambda x: library_leaf(x)).__code__, names)
    for trace in (fx.symbolic_trace, torch.fx.symbolic_trace):
        graph = trace(use)
        assert graph(2.5) == 3
    assert not hasattr(names["library_leaf"], "__wrapped__")


def test_autowrapped_functions_are_leaves_under_every_name() -> None:
    graph = fx.Tracer(autowrap_functions=(halved,)).trace(lambda x: halved(x) + math.sqrt(x))
    targets = [node.target for node in graph.nodes]
    assert halved in targets
    assert math.sqrt in targets


def halved(x: float) -> float:
    return float(x) / 2


def test_wrap_is_for_modules() -> None:
    with pytest.raises(NotImplementedError, match="top level"):
        fx.wrap("len")
    with pytest.raises(RuntimeError, match="not int"):
        fx.wrap(3)


def test_attributes_become_nodes_only_when_used() -> None:
    graph = fx.Graph()
    x = fx.Proxy(graph.placeholder("x"))
    shape = x.shape
    assert isinstance(shape, Attribute)
    assert len(graph.nodes) == 1
    assert shape[0].node.op == "call_function"
    assert [node.target for node in graph.nodes][1:] == [getattr, __import__("operator").getitem]


def test_a_parameter_proxy_knows_its_shape() -> None:
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    parameter = torch.nn.Parameter(torch.ones(2, 3))
    proxy = ParameterProxy(tracer, graph.get_attr("w"), "w", parameter)
    assert (proxy.shape, proxy.size(), proxy.dim(), proxy.ndim) == ((2, 3), (2, 3), 2, 2)
    assert proxy.numel() == proxy.nelement() == 6


def test_proxies_of_two_tracers_do_not_mix() -> None:
    a, b = (fx.Proxy(fx.Graph().placeholder("x")) for _ in range(2))
    with pytest.raises(RuntimeError, match="multiple different tracers"):
        torch.add(a, b)


def test_a_scope_is_restored() -> None:
    scope = Scope("a", int)
    with ScopeContextManager(scope, Scope("b", str)) as inner:
        assert inner is scope
        assert (scope.module_path, scope.module_type) == ("b", str)
    assert (scope.module_path, scope.module_type) == ("a", int)


def test_the_scope_of_each_node_is_known() -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + self.inner(x)

    tracer = fx.Tracer(param_shapes_constant=True)
    graph = tracer.trace(Outer())
    assert tracer.node_name_to_scope["mul"] == ("inner", Model)
    stacks = [list(node.meta.get("nn_module_stack", {})) for node in graph.nodes]
    assert ["inner"] in stacks
    assert ["inner@1"] in stacks


def test_the_proxies_are_torch_fx_proxies() -> None:
    assert isinstance(fx.Proxy(fx.Graph().placeholder("x")), torch.fx.Proxy)
    assert issubclass(TraceError, ValueError)
    assert issubclass(TraceError, torch.fx.proxy.TraceError)


def test_every_public_name_of_torch_fx_is_here() -> None:
    assert [name for name in torch.fx.__all__ if not hasattr(fx, name)] == []
    for name in ("proxy", "_symbolic_trace"):
        theirs, ours = getattr(torch.fx, name), getattr(fx, name)
        missing = [n for n in getattr(theirs, "__all__", dir(theirs)) if not hasattr(ours, n)]
        assert missing == []
    for name in ("Proxy", "Tracer", "symbolic_trace", "wrap"):
        assert getattr(fx, name) is not getattr(torch.fx, name)
        assert getattr(fx, name).__module__.startswith("calque.tracing")


def test_submodules_are_those_of_torch_fx() -> None:
    program = """
import calque.tracing.fx.passes.shape_prop as ours
import calque.tracing.fx.graph
from calque.tracing.fx.experimental import normalize
import torch
import torch
import torch.fx.passes.shape_prop as theirs
assert ours is theirs and calque.tracing.fx.graph is torch.fx.graph
assert theirs.__name__ == "torch.fx.passes.shape_prop", theirs.__name__
try:
    import calque.tracing.fx.bananas
except ModuleNotFoundError:
    pass
else:
    raise AssertionError
"""
    new_process.check(program)


def test_classes_that_are_built_in_the_graph() -> None:
    class Built(metaclass=fx.ProxyableClassMeta):
        def __init__(self, left: Any, right: Any) -> None:
            self.left, self.right = left, right

    graph = fx.Tracer().trace(lambda x: Built(x, 1))
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [Built]
    assert Built(1, 2).right == 2


def test_stack_traces_on_request() -> None:
    class Traces(fx.Tracer):
        record_stack_traces = True

    for node in Traces(param_shapes_constant=True).trace(Model()).nodes:
        if node.op == "call_module":
            assert __file__ in node.stack_trace


def test_order_of_module_stack_survives_an_error() -> None:
    class Fails(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyError("mine")

    class Catches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fails = Fails()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            try:
                return self.fails(x)
            except KeyError:
                return self.linear(x)

    graph = fx.Tracer().trace(Catches())
    (node,) = (node for node in graph.nodes if node.op == "call_module")
    assert node.meta["nn_module_stack"] == collections.OrderedDict(
        linear=("linear", torch.nn.Linear)
    )


def test_the_package_can_stand_in_the_place_of_torch_fx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.fx", fx)
    monkeypatch.setattr(torch, "fx", fx)
    monkeypatch.delitem(sys.modules, "torch.fx.annotate", raising=False)
    assert importlib.util.find_spec("torch.fx.annotate") is not None
    assert fx.graph is torch.fx.graph
    with pytest.raises(AttributeError, match="bananas"):
        getattr(fx, "bananas")  # noqa: B009


def test_a_graph_can_be_unpickled_where_there_is_no_calque() -> None:
    function, args = fx.symbolic_trace(torch.nn.Linear(2, 3)).__reduce__()
    assert "_tracer_cls" not in {k for k, v in args[0].items() if v is not None}
    assert function(*args)(torch.ones(2)).shape == (3,)


def test_what_a_transform_makes_takes_the_place_of_what_it_replaces() -> None:
    module = calque.symbolic_trace(lambda x: x.relu())
    (relu,) = module.graph.find_nodes(op="call_method")
    with module.graph.inserting_after(relu):
        made = fx.Proxy(relu).sin().node
    assert not made.meta
    relu.replace_all_uses_with(made, lambda user: user is not made, propagate_meta=True)
    assert made.meta["origin"] == relu.meta["origin"]


def test_the_rewriting_tracer_is_ours() -> None:
    assert normalize is torch.fx.experimental.normalize
    assert issubclass(rewriter.RewritingTracer, calque.tracing.Tracer)

    def asserts(x: Any) -> Any:
        assert x.sum() > 0, "negative"
        return x

    graph = rewriter.RewritingTracer().trace(asserts)
    assert torch._assert in {node.target for node in graph.nodes}
