"""`calque.op`: users' rules for operators of `torch.library`, or to replace built-in rules.

An operator without a gradient formula gets the gradient `jax.vjp` of its rule. The gradient is a
PyTorch operator too, so that autograd, `calque.jit` and `torch.compile` support it. It computes the
forward pass again, which XLA shares with the first if both are in one program.
"""

import functools
import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import torch

from calque.device.kernels import binding, composites
from calque.device.kernels.pullbacks import conjugated, cotangent, pullback_of
from calque.device.memory.cell import x64
from calque.device.runtime.dtypes import to_numpy, to_torch
from calque.ops.table import registry
from calque.ops.table.registry import RULES, Rule
from calque.state.watched_calls import watched
from calque.upstream import torch_c
from calque.upstream.torch_internals import OPDEFS, fake_registry, pytree, tree_leaves

F = TypeVar("F", bound=Callable[..., Any])
Schema = torch_c.FunctionSchema

_NAMESPACE = "calque_gradient"
_UNSEEN = frozenset(("device", "layout", "pin_memory", "generator"))
_has_kernel = torch_c.dispatch_has_kernel_for_dispatch_key
_libraries: dict[str, torch.library.Library] = {}


def op(name: str, *, static: Sequence[str] = (), random: bool = False) -> Callable[[F], F]:
    """Give a PyTorch operator a rule on the device "jax": a pure function over JAX arrays.

    The operator is your own, created with `torch.library`, or an ATen operator whose rule you want
    to replace. The rule serves eager calls, `calque.jit` and `torch.compile`, and may call Pallas
    kernels. If the operator has no gradient formula, its gradient is `jax.vjp` of the rule; if it
    has no fake kernel, its shapes come from `jax.eval_shape` of the rule.

    >>> import jax.numpy as jnp, torch, calque
    >>> @torch.library.custom_op("mylib::soft_sign", mutates_args=())
    ... def soft_sign(x: torch.Tensor, scale: float) -> torch.Tensor:
    ...     return x / (scale + x.abs())
    >>> @calque.op("mylib::soft_sign")
    ... def rule(x, scale):
    ...     return x / (scale + jnp.abs(x))
    >>> x = torch.ones(2, device="jax", requires_grad=True)
    >>> soft_sign(x, 1.0).sum().backward()
    >>> x.grad.tolist()
    [0.25, 0.25]

    Args:
        name: `namespace::name` or `namespace::name.overload`.
        static: the parameters of type `Scalar` that the rule needs as Python numbers. Others are
            passed as zero-dimensional arrays, so that a new number needs no new executable.
        random: whether the rule takes a JAX key before the operator's own arguments.

    The rule has the operator's parameters, by name and in order, except for `device`, `layout`,
    `pin_memory` and `generator`; dtypes are numpy's. 64-bit types are on inside it. It returns the
    results, as a tuple if there are several, followed by the new values of those parameters that
    the operator writes to according to its schema.

    Returns:
        A decorator for the rule, which returns the rule itself.

    Raises:
        LookupError: PyTorch has no operator of that name.
        TypeError: the rule's parameters differ from the operator's; or, when it is called, its
            results do.
    """

    def register(function: F) -> F:
        schema = _schema(registry.canonical(name))
        _check_parameters(schema, function, random)
        mutates = tuple(a.name for a in schema.arguments if binding.is_written(a))
        checked = _checked(watched(function), schema, len(mutates))
        registry.op(name, static=tuple(static), mutates=mutates, random=random)(checked)
        rule = RULES[registry.canonical(name)]
        binding.forget_derived()
        if _is_composite(rule.name):
            composites.override(rule.name, _library(rule.name))
        else:
            bind(rule)
            if rule.name in _with_gradient:
                _renew_gradients(rule.name)
                if not _is_differentiable(rule.name):  # the operator has been defined anew
                    _register_formula(rule.name)
            elif not _is_differentiable(rule.name):
                _differentiate(rule)
        return function

    return register


def _schema(name: str) -> Schema:
    try:
        return binding.schema_of(name)
    except RuntimeError:
        raise LookupError(
            f"PyTorch has no operator {name}: define it first with torch.library.custom_op or "
            "torch.library.define"
        ) from None


def _check_parameters(schema: Schema, function: Callable[..., Any], random: bool) -> None:
    own = [p.removesuffix("_") for p in inspect.signature(function).parameters][random:]
    wanted = [a.name for a in schema.arguments if a.name not in _UNSEEN]
    if own != wanted:
        raise TypeError(
            f"the rule takes ({', '.join(own)}), but {schema.name} takes ({', '.join(wanted)})"
        )


