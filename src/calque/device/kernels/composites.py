"""Operators that PyTorch composes from others, but that have a rule in calque.

PyTorch differentiates such an operator (CompositeImplicitAutograd) through its parts, so a kernel
for only the device would lose the gradient. Here, it becomes one node of autograd's graph. Its
forward runs the rule under `jax.vjp`, which leaves residuals; its backward runs the pullback on the
residuals. A gradient that is itself differentiated is computed from the arguments again, as a node
of the same kind. If the rule cannot replace the composition (tensors without values, function
transforms, forward mode), PyTorch's composition runs as usual.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import Array

from calque.device.kernels.binding import overload_of, schema_of, traced_parameters, untraced
from calque.device.kernels.call import Runner
from calque.device.kernels.checked_tensors import seen
from calque.device.kernels.fast_path import wrap_result
from calque.device.kernels.pullbacks import (
    Pullback,
    Wanted,
    conjugated,
    cotangent,
    is_none,
    pull_back,
    pullback_of,
)
from calque.device.kernels.python_numbers import without_stand_ins
from calque.device.memory import rng
from calque.device.memory.cell import read, x64
from calque.device.memory.host import host_array
from calque.device.memory.wrapping import wrap
from calque.errors import CalqueError
from calque.ops.table.facts import fact_of, operators_with
from calque.ops.table.registry import RULES, Rule
from calque.upstream import torch_c, torch_internals
from calque.upstream.torch_c import DispatchKey
from calque.upstream.torch_internals import pytree

_MODES = torch_c.TorchDispatchModeKey
_VALUELESS = (_MODES.FAKE, _MODES.PROXY, _MODES.FUNCTIONAL)
Tensor = torch.Tensor


class Composite:
    """A rule with a leading argument for its random key, and its gradient.

    Attributes:
        rule: the rule, whose function takes the packed key or None first.
    """

    def __init__(self, rule: Rule, traced: frozenset[str]) -> None:
        self.rule = rule
        self._traced = traced
        self._run = Runner(rule, traced)
        self._forward: dict[Wanted, Runner] = {}

    def __call__(self, args: Sequence[Any]) -> tuple[Array, ...]:
        """Returns the results."""
        return self._run(args, {})

    def wrapped(self, results: object, args: Sequence[Any]) -> Any:
        """Returns the results as tensors, for arguments without the key."""
        return self._run.wrapped(results, args, {})

    def forward(self, args: Sequence[Any], wanted: Wanted) -> tuple[Any, Pullback]:
        """Returns the results, and the pullback for the arguments that need gradients."""
        runner = self._forward.get(wanted)
        if runner is None:
            runner = self._forward[wanted] = Runner(self._with_pullback(wanted), self._traced)
        return runner(args, {})

    def _with_pullback(self, wanted: Wanted) -> Rule:
        function = self.rule.function

        @functools.wraps(function)
        def run(*args: Any) -> tuple[Any, Pullback]:
            results, pull = pullback_of(function, wanted, args)
            leaves = jax.tree.leaves(list(args), is_leaf=is_none)
            return results, Pullback.of(pull, leaves, results)

        return replace(self.rule, function=run)

    @functools.lru_cache(maxsize=64)  # noqa: B019  (composites live as long as the process)
    def gradient(self, wanted: Wanted) -> "Composite":
        """Returns the gradient as a composite, which takes the incoming gradients after the
        arguments.
        """
        function = self.rule.function

        def run(*args: Any) -> tuple[Array, ...]:
            *own, gradients = args
            results, pull = pullback_of(function, wanted, own)
            return tuple(conjugated(pull(tuple(map(cotangent, results, gradients)))))

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = (*self.rule.parameters, "gradients")
        run.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])
        name = f"{self.rule.name}_backward"
        return Composite(replace(self.rule, name=name, function=run), self._traced)


class _Request(threading.local):
    """The request of an autograd node to the kernel below autograd, and its answer."""

    wanted: Wanted | None = None
    answer: tuple[Tensor | None, Pullback] | None = None


_request = _Request()


class _Call:
    """A call of a composite: `run(args, wanted)` returns the results, the key and the pullback."""

    def __init__(self, composite: Composite, op: Any, spec: Any) -> None:
        self.composite = composite
        self.op = op
        self.spec = spec

    def run(self, leaves: Sequence[Any], wanted: Wanted) -> tuple[Any, Tensor | None, Pullback]:
        args = pytree.tree_unflatten(list(leaves), self.spec)
        if self.op is None:  # a gradient, whose arguments include the key
            results, pullback = self.composite.forward(args, wanted)
            return wrap_result(tuple(results)), None, pullback
        _request.wanted = tuple(place + 1 for place in wanted)  # the key comes first
        try:
            with torch_c.AutoDispatchBelowAutograd():
                results = _called(self.op.name(), self.op, args)
            if _request.answer is None:
                raise CalqueError(
                    f"a dispatch mode intercepted {self.op} before it reached the jax device"
                )
            return results, *_request.answer
        finally:
            _request.wanted = _request.answer = None

    def gradient(
        self, leaves: Sequence[Any], key: Tensor | None, wanted: Wanted, gradients: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Returns the gradients as results of a differentiable node."""
        args = pytree.tree_unflatten(list(leaves), self.spec)
        if self.op is not None:
            args, wanted = [key, *args], tuple(place + 1 for place in wanted)
        flat, spec = pytree.tree_flatten([*args, list(gradients)])
        return _Node.apply(_Call(self.composite.gradient(wanted), None, spec), *flat)


