"""Placeholders: the inputs of a graph, made from the signature of the traced function."""

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.fx.node import base_types

from calque.errors.warning import warn
from calque.upstream import torch_internals
from calque.upstream.torch_internals import PH, PHBase, PyTreeInfo, assert_is_none, pytree, tree_map

_STARRED = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def arguments_for_root(
    tracer: Any,
    root_fn: FunctionType,
    is_module: bool,
    concrete_args: dict[str, Any] | tuple[Any, ...] | None,
) -> tuple[Callable[..., Any], list[Any]]:
    """Returns the placeholders of `root_fn`, and the function to call with them.

    Args:
        tracer: creates the placeholders, by its `_proxy_placeholder`.
        root_fn: a function; for a module its `forward`, whose first parameter is the module.
        concrete_args: values for parameters, pytrees whose leaves may be `PH`.

    Returns:
        The function and its arguments. The function takes `*args` and `**kwargs` as two ordinary
        parameters, and the leaves of concrete arguments that are containers.

    Raises:
        RuntimeError: `self` would be part of `*args`, or the number of concrete arguments is wrong.
    """
    analysed = inspect.unwrap(root_fn)
    code = analysed.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    if is_module and count == 0:
        raise RuntimeError("``self`` argument cannot be part of *args expansion!")
    signature = inspect.signature(analysed)
    args: list[Any] = [tracer.root] if is_module else []
    starred = code.co_flags & _STARRED

    if isinstance(concrete_args, tuple) and concrete_args and starred and count == 1:
        for index, value in enumerate(concrete_args):
            placeholder = tracer.create_proxy("placeholder", f"input_{index}", (), {})
            transfer_attributes(value, placeholder.node)
            args.append(placeholder)
        return root_fn, args

    names, concrete_args = _parameters(code, len(args), concrete_args)
    args += [tracer._proxy_placeholder(name, concrete_args, signature, analysed) for name in names]
    function: Callable[..., Any] = root_fn
    if analysed is not root_fn:
        names = [*code.co_varnames[:is_module], *(name.lstrip("*") for name in names)]
        function = _as_called(tracer, root_fn, signature, names, is_module)
    elif code.co_kwonlyargcount or starred:
        function = _all_positional(root_fn, len(args))
    if concrete_args is None:
        return function, args
    return _flattened(tracer, function, args, list(code.co_varnames[:count]))


def _parameters(
    code: CodeType, first: int, concrete_args: dict[str, Any] | tuple[Any, ...] | None
) -> tuple[list[str], dict[str, Any] | None]:
    """Returns the names of the parameters from the `first` one on, and the concrete ones by name.

    Raises:
        RuntimeError: the number of concrete arguments is wrong.
    """
    count = code.co_argcount + code.co_kwonlyargcount
    names = list(code.co_varnames[first:count])
    if isinstance(concrete_args, tuple):
        if len(names) != len(concrete_args):
            raise RuntimeError(
                f"Tracing expected {len(names)} arguments but got {len(concrete_args)} concrete "
                "arguments"
            )
        concrete_args = dict(zip(names, concrete_args))
    collected = iter(code.co_varnames[count:])
    if code.co_flags & inspect.CO_VARARGS:
        names.append("*" + next(collected))
    if code.co_flags & inspect.CO_VARKEYWORDS:
        names.append("**" + next(collected))
    return names, concrete_args


def _all_positional(function: FunctionType, count: int) -> FunctionType:
    """Wraps `function` so that its keyword-only and starred parameters are positional."""
    code = function.__code__
    plain = code.replace(
        co_argcount=count,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~_STARRED,
    )
    return FunctionType(
        plain, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )


def _as_called(
    tracer: Any,
    function: Callable[..., Any],
    signature: inspect.Signature,
    names: list[str],
    is_method: bool,
) -> Callable[..., Any]:
    """Wraps a decorator's `function` so that it gets its arguments as in the example call.

    A decorator may check whether an argument was passed, and whether by name; without an example,
    parameters with defaults are passed by name.
    """
    given = getattr(tracer, "given", None)
    example = tracer.examples[0] if given is not None else ()
    first = is_method + len(example)

    def call(*values: Any) -> Any:
        positional: list[Any] = []
        named: dict[str, Any] = {}
        by_name = dict(zip(names, values))
        for index, (name, parameter) in enumerate(signature.parameters.items()):
            if given is not None and name not in given:
                continue
            value = by_name[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                positional.extend(value)
            elif parameter.kind is parameter.VAR_KEYWORD:
                named.update(value)
            elif index < first if given is not None else parameter.default is parameter.empty:
                positional.append(value)
            else:
                named[name] = value
        return function(*positional, **named)

    return call


def _flattened(
    tracer: Any, function: Callable[..., Any], args: list[Any], names: list[str]
) -> tuple[Callable[..., Any], list[Any]]:
    leaves, spec = pytree.tree_flatten(tuple(args))
    if all(child.is_leaf() for child in spec.children()):
        return function, args
    codegen = tracer.graph._codegen = tracer.pytree_codegen(PyTreeInfo(names, spec, None))

    def on_leaves(*leaves):  # no annotations: they would appear in the generated forward
        result = function(*pytree.tree_unflatten(list(leaves), spec))
        outputs, out_spec = pytree.tree_flatten(result)
        codegen.pytree_info = codegen.pytree_info._replace(out_spec=out_spec)
        return outputs

    return on_leaves, leaves


def placeholder(
    tracer: Any,
    name: str,
    concrete_args: dict[str, Any] | None,
    signature: inspect.Signature,
    function: Callable[..., Any],
) -> Any:
    """Returns what the traced function gets for the parameter `name`."""
    default: tuple[Any, ...] = ()
    if not name.startswith("*"):
        given = signature.parameters[name].default
        default = () if given is inspect.Parameter.empty else (given,)
    if concrete_args is None or name not in concrete_args:
        annotation = getattr(function, "__annotations__", {}).get(name)
        return tracer.create_proxy("placeholder", name, default, {}, type_expr=annotation)
    count = 0

    def concrete(value: Any) -> Any:
        nonlocal count
        count += 1
        proxy = tracer.create_proxy("placeholder", f"{name}_{count}", default, {})
        if isinstance(value, PHBase):
            transfer_attributes(value, proxy.node)
            return proxy
        _check_specialized(tracer, proxy, name, value)
        return value

    return tree_map(concrete, concrete_args[name])


def _check_specialized(tracer: Any, proxy: Any, name: str, value: object) -> None:
    """Record in the graph that it is valid only for this value of an input."""
    message = f"{name} has been specialized to have value {value} but got another value"
    if type(value) in base_types and type(value) is not torch.Tensor:
        torch_internals.check(proxy == value, message)
    elif value is None:
        tracer.create_proxy("call_function", assert_is_none, (proxy, message), {})
    else:
        warn(
            f"Was not able to add assertion to guarantee correct input {name} to specialized "
            "function. It is up to the user to make sure that your inputs match the inputs you "
            "specialized the function with."
        )


def transfer_attributes(source: object, node: object) -> None:
    """Copy the attributes of a placeholder marker other than `PH` itself to the node."""
    if not isinstance(source, PHBase) or source is PH:
        return
    for name in dir(source):
        value = getattr(source, name)
        if not callable(value) and not name.startswith("__") and not hasattr(node, name):
            setattr(node, name, value)