def _checked(function: Any, schema: Schema, n_written: int) -> Any:
    """Wraps the rule to check its results against the operator's schema."""
    kinds = [str(r.real_type) for r in schema.returns if r.alias_info is None]
    wanted = [kind.startswith("List") for kind in kinds] + [False] * n_written
    named = ", ".join([*kinds, *["Tensor"] * n_written])

    @functools.wraps(function)
    def rule(*args: Any, **kwargs: Any) -> Any:
        given = function(*args, **kwargs)
        is_alone = len(wanted) == 1 and (wanted[0] or not isinstance(given, tuple))
        results: tuple[Any, ...] = (given,) if is_alone else _in_tuple(given)
        fit = map(_fits, results, wanted)
        if wanted and (len(results) != len(wanted) or not all(fit)):
            raise TypeError(
                f"the rule of {schema.name} returns {_described(given)}, but the operator returns "
                f"{named}"
            )
        return results if n_written or len(wanted) > 1 else next(iter(results))

    return rule


def _in_tuple(given: object) -> tuple[Any, ...]:
    return given if isinstance(given, tuple) else (given,)


def _fits(given: object, is_list: bool) -> bool:
    if is_list:
        return isinstance(given, (tuple, list)) and all(_fits(part, False) for part in given)
    return hasattr(given, "shape") or isinstance(given, (bool, int, float, complex))


def _described(given: object) -> str:
    if isinstance(given, (tuple, list)):
        return f"({', '.join(map(_described, given))})"
    return "an array" if hasattr(given, "shape") else f"a {type(given).__name__}"


def _library(name: str) -> torch.library.Library:
    """Returns the library of a namespace's registrations, which lives as long as the process."""
    namespace = name.partition("::")[0]
    if namespace not in _libraries:
        _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
    return _libraries[namespace]


def _is_composite(name: str) -> bool:
    """Returns True if PyTorch differentiates an operator through its parts."""
    return _has_kernel(name, "CompositeImplicitAutograd") and not _has_kernel(name, "Autograd")


def _is_differentiable(name: str) -> bool:
    """Returns True if an operator has a formula for its gradient."""
    definition = OPDEFS.get(name)
    if definition is not None:  # it always has an autograd kernel, which may only raise
        return definition._backward_fn is not None
    return any(_has_kernel(name, key) for key in ("Autograd", "AutogradPrivateUse1"))


