"""`calque.export`: a PyTorch program as one StableHLO program, for every batch size."""

import functools
import importlib
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch.export import ExportedProgram
from torch.nn import Module

from calque.device.backend.interop import to_jax
from calque.device.memory.cell import x64
from calque.errors import CalqueError, tidy
from calque.interop import exported_inputs
from calque.interop.sealed import seal, unseal
from calque.interop.stateless import Stateless
from calque.program.plain_containers import plain
from calque.program.signature import value_key
from calque.tracing.core.patching import Patches
from calque.upstream.torch_internals import export_utils


def export(
    model: Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    platforms: Sequence[str] | None = None,
) -> "Exported":
    """Exports a module as one StableHLO program that runs without PyTorch.

    Like `torch.export.export`, which it calls. Parameters and buffers are not part of the program
    but arguments, in a dict with the keys of `state_dict()`. So one program works with any weights,
    and weights can be stored in a format of their own.

    Args:
        model: a module on any device, in the mode to run it in: call `model.eval()` for inference.
        args: example inputs. Tensors become inputs of the program; Python values become part of
            it.
        kwargs: example keyword inputs, likewise.
        dynamic_shapes: which dimensions may change, as for `torch.export.export`.
        platforms: the platforms to compile for: "cpu", "cuda" or "tpu"; by default the one that JAX
            uses here.

    Returns:
        The program; see `Exported`.

    Raises:
        TypeError: the example inputs are not in a tuple, or the model is not a module.
        ValueError: JAX has no such platform.
        TraceError: the program draws random numbers or writes to its inputs, or an operator needs
            a size that is dynamic; the error names your line.
        UnsupportedOpError: an operator has no rule for dynamic sizes.

    >>> import torch, calque
    >>> batch = torch.export.Dim("batch")
    >>> model, x = torch.nn.Linear(3, 2), torch.zeros(4, 3)
    >>> program = calque.export(model, (x,), dynamic_shapes=({0: batch},))
    >>> program.call(torch.zeros(7, 3)).shape
    (7, 2)
    """
    _check_examples(model, args)
    _check_platforms(platforms)
    program = torch.export.export(
        model, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes
    )
    function = Stateless(_decomposed(program))
    example_args, example_kwargs = function.inputs
    exporting = jax.export.export(jax.jit(function), platforms=platforms)
    try:
        with x64():
            exported = exporting(function.state_shapes, *example_args, **example_kwargs)
    except CalqueError as error:
        raise tidy(error) from None
    return Exported(exported, function.state, function.values, program)


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    """Returns the program in PyTorch's core operators."""
    with warnings.catch_warnings(), Patches() as patches:
        # PyTorch itself copies deprecated objects.
        warnings.filterwarnings("ignore", ".*treespec, LeafSpec", FutureWarning)
        # PyTorch lists all composite operators once for each of many namespaces.
        patches.hold(export_utils, "_materialize_cpp_cia_ops", functools.cache)
        return program.run_decompositions()


def load_exported(data: bytes | bytearray, state: Mapping[str, Any] | None = None) -> "Exported":
    """Loads a program from `Exported.serialize()`, with weights to run it with.

    Args:
        data: the bytes, complete and unchanged.
        state: a `state_dict()` of tensors or arrays; it may contain more than the program takes.

    Returns:
        The program; see `Exported`.

    Raises:
        TypeError: `data` is not bytes, but for example a path.
        ValueError: the bytes are damaged, or are not from `Exported.serialize()`.
        KeyError: the state lacks an array that the program takes.
        ValueError: an array of the state has the wrong shape or dtype.

    >>> import torch, calque
    >>> model = torch.nn.Linear(3, 2)
    >>> data = calque.export(model, (torch.zeros(4, 3),)).serialize()  # doctest: +SKIP
    >>> program = calque.load_exported(data, model.state_dict())  # doctest: +SKIP
    """
    exported = jax.export.deserialize(bytearray(unseal(data)))
    return Exported(exported, _chosen(exported, state or {}), {}, None)


def _restored(data: bytes, state: dict[str, Array], values: Mapping[str, Any]) -> "Exported":
    """Returns a pickled program."""
    return Exported(jax.export.deserialize(bytearray(unseal(data))), state, values, None)