class _Node(torch.autograd.Function):
    """A call of a composite in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *leaves: Any) -> Any:
        """Run the rule, and save the arguments and the residuals."""
        ctx.set_materialize_grads(False)
        ctx.call = call
        ctx.wanted = tuple(i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed)
        results, key, pullback = call.run(leaves, ctx.wanted)
        ctx.tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        ctx.others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        ctx.aux = pullback.tree_flatten()[1]
        residuals = wrap_result(pullback.residuals)
        ctx.save_for_backward(key, *[leaves[i] for i in ctx.tensors], *residuals)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Pull the incoming gradients back."""
        key, *saved = ctx.saved_tensors
        leaves = list(ctx.others)
        for place, tensor in zip(ctx.tensors, saved, strict=False):
            leaves[place] = tensor
        if torch.is_grad_enabled():
            found = ctx.call.gradient(leaves, key, ctx.wanted, gradients)
        else:
            found = _pulled(ctx, leaves, saved[len(ctx.tensors) :], gradients)
        result: list[Any] = [None] * len(leaves)
        for place, gradient in zip(ctx.wanted, found, strict=True):
            result[place] = gradient
        return None, *result


def _pulled(ctx: Any, leaves: list[Any], residuals: list[Tensor], gradients: Any) -> list[Tensor]:
    pullback = Pullback.tree_unflatten(ctx.aux, map(read, residuals))
    shift = 0 if ctx.call.op is None else 1
    used = set(pullback.places)
    arguments = [_argument(x) if i + shift in used else None for i, x in enumerate(leaves)]
    incoming = [None if g is None else read(g) for g in gradients]
    with x64():
        return wrap_result(pull_back(pullback, [None] * shift + arguments, incoming))


def _argument(value: Any) -> Any:
    """Returns the array of an argument that a gradient needs."""
    if isinstance(value, Tensor):
        return read(value)
    ((number,), _) = without_stand_ins((value,), {})
    return number.node.traced if isinstance(number, torch.SymFloat) else number


def is_plain(tensors: Sequence[Tensor]) -> bool:
    """Returns True if tensors have values, and only autograd's graph differentiates them."""
    if torch_c.functorch.peek_interpreter_stack() is not None:
        return False
    if torch_internals.forward_ad._current_level >= 0:
        return False
    if any(torch_c.get_dispatch_mode(mode) is not None for mode in _VALUELESS):
        return False
    return not any(torch_c.dispatch_keys(t).has(DispatchKey.Python) for t in tensors)


def _positional(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    rest = _parameters(name)[1][len(args) :]
    return [*args, *[kwargs.get(n, default) for n, default in rest]]


def _called(name: str, run: Callable[..., Any], values: Sequence[Any]) -> Any:
    """Run an operator, as `run`, on all its arguments, some of which have to be named."""
    count, parameters = _parameters(name)
    named = {n: v for (n, _), v in zip(parameters[count:], values[count:], strict=True)}
    return run(*values[:count], **named)


@functools.cache
def _parameters(name: str) -> tuple[int, list[tuple[str, Any]]]:
    """Returns how many parameters of an operator have positions, and all names and defaults."""
    arguments = schema_of(name).arguments
    count = sum(not a.kwarg_only for a in arguments)
    return count, [(a.name, a.default_value) for a in arguments]


def _on_device(value: object) -> Any:
    """Moves the lengths of packed sequences, which PyTorch keeps on the CPU, to the device."""
    if isinstance(value, Tensor) and value.device.type == "cpu" and not value.is_floating_point():
        return wrap(host_array(value))
    return value


def _with_key(rule: Rule) -> Rule:
    """Returns the rule with a packed key as its first parameter, None if nothing is drawn."""
    function = rule.function

    def run(key: Array | None, *args: Any) -> tuple[Any, ...]:
        if rule.random:
            args = (None if key is None else rng.key_of(key), *args)
        results = function(*args)
        return results if isinstance(results, tuple) else (results,)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = ("random_key", *rule.parameters)
    run.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])
    return replace(rule, function=run, random=False)