def bind(rule: Rule) -> None:
    """Register the kernels of an operator and of the forms derived from it."""
    base = rule.name.partition(".")[0]
    names = [rule.name]
    for name in torch_c.dispatch_get_all_op_names():
        own = name.partition(".")[0].removesuffix("_") == base
        if own and name != rule.name and binding.functional_of(name) is rule:
            names.append(name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*[Oo]verriding a previously registered kernel")
        for name in names:
            kernel = binding.derived(name)
            if kernel is not None:
                short = name.partition("::")[2]
                kernel = binding.untraced(kernel)
                _library(name).impl(short, kernel, "PrivateUse1", allow_override=True)
    _fake(rule)


def _fake(rule: Rule) -> None:
    """Give an operator without a fake kernel one that uses the rule's shapes and dtypes."""
    definition = OPDEFS.get(rule.name)
    known = fake_registry.find(rule.name).fake_impl.kernel is not None
    if definition is not None:
        known = definition._abstract_fn is not None
    if known or rule.mutates or rule.name.startswith("aten::"):
        return

    def fake(*args: Any, **kwargs: Any) -> Any:
        def shaped(x: object) -> Any:
            if isinstance(x, torch.Tensor):
                return jax.ShapeDtypeStruct(tuple(map(int, x.shape)), to_numpy(x.dtype))
            return x

        leaves, spec = pytree.tree_flatten((args, kwargs))
        device = next(x.device for x in leaves if isinstance(x, torch.Tensor))
        found = [shaped(x) for x in leaves]
        at = [i for i, x in enumerate(found) if isinstance(x, jax.ShapeDtypeStruct)]

        def run(*arrays: Any) -> Any:
            for place, array in zip(at, arrays, strict=True):
                found[place] = array
            own, named = pytree.tree_unflatten(found, spec)
            function = RULES[rule.name].function  # a later rule may have replaced it
            return function(*[jax.random.key(0)] * bool(rule.random), *own, **named)

        with x64():
            shapes = jax.eval_shape(run, *[found[place] for place in at])
        return jax.tree.map(
            lambda s: torch.empty(s.shape, dtype=to_torch(s.dtype), device=device), shapes
        )

    if definition is not None:
        definition.register_fake(fake)
    else:
        torch.library.register_fake(rule.name, fake, lib=_library(rule.name))


# Gradients --------------------------------------------------------------------------------------


def _differentiate(rule: Rule) -> None:
    """Make `jax.vjp` of a rule the gradient of its operator."""
    if rule.mutates or rule.random or not _tensors_only(binding.schema_of(rule.name)):
        return
    _gradient(rule.name)
    _register_formula(rule.name)


def _renew_gradients(name: str) -> None:
    """Rebind gradients that were derived from an operator's previous rule."""
    while name in _with_gradient:
        _bind_gradient(name)
        name = _full(name)


def _tensors_only(schema: Schema) -> bool:
    kinds = [str(r.type) for r in schema.returns]
    return bool(kinds) and all(kind in ("Tensor", "List[Tensor]") for kind in kinds)


def _register_formula(name: str) -> None:
    definition = OPDEFS.get(name)
    if definition is not None:
        definition.register_autograd(
            functools.partial(_backward, name), setup_context=_setup_context
        )
    else:
        torch.library.register_autograd(
            name,
            functools.partial(_backward, name),
            setup_context=_setup_context,
            lib=_library(name),
        )


def _setup_context(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
    leaves, ctx.spec = pytree.tree_flatten(list(inputs))
    ctx.tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    ctx.others = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    ctx.named = keyword_only_inputs or {}
    ctx.save_for_backward(*[leaves[i] for i in ctx.tensors])


def _backward(name: str, ctx: Any, *incoming: Any) -> Any:
    leaves = list(ctx.others)
    for place, tensor in zip(ctx.tensors, ctx.saved_tensors, strict=True):
        leaves[place] = tensor
    wanted = [i for i in ctx.tensors if leaves[i].is_floating_point() or leaves[i].is_complex()]
    args = pytree.tree_unflatten(leaves, ctx.spec)
    gradients: list[Any] = [None] * len(leaves)
    given = tree_leaves(incoming, is_leaf=lambda leaf: leaf is None)
    found = _gradient(name)(*args, *ctx.named.values(), given, wanted)
    for place, gradient in zip(wanted, found, strict=True):
        gradients[place] = gradient
    result = pytree.tree_unflatten(gradients, ctx.spec)
    return tuple(None if not _has_tensor(r) else r for r in result)


def _has_tensor(tree: object) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(tree))


def _spelled(kind: str) -> str:
    """Returns a type in the notation of schemas: `Tensor?[]` for `List[Optional[Tensor]]`."""
    match = re.fullmatch(r"(Optional|List)\[(.*)\]", kind)
    if match is not None:
        return _spelled(match[2]) + ("?" if match[1] == "Optional" else "[]")
    return "Scalar" if kind == "number" else kind


@functools.cache
def _gradient(name: str) -> Any:
    """Returns the operator that computes the gradients of another operator's arguments.

    It takes the operator's own arguments, the gradients of the results, and the indices of the
    arguments whose gradients are needed.
    """
    types = _parameters_of_gradient(name)
    parameters = ", ".join(f"{kind} {parameter}" for parameter, kind in types.items())
    full = _full(name)
    _library(full).define(f"{full.partition('::')[2]}({parameters}) -> Tensor[]")
    _bind_gradient(name)
    _register_formula(full)
    _with_gradient.add(name)
    return binding.overload_of(full)


_with_gradient: set[str] = set()


def _full(name: str) -> str:
    return f"{_NAMESPACE}::{name.replace('::', '_').replace('.', '_')}"


def _parameters_of_gradient(name: str) -> dict[str, str]:
    seen = [a for a in binding.schema_of(name).arguments if a.name not in _UNSEEN]
    more = {f"incoming_{len(seen)}": "Tensor?[]", f"of_{len(seen)}": "int[]"}
    return {a.name: _spelled(str(a.real_type)) for a in seen} | more


def _bind_gradient(name: str) -> None:
    """Bind the operator from `_gradient` to the gradient of the current rule for `name`."""
    function = RULES[name].function

    def run(*args: Any) -> list[Any]:
        *own, incoming, of = args
        results, pull = pullback_of(function, tuple(of), own)
        flat, tree = jax.tree.flatten(results)
        cotangents = [cotangent(r, g) for r, g in zip(flat, incoming, strict=True)]
        return conjugated(pull(jax.tree.unflatten(tree, cotangents)))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(n, kind) for n in _parameters_of_gradient(name)]
    run.__signature__ = inspect.Signature(parameters)
    RULES.pop(_full(name), None)
    registry.op(_full(name), static=tuple(RULES[name].static))(run)
    binding.forget_derived()
    bind(RULES[_full(name)])
