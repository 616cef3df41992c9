"""Optimizers of `torch.optim` as pure functions of parameters, gradients and a state of arrays."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from calque.federated.learning.describing import described
from calque.federated.learning.lbfgs import Lbfgs
from calque.federated.local_optimizers import count_on_device, numbers_traced
from calque.federated.optimizer_steps import STEPS
from calque.interop.functional import functional

Make = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]
State = list[dict[str, Any]]
"""The entry of each parameter in `Optimizer.state`."""


class TorchOptimizer:
    """A PyTorch optimizer with the interface of optax; see `Optimizer`.

    It runs PyTorch's own `step` on the given parameters and state. The first step creates its state
    itself, so the state of arrays includes a flag for whether there has been a step. Numbers that a
    step reads from its state are traced, as in a jitted function.

    Args:
        make: creates the optimizer: `torch.optim.Adam`, or `lambda p: torch.optim.SGD(p, lr=0.1,
            momentum=0.9)`.
        names: the keys of parameters in the order in which they are passed to `make`; by default
            JAX's order.

    >>> optimizer = TorchOptimizer(lambda p: torch.optim.SGD(p, lr=0.5))
    >>> state = optimizer.init({"w": jnp.ones(2)})
    >>> optimizer.step({"w": jnp.ones(2)}, state, {"w": jnp.ones(2)})[0]
    {'w': Array([0.5, 0.5], dtype=float32)}
    """

    def __init__(self, make: Make, names: Sequence[str] | None = None) -> None:
        self._make = make
        self._names = names
        self._first, _ = functional(
            lambda params, grads: self._stepped(params, grads, None), gradient="jax"
        )
        self._next, _ = functional(self._stepped, gradient="jax")

    def init(self, params: Any, /) -> Any:
        """Returns the state before the first step, with the flag that there was none."""
        leaves = self._leaves(params)
        searching = self._searching(leaves)
        if searching is not None:
            return searching.init(leaves)
        shapes = jax.eval_shape(lambda p: self._first({}, p, p)[1], leaves)
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes), jnp.zeros((), jnp.bool_)

    def described(self, params: object) -> str:
        """Returns a description of its class and settings for such parameters."""
        made = self._example(self._leaves(params))
        return f"{' '.join(repr(made).split())} by {described(type(made))}"

    def searches(self, params: object) -> bool:
        """Returns True if it recomputes the loss for such parameters."""
        return self._searching(self._leaves(params)) is not None

    def step(
        self,
        gradients: Any,
        state: Any,
        params: Any,
        /,
        known: Mapping[str, Any] | None = None,
        reached: Collection[str] | None = None,
    ) -> tuple[Any, Any]:
        """Returns the parameters after a step, and the new state.

        Args:
            gradients, state, params: as for `update`.
            known: `value`, the loss at `params`, and `value_fn`, which computes the loss.
            reached: the names of the parameters that have a gradient; None for all.

        Raises:
            TypeError: the optimizer is LBFGS, which needs a loss function.
        """
        leaves = self._leaves(params)
        searching = self._searching(leaves)
        if searching is not None:
            if not known:
                raise TypeError(
                    "LBFGS recomputes the loss within a step, but only gradients are available "
                    "here.\nUse it on the clients of fed_avg or fed_opt."
                )
            loss = known["value_fn"]
            new, state = searching.step(
                leaves,
                state,
                known["value"],
                self._leaves(gradients),
                lambda p: loss(self._joined(p, params)),
            )
            return self._joined(new, params), state
        held, begun = state
        new, stepped = jax.lax.cond(
            begun,
            lambda p, g, s: self._next({}, p, g, s),
            lambda p, g, s: self._first({}, p, g),
            leaves,
            self._reached(self._leaves(gradients), reached),
            held,
        )
        held = [old if one is None else one for one, old in zip(stepped, held, strict=True)]
        return self._joined(new, params), (held, jnp.ones((), jnp.bool_))

    def update(self, updates: object, state: object, params: object = None, /) -> tuple[Any, Any]:
        """Returns the updates to add to the parameters for these gradients, and the new state."""
        new, state = self.step(updates, state, params)
        return jax.tree.map(lambda a, b: a - b, new, params), state

    def _leaves(self, params: Any) -> list[Any]:
        """Returns the arrays of parameters or gradients, in the order in which they are passed to
        `make`.
        """
        if self._names is None:
            return jax.tree.leaves(params)
        return [params[name] for name in self._names]

    def _reached(self, gradients: list[Any], names: Collection[str] | None) -> list[Any]:
        """Returns the gradients of the parameters that have one, and None for the others."""
        if names is None or self._names is None:
            return gradients
        pairs = zip(self._names, gradients, strict=True)
        return [gradient if name in names else None for name, gradient in pairs]

    def _joined(self, leaves: list[Any], params: object) -> Any:
        """Returns the parameters with these arrays; the inverse of `_leaves`."""
        if self._names is not None:
            return dict(zip(self._names, leaves, strict=True))
        return jax.tree.unflatten(jax.tree.structure(params), leaves)

    def _searching(self, leaves: list[Any]) -> Lbfgs | None:
        """Returns the replacement for the step of an optimizer that needs a closure."""
        made = self._example(leaves)
        if not isinstance(made, torch.optim.LBFGS):
            return None
        if any(jnp.iscomplexobj(leaf) for leaf in leaves):
            raise TypeError(
                "LBFGS does not support complex parameters here.\nUse another optimizer."
            )
        return Lbfgs(made)

    def _example(self, leaves: list[Any]) -> torch.optim.Optimizer:
        """Returns an optimizer for parameters of these shapes, which have no values."""
        return self._make([torch.empty(p.shape, device="meta", requires_grad=True) for p in leaves])

    def _stepped(
        self, params: list[torch.Tensor], grads: list[torch.Tensor | None], state: State | None
    ) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor] | None]]:
        """Returns the parameters and state after a step of a new optimizer with a given state.

        A parameter without a gradient is unchanged, and its state is None.
        """
        leaves = [p.detach().clone().requires_grad_() for p in params]
        optimizer = self._make(leaves)
        count_on_device(optimizer)
        for index, (leaf, gradient) in enumerate(zip(leaves, grads, strict=True)):
            leaf.grad = None if gradient is None else gradient.detach().to(leaf.dtype)
            if state is not None:
                optimizer.state[leaf] = {n: t.detach().clone() for n, t in state[index].items()}
            for name, part in optimizer.state[leaf].items():
                if isinstance(part, torch.Tensor):  # step counts may be on the CPU
                    optimizer.state[leaf][name] = part.to(leaf.device)
        before = _counts(optimizer)
        with numbers_traced():
            if type(optimizer) in STEPS:
                torch.optim.Optimizer.profile_hook_step(STEPS[type(optimizer)])(optimizer)
            else:
                optimizer.step()
        _require_same(before, optimizer)
        found = [None if leaf.grad is None else _tensors(optimizer.state[leaf]) for leaf in leaves]
        return [leaf.detach() for leaf in leaves], found


def _counts(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns the values that an optimizer keeps besides the states of parameters, by name."""
    found: dict[str, Any] = {}
    for index, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if name != "params":
                found[f"{name!r} of param group {index}"] = value
    for name, value in optimizer.state.items():
        if not isinstance(name, torch.Tensor):
            found[f"{name!r} of a state that belongs to no parameter"] = value
    for name, value in vars(optimizer).items():
        if isinstance(value, int | float) and name != "_opt_called":  # set by schedulers
            found[f"the attribute {name!r}"] = value
    return found


def _require_same(before: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Raise a `TypeError` if a step has changed something that is not passed to the next step."""
    for name, value in _counts(optimizer).items():
        old = before.get(name)
        tensors = isinstance(value, torch.Tensor) or isinstance(old, torch.Tensor)
        if value is not old and (tensors or value != old):
            raise TypeError(
                f"a step of {type(optimizer).__name__} changes {name}, but the next step of a "
                "client or the server would not see that.\nKeep it as a tensor in the state of "
                "a parameter, also a learning rate that changes."
            )


def _tensors(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Returns an optimizer's state for a parameter, without entries that are None."""
    odd = [name for name, part in state.items() if not isinstance(part, torch.Tensor | None)]
    if odd:
        raise TypeError(
            f"an optimizer keeps {odd[0]!r}, which is not a tensor, so clients cannot use it.\n"
            "Use another optimizer, or one from optax."
        )
    return {name: part.detach() for name, part in state.items() if part is not None}