_SERVED_AT_MOST = 1024


class _Kernels:
    """The kernels of one operator, on the device and in autograd."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rule = RULES[name]
        self.composite = Composite(_with_key(self.rule), traced_parameters(self.rule))
        self.op = overload_of(name)
        self._single = len(schema_of(name).returns) == 1
        self._without_gradient = fact_of(name).get("without_gradient")
        self._also_with_gradient = fact_of(name).get("also_with_gradient")
        self._served: dict[Any, bool] = {}

    def on_device(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the kernel below autograd, which answers the requests of nodes."""
        values = [_on_device(a) for a in _positional(self.name, args, kwargs)]
        if not self._serves(values):
            return _called(self.name, self.op.decompose, values)
        key = self._draw(values)
        wanted, _request.wanted = _request.wanted, None
        if wanted is None:
            return self._returned(self.composite([key, *values]), values)
        results, pullback = self.composite.forward([key, *values], wanted)
        _request.answer = key, pullback
        return self._returned(results, values)

    def _serves(self, values: Sequence[Any]) -> bool:
        """Returns True if the rule can replace PyTorch's composition, which refuses some calls."""
        if self._without_gradient is None:
            return True
        key = [
            (type(v), v.shape, v.dtype, v.device) if isinstance(v, Tensor) else (type(v), v)
            for v in values
        ]
        hashed = tuple(key)
        try:
            found = self._served.get(hashed)
        except TypeError:  # a list, or a size that is not known
            return self._asked(values)
        if found is None:
            if len(self._served) >= _SERVED_AT_MOST:
                self._served.clear()
            found = self._served[hashed] = self._asked(values)
        return found

    def _serves_gradients(self, values: Sequence[Any]) -> bool:
        if self._without_gradient is None:
            return True
        serves = self._also_with_gradient
        return serves is not None and serves(*map(seen, values))

    def _asked(self, values: Sequence[Any]) -> bool:
        tensors = [v for v in values if isinstance(v, Tensor)]
        on_device = all(t.device.type == "jax" for t in tensors)
        serves = self._without_gradient
        return serves is None or (on_device and serves(*map(seen, values)))

    def _returned(self, results: Sequence[Array], args: Sequence[Any]) -> Any:
        found = results[0] if self._single else tuple(results)
        return self.composite.wrapped(found, args)

    def _draw(self, args: Sequence[Any]) -> Tensor | None:
        random = self.rule.random
        if not (random(*args) if callable(random) else random):
            return None
        with x64():
            return wrap(jnp.asarray(rng.draw()))

    def in_autograd(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the autograd kernel, which creates a node if a gradient is needed."""
        values = _positional(self.name, args, kwargs)
        flat = not any(type(value) in (list, tuple) for value in values)
        leaves = values if flat else pytree.tree_leaves(values)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        wanted = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        parts = (wanted and not self._serves_gradients(values)) or not self._serves(values)
        if parts or not is_plain(tensors):
            return _called(self.name, self.op.decompose, values)
        if wanted:
            leaves, spec = pytree.tree_flatten(values)
            leaves = [_on_device(leaf) for leaf in leaves]
            return _Node.apply(_Call(self.composite, self.op, spec), *leaves)
        with torch_c.AutoDispatchBelowAutograd():
            return _called(self.name, self.op, values)


@functools.cache
def _kernels() -> dict[str, _Kernels]:
    return {
        name.removeprefix("aten::"): _Kernels(name)
        for name in (*operators_with("node"), *operators_with("without_gradient"))
    }


def kernels() -> dict[str, Any]:
    """Returns the kernels on the device, by operator name."""
    return {name: kernel.on_device for name, kernel in _kernels().items()}


def override(name: str, library: torch.library.Library) -> None:
    """Register a new rule for an operator that PyTorch composes from others."""
    kernel, short = _Kernels(name), name.partition("::")[2]
    for key, function in (
        ("PrivateUse1", kernel.on_device),
        ("AutogradPrivateUse1", kernel.in_autograd),
    ):
        library.impl(short, untraced(function), key, allow_override=True)


def install(aten: torch.library.Library) -> None:
    """Register the kernels in autograd."""
    for name, kernel in _kernels().items():
        aten.impl(name, untraced(kernel.in_autograd), "AutogradPrivateUse1")
