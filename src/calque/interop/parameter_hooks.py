"""Transfers hooks of a module's parameters to their traced counterparts."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import torch

from calque.errors import TraceError
from calque.interop.functional_arguments import is_array


def hooks_of(module: torch.nn.Module | None) -> tuple[int, ...]:
    """Returns the hooks of a module's parameters."""
    if module is None:
        return ()
    return tuple(
        id(hook)
        for parameter in module.parameters()
        for hooks in (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
        for hook in (hooks or {}).values()
    )


def register_hooks(module: torch.nn.Module, stand_ins: Mapping[str, torch.Tensor]) -> None:
    """Register the hooks of parameters on the tensors that represent them.

    A pure function cannot run hooks for accumulated gradients, so the backward raises an error for
    these.
    """
    for name, parameter in module.named_parameters(remove_duplicate=False):
        stand_in = stand_ins.get(name)  # one name of tied parameters may be missing
        if stand_in is None or not stand_in.requires_grad:
            continue
        for hook in (parameter._backward_hooks or {}).values():
            stand_in.register_hook(hook)
        if parameter._post_accumulate_grad_hooks:
            stand_in.register_hook(_refusal(name))


def _refusal(name: str) -> Callable[[torch.Tensor], Any]:
    def refuse(_: torch.Tensor) -> None:
        raise RuntimeError(
            f"the parameter {name!r} has a hook that runs after its gradient is accumulated, but "
            "a pure function accumulates no gradients; use register_hook"
        )

    return refuse


def refusing_hooks(
    module: torch.nn.Module, params: dict[str, Any], given: object
) -> tuple[dict[str, Any], Any]:
    """Returns arrays for a program that JAX differentiates; they raise errors where hooks would
    run.

    Args:
        module: the module.
        params: its parameters.
        given: its other arguments, in containers.
    """
    hooked = {
        name: f"the parameter {name!r}"
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks
    }
    name = next(_modules_with_hooks(module), None)
    if name is not None:
        refuse = partial(_without_hooks, f"the module {name!r}")
        params = {n: refuse(array) for n, array in params.items()}
        leaves, spec = jax.tree_util.tree_flatten(given)
        leaves = [refuse(leaf) if is_array(leaf) else leaf for leaf in leaves]
        given = jax.tree_util.tree_unflatten(spec, leaves)
    return {n: _without_hooks(hooked.get(n), a) for n, a in params.items()}, given


def _modules_with_hooks(module: torch.nn.Module) -> Iterator[str]:
    for name, one in module.named_modules():
        if one._backward_hooks or one._backward_pre_hooks:
            yield name or type(one).__name__


def _without_hooks(what: str | None, array: object) -> Any:
    return array if what is None else _undifferentiated(what, array)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _undifferentiated(what: str, array: object) -> Any:
    return array


@_undifferentiated.defjvp
def _refuse_derivative(what: str, primals: object, tangents: object) -> Any:
    raise TraceError(
        f"{what} has a backward hook, which calque.functional(..., gradient='jax') would not "
        "run: use gradient='torch', or remove the hook"
    )
