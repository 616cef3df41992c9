"""`load`: loads a program from JSON and safetensors as a JAX function.

Nothing in the files is executed. Names of operators are looked up in PyTorch's registry, arguments
are checked, and the program is run once without data before it is returned.
"""

import ast
import operator
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.fx
from torch.fx.node import Node

from calque.convert.arguments import ArrayArguments
from calque.convert.digests import require_whole
from calque.convert.errors import ConversionError
from calque.convert.program_files import DTYPES, looks_of, read_files
from calque.convert.reading import SPEC
from calque.convert.saving import READ, dtype_name
from calque.device.memory.cell import read
from calque.device.runtime.dtypes import to_numpy
from calque.errors import TraceError, with_user_frames
from calque.errors.handlers import is_of_handler
from calque.graph.interpreter import JaxInterpreter
from calque.tracing.graph.purity import TracedGraph
from calque.tracing.graph.value_guards import described, same_answer
from calque.upstream.torch_internals import OpOverload

_OPERATOR = re.compile(r"(aten|prims)\.([a-z_][a-z0-9_]*)\.([A-Za-z_][A-Za-z0-9_]*)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LAYOUTS = {"strided": torch.strided}
_FORMATS = {str(f)[6:]: f for f in vars(torch).values() if isinstance(f, torch.memory_format)}


class ProgramInput(NamedTuple):
    """An input of a program."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class Loaded:
    """A program from files, which takes arrays and returns arrays, in the program's containers.

    It can be passed to `jax.jit`, `jax.vmap` and `jax.grad`, unless it checks values that the
    program read.

    Attributes:
        inputs: the tensors that it takes, in order.
    """

    def __init__(
        self,
        inputs: list[ProgramInput],
        function: Callable[..., Any],
        arguments: ArrayArguments | None = None,
    ) -> None:
        self.inputs = inputs
        self._function = function
        self._arguments = arguments

    def __call__(self, *given: Any, rng: jax.Array | None = None, **named: Any) -> Any:
        """Runs the program.

        Args:
            *given: a JAX or NumPy array for each input; or the arguments of the program, with
                arrays instead of tensors, in its lists, tuples and dicts.
            rng: a JAX key, for programs that draw random numbers.
            **named: arguments of the program by name.

        Raises:
            TraceError: a value that the program reads differs from the recorded one.
            TypeError: the number of arrays, a shape, a dtype or a container is wrong.
        """
        arrays = given
        is_flat = not named and all(hasattr(part, "dtype") for part in given)
        if self._arguments is not None and not (is_flat and len(given) == len(self.inputs)):
            arrays = tuple(self._arguments.arrays(given, named))
        if len(arrays) != len(self.inputs):
            raise TypeError(f"expected {len(self.inputs)} arrays, got {len(arrays)}")
        if any(isinstance(array, np.ndarray) for array in arrays):
            with jax.enable_x64(True):
                arrays = tuple(map(jnp.asarray, arrays))
        for array, expected in zip(arrays, self.inputs):
            if not isinstance(array, (np.ndarray, jax.Array)):
                raise TypeError(
                    f"{expected.name} must be a JAX or NumPy array, not {type(array).__name__}; "
                    "for a tensor x, pass x.numpy()"
                )
            dtype = to_numpy(expected.dtype)
            if tuple(array.shape) != expected.shape or array.dtype != dtype:
                raise TypeError(
                    f"{expected.name} must be {dtype}{list(expected.shape)}, not "
                    f"{array.dtype}{list(array.shape)}"
                )
        return self._function(*arrays, rng=rng)


@with_user_frames
def load(directory: str | Path) -> Loaded:
    """Read a program that `save` wrote.

    Args:
        directory: the directory with the two files.

    Raises:
        ConversionError: a file is missing, damaged or not a valid program of this format; the
            message says what is wrong and where.
        ImportError: safetensors is not installed.
    """
    directory = Path(directory)
    content, weights = read_files(directory)
    reader = _Reader(content, weights)
    graph = reader.graph()
    names = [each.name for each in reader.inputs]
    arguments = ArrayArguments(content["arguments"], names) if "arguments" in content else None
    _try(Loaded(reader.inputs, JaxInterpreter(graph)))
    for check in graph.graph.find_nodes(op="call_function", target=_expect_looks):
        graph.graph.erase_node(check)  # shapes are fixed
    require_whole(content)  # last, because other errors are more specific
    return Loaded(reader.inputs, JaxInterpreter(graph), arguments)


class _Reader:
    """Builds a graph from a file."""

    def __init__(self, content: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
        self._content, self._weights = content, weights
        self._graph: torch.fx.Graph = TracedGraph()  # a file's names are data in its code
        self._nodes: dict[str, Node] = {}
        self._members: dict[str, torch.Tensor] = {}
        self._of_weights: dict[str, Node] = {}
        self.inputs: list[ProgramInput] = []

    def graph(self) -> torch.fx.GraphModule:
        for index, entry in enumerate(self._content["inputs"]):
            where = f"input {index}"
            name = self._new_name(entry, where)
            self.inputs.append(ProgramInput(name, *looks_of(entry, where)))
            self._nodes[name] = self._graph.placeholder(name)
        for name in self._content["weights"]:
            member = f"weight_{len(self._members)}"
            self._members[member] = self._weights[name]
            self._of_weights[name] = self._graph.get_attr(member)
        for index, entry in enumerate(self._content["operators"]):
            self._add(entry, f"operator {index}")
        self._graph.output(self._value(self._content["outputs"], "outputs"))
        home = torch.nn.Module()
        for name, tensor in self._members.items():
            home.register_buffer(name, tensor)
        return torch.fx.GraphModule(home, self._graph)

    def _new_name(self, entry: object, where: str) -> str:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConversionError(f"{where} has no valid name")
        if name in self._nodes:
            raise ConversionError(f"{where} has the name {name}, which is taken already")
        return name

    def _add(self, entry: Any, where: str) -> None:
        name = self._new_name(entry, where)
        where = f"{where} ({name})"
        args, kwargs = entry.get("args"), entry.get("kwargs", {})
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise ConversionError(f"{where} has no valid arguments")
        if entry.get("op") == READ:
            given = [self._value(part, where) for part in args]
            if len(given) != 1 or not isinstance(given[0], Node) or "gave" not in entry:
                raise ConversionError(f"{where} must check the value of one tensor")
            spec = entry.get("format")
            if spec is not None and not (isinstance(spec, str) and SPEC.fullmatch(spec)):
                raise ConversionError(f"{where} has a format that does not apply to numbers")
            content = self._value(entry["gave"], where), str(entry.get("source", where)), spec
            self._graph.call_function(_expect, (given[0], *content))
            return
        target = self._target(entry.get("op"), where)
        values = tuple(self._value(part, where) for part in args)
        named = {key: self._value(part, where) for key, part in kwargs.items()}
        if target is operator.getitem:
            fits = len(values) == 2 and isinstance(values[0], Node) and type(values[1]) is int
            if not fits or named:
                raise ConversionError(f"{where} must take one part of a value, by an integer index")
        made = self._nodes[name] = self._graph.call_function(target, values, named)
        if "shape" in entry or "dtype" in entry:
            content = *looks_of(entry, where), f"{where}: {entry['op']}"
            self._graph.call_function(_expect_looks, (made, *content))

    def _target(self, op: object, where: str) -> Any:
        if op == "getitem":
            return operator.getitem
        found = _OPERATOR.fullmatch(op) if isinstance(op, str) else None
        if found is None:
            raise ConversionError(f"{where} does not name an operator: {op!r}")
        space, packet, overload = found.groups()
        target = getattr(getattr(getattr(torch.ops, space), packet, None), overload, None)
        if not isinstance(target, OpOverload):
            raise ConversionError(f"{where}: PyTorch has no operator {op}")
        if target._schema.is_mutable:
            raise ConversionError(f"{where}: {op} writes to its arguments, which is not supported")
        return target

    def _value(self, content: object, where: str) -> Any:
        if content is None or isinstance(content, (bool, int, float, str)):
            return content
        if isinstance(content, list):
            return [self._value(part, where) for part in content]
        if not isinstance(content, dict) or len(content) != 1:
            raise ConversionError(f"{where}: {_short(content)} does not describe a value")
        ((key, value),) = content.items()
        try:
            return self._of_kind(key, value, where)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, ConversionError):
                raise
            raise ConversionError(
                f"{where}: {_short(content)} does not describe a value"
            ) from error

    def _of_kind(self, key: str, value: Any, where: str) -> Any:
        if key == "value":
            return self._nodes[value]
        if key == "weight":
            return self._of_weights[value]
        if key == "tuple":
            return tuple(self._value(part, where) for part in _list(value))
        if key == "dict":
            return {_text(name): self._value(part, where) for name, part in _list(value)}
        if key == "number":
            return float(value) if value in ("inf", "-inf", "nan") else _complex(value)
        if key == "device":
            return torch.device("cpu")  # the program runs on its inputs' device
        tables: dict[str, dict[str, Any]] = {
            "dtype": DTYPES,
            "layout": _LAYOUTS,
            "memory_format": _FORMATS,
        }
        return tables[key][value]


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _complex(value: Any) -> complex:
    return complex(value) if "n" in value else complex(ast.literal_eval(_text(value)))


def _short(content: object) -> str:
    text = repr(content)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _arrays(result: object) -> list[Any]:
    """Returns the arrays of a result, which may also contain strings."""
    return [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]


_trial = threading.local()


def _expect(tensor: torch.Tensor, gave: object, source: str, spec: str | None = None) -> None:
    """Raise an error if a value that the program reads differs from the recorded one."""
    array = read(tensor)
    if isinstance(array, jax.core.Tracer):
        if getattr(_trial, "runs", False):
            return
        raise TraceError(
            f"{source}: the program read a value here, which has to be compared at each run.\n"
            "Call the loaded program outside jax.jit and other transformations."
        )
    found = np.asarray(array).tolist()
    if spec is not None and isinstance(found, (bool, int, float, complex)):
        found = _formatted(found, spec)
    given = list(gave) if isinstance(gave, (list, tuple)) else gave
    if not same_answer(_number(found, given), given):
        raise TraceError(
            f"{source}: a value read here was {described(given)} when the program was recorded, "
            f"and is {described(found)} now; a recording is valid only for the values it has "
            "seen.\n"
            "Record and save again with these inputs, or keep the value a tensor."
        )


def _expect_looks(tensor: object, shape: tuple[int, ...], dtype: torch.dtype, where: str) -> None:
    """Raise an error if a result does not have the shape and dtype stated in the file.

    Raises:
        ConversionError: the shape or dtype differs.
    """
    said = f"{dtype_name(dtype)}{list(shape)}"
    if not isinstance(tensor, torch.Tensor):
        kind = type(tensor).__name__
        raise ConversionError(f"{where} returned a {kind}, but the file says {said}")
    array = read(tensor)
    if tuple(array.shape) != tuple(shape) or array.dtype != to_numpy(dtype):
        found = f"{array.dtype}{list(array.shape)}"
        raise ConversionError(f"{where} returned {found}, but the file says {said}")


def _formatted(number: object, spec: str) -> Any:
    try:
        return format(number, spec)
    except ValueError:  # the format does not apply to this dtype
        return number


def _number(found: Any, gave: Any) -> Any:
    """Returns the value as Python converted it: `int(x)`, `bool(x)`."""
    plain = isinstance(found, (bool, int, float)) and isinstance(gave, (bool, int, float))
    try:
        return type(gave)(found) if plain else found
    except (ValueError, OverflowError):  # int(nan)
        return found


def _try(loaded: Loaded) -> None:
    """Run the program without data, so that errors show up at once."""
    specs = [jax.ShapeDtypeStruct(i.shape, to_numpy(i.dtype)) for i in loaded.inputs]
    _trial.runs = True
    try:
        with jax.enable_x64(True):
            jax.eval_shape(lambda *arrays: _arrays(loaded(*arrays, rng=jax.random.key(0))), *specs)
    except Exception as error:
        if isinstance(error, ConversionError) or is_of_handler(error):
            raise
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConversionError(f"the program cannot be run: {first}") from error
    finally:
        _trial.runs = False
