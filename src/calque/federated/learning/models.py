"""A PyTorch module and a loss as pure functions of parameters and examples."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.nn import functional as F

from calque.device.backend.interop import to_jax, to_torch
from calque.errors import CalqueError, TraceError
from calque.federated.devices import on_jax
from calque.federated.effects import Draws
from calque.federated.errors import type_error
from calque.federated.learning.module_with_loss import PREFIX, ModuleWithLoss, inside
from calque.federated.types import to_type
from calque.interop.functional import functional
from calque.upstream.torch_internals import BatchNorm

Parameters = dict[str, Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Losses:
    """The results of a forward pass in training.

    Attributes:
        each: the loss for each example.
        buffers: the new buffers.
        written: the new values of parameters that `forward` has written to, by name.
        changing: the names of buffers that `forward` has written to.
        reached: the names of the parameters that have a gradient; PyTorch's optimizers skip the
            others.
    """

    each: Any
    buffers: Parameters
    written: Parameters
    changing: frozenset[str] = field(metadata={"static": True})
    reached: frozenset[str] = field(metadata={"static": True})


class Model:
    """A module whose parameters clients train.

    Args:
        module: a module that takes `x` of the examples (unpacked if `x` is a tuple or a dict).
        loss: a function of the module's output and `y` that returns one loss for each example; by
            default the cross-entropy. An example with a label that this ignores (-100) has a loss
            of 0 and counts in the mean of its batch; PyTorch's mean leaves it out.

    Attributes:
        parameters, buffers: the module's own, as arrays keyed as `state_dict()`.
        frozen: the names of parameters that do not require gradients, which are not trained.
        trained: the names of the other parameters, in the module's order.
        mixes_examples: whether the module is known to make an example's output depend on the others
            of its batch, so that batches cannot be padded; see also `mixing`.

    >>> import torch
    >>> sorted(Model(torch.nn.Linear(3, 2)).parameters)
    ['bias', 'weight']
    """

    def __init__(
        self, module: torch.nn.Module, loss: Callable[[Any, Any], torch.Tensor] | None = None
    ) -> None:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"expected a torch.nn.Module, not {module!r}")
        if loss is not None and (isinstance(loss, type) or not callable(loss)):
            raise TypeError(
                f"loss must be a function of the output and y, not {loss!r}.\nPass an instance "
                "of a loss class: torch.nn.CrossEntropyLoss(reduction='none')."
            )
        module = opened(module)
        loss = loss or _cross_entropy

        def of_integers(output: Any, target: Any) -> torch.Tensor:
            return loss(output, jax.tree.map(_long_if_whole, target))

        self._module = module
        self._of_integers = of_integers
        self.parameters: dict[str, jax.Array] = functional(module)[1]
        trained = ModuleWithLoss(module, of_integers)
        self._train, _ = functional(trained)
        self._eval, _ = functional(ModuleWithLoss(module, of_integers, training=False))
        self._draws = Draws(trained)
        for apply in (self._train, self._eval):
            apply.settle = self._draws.settle
        self.buffers: dict[str, Any] = {
            name: _narrow(to_jax(buffer)) for name, buffer in module.named_buffers()
        }
        self.frozen: set[str] = {n for n, p in module.named_parameters() if not p.requires_grad}
        self.trained: tuple[str, ...] = tuple(
            name for name in self.parameters if name not in self.frozen
        )
        self.mixes_examples: bool = any(map(_mixes, trained.modules()))

    def free(self, parameters: Parameters) -> Parameters:
        """Returns the parameters that are trained."""
        return {name: value for name, value in parameters.items() if name not in self.frozen}

    def losses(
        self, parameters: Parameters, buffers: Parameters, examples: Mapping[str, Any], key: object
    ) -> Losses:
        """Returns the losses of examples in training, and the effects of the forward pass.

        Args:
            parameters: arrays keyed as the module's.
            buffers: the same, for buffers.
            examples: `x` and `y`, with a leading axis of examples.
            key: the raw bits of a key, for dropout and other random operations.

        Raises:
            TraceError: the module writes to a parameter that is not trained.
        """
        given = (inside(parameters), *_arguments(examples["x"]), examples["y"])
        named = {"buffers": inside(buffers), "rng": key}
        self._draws.note()
        with on_jax(self._trained()), _examples_shown(examples):
            (losses, written, changed), new = self._train(*given, **named)
            reached = self._train.reached(*given, **named)
        _require_one_each(losses, examples["y"])
        for name in sorted(written):
            if name in self.frozen:
                raise TraceError(
                    f"forward writes to the parameter {name!r}, which requires no gradient, so "
                    "clients do not send it.\nMake it a buffer: register_buffer."
                )
        return Losses(
            losses,
            {name: new[f"{PREFIX}{name}"].astype(old.dtype) for name, old in buffers.items()},
            {name: array.astype(parameters[name].dtype) for name, array in written.items()},
            frozenset(changed),
            frozenset(name for name in self.trained if f"{PREFIX}{name}" in reached),
        )

    def outputs(
        self, parameters: Parameters, buffers: Parameters, examples: Mapping[str, Any], key: object
    ) -> tuple[Any, Any]:
        """Returns the output and the loss of each example in evaluation; see `losses`."""
        given = (inside(parameters), *_arguments(examples["x"]), examples["y"])
        self._draws.note()
        with on_jax(self._trained()), _examples_shown(examples):
            (losses, output), _ = self._eval(*given, buffers=inside(buffers), rng=key)
        _require_one_each(losses, examples["y"])
        return output, losses

    def refusal(
        self, parameters: Parameters, buffers: Parameters, examples: Mapping[str, Any]
    ) -> str | None:
        """Returns PyTorch's error when the examples are computed on the CPU (a label or index out
        of range), or None.

        In an XLA program, such examples give NaN.
        """
        module = copy.deepcopy(self._module).cpu().eval()
        x, y = jax.tree.map(lambda leaf: to_torch(leaf, "cpu"), (examples["x"], examples["y"]))
        state = {name: to_torch(leaf, "cpu") for name, leaf in {**parameters, **buffers}.items()}
        args, kwargs = _arguments(x)
        try:
            with torch.no_grad():
                self._of_integers(torch.func.functional_call(module, state, args, kwargs), y)
        except (IndexError, RuntimeError) as error:
            said = str(error).splitlines()[0].rstrip(".")
            return said if "out of bounds" in said or "out of range" in said else None
        return None

    def _trained(self) -> dict[str, torch.Tensor]:
        """Returns the module's own parameters, of which clients train copies."""
        return {n: p for n, p in self._module.named_parameters() if p.requires_grad}