class Exported:
    """A program made by `calque.export`; call it like the module (see `call`).

    Attributes:
        program: JAX's exported program, a function of `(state, *args, **kwargs)`.
        state: the weights that it runs with: arrays, with the keys of `state_dict()`.
        exported_program: PyTorch's exported program; None for a loaded program.
    """

    def __init__(
        self,
        program: jax.export.Exported,
        state: dict[str, Array],
        values: Mapping[str, Any],
        exported_program: ExportedProgram | None,
    ) -> None:
        self.program = program
        self.state = state
        self.exported_program = exported_program
        self._values = values
        self._run = jax.jit(program.call)

    def __repr__(self) -> str:
        inputs = ", ".join(map(_described, self.program.in_avals[len(self.state) :]))
        return f"Exported({inputs}) on {', '.join(self.program.platforms)}"

    def stablehlo(self) -> str:
        """Returns the program as text, in MLIR's syntax."""
        return self.program.mlir_module()

    def serialize(self) -> bytes:
        """Returns the program as bytes, without its weights; `jax.export.deserialize` reads them
        too.

        `load_exported` verifies a checksum at the end, to detect incomplete bytes. JAX ignores it.

        Raises:
            ImportError: the package flatbuffers is missing (`pip install calque[export]`).
        """
        try:
            importlib.import_module("flatbuffers")  # JAX needs it for writing
        except ImportError:
            raise ImportError(
                "serialize() needs the package flatbuffers: pip install calque[export]"
            ) from None
        return seal(bytes(self.program.serialize()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.serialize(), self.state, self._values)

    def with_state(self, state: Mapping[str, Any]) -> "Exported":
        """Returns the same program with other weights, as tensors or arrays.

        Raises:
            KeyError: the state lacks an array that the program takes.
        """
        chosen = _chosen(self.program, state)
        return Exported(self.program, chosen, self._values, self.exported_program)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Args:
            *args: the inputs, as at export: tensors, or NumPy or JAX arrays. Python values are part
                of the program: pass the same ones, or None.
            **kwargs: likewise.

        Returns:
            The module's result, with JAX arrays for tensors, and tuples, lists and dicts for
            other containers. If the module writes to its buffers (BatchNorm in training), a pair:
            the result, and a dict of the buffers' new values.

        Raises:
            ValueError: the arguments do not fit the program: a Python value differs, or a tensor is
                missing or has a different shape or dtype; the error names them all.
        """
        tree = plain((args, kwargs))
        leaves, spec = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_none)
        with x64():
            given = {path: self._taken(path, leaf) for path, leaf in leaves}
            exported_inputs.check(self._inputs, given, self._names)
            args, kwargs = jax.tree.unflatten(spec, given.values())
            try:
                return self._run(self.state, *args, **kwargs)
            except ValueError as error:
                raise exported_inputs.explained(error, self._inputs, given, self._names) from None

    __call__ = call

    @cached_property
    def _inputs(self) -> dict[tuple[Any, ...], Any]:
        """The abstract value of each input except the state, by its path in (args, kwargs).

        None for those that are part of the program.
        """
        (_, *args), kwargs = jax.tree.unflatten(self.program.in_tree, self.program.in_avals)
        found, _ = jax.tree_util.tree_flatten_with_path((tuple(args), kwargs), is_leaf=_is_none)
        return dict(found)

    @cached_property
    def _names(self) -> list[str]:
        """The names of the positional arguments; none for a loaded program."""
        if self.exported_program is None:
            return []
        call = self.exported_program.module_call_graph[0].signature
        return list(call.forward_arg_names or ()) if call is not None else []

    def _taken(self, path: Any, value: Any) -> Array | None:
        key = jax.tree_util.keystr(path)
        if value is None or (value is self._values.get(key, _ABSENT)):
            return None
        if isinstance(value, torch.Tensor | np.ndarray | Array):
            return _array(value)
        if key in self._values and value_key(value) == value_key(self._values[key]):
            return None
        known = f"the value {self._values[key]!r}" if key in self._values else "a Python value"
        raise ValueError(
            f"the program was exported with {known}, but got {value!r} for "
            f"{exported_inputs.named(path, self._names)}: export again with the new value, or "
            "pass None to use the exported one"
        )


_ABSENT = object()


def _check_examples(model: object, args: object) -> None:
    """Raise TypeError unless `export` gets a module and a tuple."""
    if not isinstance(model, Module):
        raise TypeError(
            f"calque.export expects a module, not {type(model).__name__}: wrap a function as the "
            "forward of an nn.Module"
        )
    if not isinstance(args, tuple | list):
        raise TypeError(
            f"calque.export expects the example inputs in a tuple, not {type(args).__name__}: "
            "`calque.export(model, (x,))`"
        )


def _check_platforms(platforms: Any) -> None:
    known = ("cpu", "cuda", "rocm", "tpu")
    if platforms is not None and (
        isinstance(platforms, str) or not all(one in known for one in platforms)
    ):
        raise ValueError(
            f"platforms must be a list of names from {', '.join(known)}, not {platforms!r}"
        )


def _is_none(value: object) -> bool:
    return value is None


def _array(value: object) -> Array:
    return to_jax(value) if isinstance(value, torch.Tensor) else jnp.asarray(value)


def _chosen(program: jax.export.Exported, state: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the arrays of a state that a program takes."""
    (taken, *_), _ = jax.tree.unflatten(program.in_tree, program.in_avals)
    missing = [name for name in taken if name not in state]
    if missing:
        raise KeyError(f"the program takes {', '.join(missing)}, which the state does not contain")
    with x64():
        found = {name: _array(state[name]) for name in taken}
    wrong = [
        f"{name} is {_described(found[name])}, but the program takes {_described(aval)}"
        for name, aval in taken.items()
        if (found[name].shape, found[name].dtype) != (aval.shape, aval.dtype)
    ]
    if wrong:
        raise ValueError("; ".join(wrong))
    return found


def _described(aval: Any) -> str:
    return f"{aval.dtype}[{', '.join(map(str, aval.shape))}]"