def _mixes(part: torch.nn.Module) -> bool:
    """Returns True for a batch norm that uses batch statistics."""
    return isinstance(part, BatchNorm) and (part.training or part.running_mean is None)


def opened(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the module wrapped by `torch.compile` or `calque.jit`; other modules unchanged."""
    return dict(module.named_children()).get("_orig_mod", module)


def count_of(examples: object) -> int:
    """Returns the number of examples, from a pytree of arrays with a leading axis of examples."""
    return jax.tree.leaves(examples)[0].shape[0]


@contextlib.contextmanager
def _examples_shown(examples: Mapping[str, Any]) -> Iterator[None]:
    """A context manager that adds the module's inputs to PyTorch's errors."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if not isinstance(error, CalqueError):
            shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), examples)
            parts = (f"{name} is {to_type(shapes[name])}" for name in ("x", "y"))
            error.add_note(
                f"For an example of each client, {' and '.join(parts)}; the module gets batches "
                f"of {count_of(examples)} examples."
            )
        raise


def _require_one_each(losses: Any, target: Any) -> None:
    """Raise a `FederatedTypeError` unless there is one loss for each example."""
    count = count_of(target)
    if not hasattr(losses, "shape"):
        raise type_error(
            f"the loss of {count} examples is a {type(losses).__name__}",
            "Return a tensor with one number for each example.",
        )
    if losses.shape != (count,):
        raise type_error(
            f"the loss of {count} examples is of shape {list(losses.shape)}",
            "Return one number for each example: use reduction='none', and take the mean over "
            "other axes.",
        )


def tree_add(first: object, second: object, scale: object = 1.0) -> Any:
    """Returns `first + scale * second`, leaf by leaf, in the dtypes of `first`."""
    return jax.tree.map(lambda a, b: (a + scale * b).astype(a.dtype), first, second)


def squared(array: Any) -> Any:
    """Returns the squares of absolute values."""
    return jnp.real(array * jnp.conj(array))


def _long_if_whole(target: torch.Tensor) -> torch.Tensor:
    whole = not (target.is_floating_point() or target.is_complex() or target.dtype == torch.bool)
    return target.long() if whole else target


def _cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, target, reduction="none")


def _arguments(x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(x, dict):
        return (), x
    return (x if isinstance(x, tuple) else (x,)), {}


def _narrow(buffer: Any) -> Any:
    """Returns a buffer narrowed to 32 bits, such as BatchNorm's count of batches."""
    narrow = {"int64": jnp.int32, "float64": jnp.float32}.get(buffer.dtype.name)
    return buffer if narrow is None else buffer.astype(narrow)
