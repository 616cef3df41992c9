"""`save`: writes a recorded program as two files, JSON and safetensors.

`program.json` has the inputs, the operators in order, and the outputs; `weights.safetensors` has
the tensors. An argument of an operator is one of

    3, 2.5, true, null, "text", [...]      the value
    {"value": "relu"}                      an input, or the result of another operator
    {"weight": "head.bias"}                a tensor of the second file
    {"dtype": "float32"}                   and `layout`, `memory_format`, `device`, in the same way
    {"number": "inf"}                      `-inf`, `nan`, and complex numbers, as Python writes them

`program_sha256` is the SHA-256 of the rest of `program.json` (`digests.py`); it may be absent.

The operator `read` is a check that the tensor has the value that it `gave` when the program was
recorded, or that its text in the `format` is the same.
"""

import contextlib
import hashlib
import json
import math
import operator
import os
from pathlib import Path
from typing import Any

import torch
from torch.fx.graph_module import GraphModule
from torch.fx.node import Node

from calque.convert.arguments import written
from calque.convert.digests import DIGEST, digest
from calque.convert.errors import ConversionError
from calque.convert.reading import is_read, read_of, with_single_reads
from calque.convert.structure import is_label
from calque.errors import with_user_frames
from calque.tracing.core.files import alone_in, remove_parts, replacing
from calque.tracing.core.origins import origin_of
from calque.tracing.graph.checks import CHECKS
from calque.tracing.graph.templates import rebuilt
from calque.tracing.graph.value_guards import expect_answer
from calque.tracing.lowering.own_leaves import without_marks
from calque.tracing.record import Recording
from calque.upstream.torch_internals import OpOverload

FORMAT, VERSION = "calque", 1
_NO_OPERATORS = CHECKS | {rebuilt, expect_answer}
READ = "read"
PROGRAM, WEIGHTS = "program.json", "weights.safetensors"
_DIGITS = 16
ATTRIBUTES: dict[type, str] = {
    torch.dtype: "dtype",
    torch.layout: "layout",
    torch.memory_format: "memory_format",
    torch.device: "device",
}


@with_user_frames
def save(program: Recording | GraphModule, directory: str | Path) -> None:
    """Write a program as JSON and safetensors, for `load` or any other reader.

    An existing program is replaced atomically, so that a killed process leaves it intact.

    Tuples, lists and dicts with string keys are preserved. Any other object in the result, such as
    a `ModelOutput` or a dict with numbers as keys, becomes the tuple of its distinct tensors.

    Args:
        program: a recording, or a graph of ATen operators (`calque.lower`).
        directory: the directory, which is created if it does not exist.

    Raises:
        TraceError: no graph of the recording would be right, or it cannot be lowered to operators.
        ConversionError: the program writes to its inputs, parameters or buffers, or an operator is
            not one of PyTorch's.
        ImportError: safetensors is not installed.
    """
    import safetensors.torch  # noqa: F401  # pyright: ignore[reportMissingImports]

    graph = program if isinstance(program, GraphModule) else without_marks(program.graph("aten"))
    graph = with_single_reads(graph)
    written = _Writer(graph).written()
    weights = {}
    for name in written["weights"]:
        tensor = _member(graph, name).detach().cpu()
        weights[name] = tensor.clone(memory_format=torch.contiguous_format)
        looks = {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype)}
        written["weights"][name] = looks
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with alone_in(directory) as alone:
        try:
            _write(written, weights, directory)
        finally:
            if alone:
                _remove_left(directory)


def _write(written: dict[str, Any], weights: dict[str, torch.Tensor], directory: Path) -> None:
    """Write the two files so that at each moment there is a complete program, the old or the new
    one.

    While the program is renamed, the weights have a temporary name with their digest, under which
    `load` finds them too.
    """
    from safetensors.torch import save as serialized  # pyright: ignore[reportMissingImports]

    data = serialized(weights)
    written["weights_sha256"] = hashlib.sha256(data).hexdigest()
    written[DIGEST] = digest(written)
    ready = directory / named_weights(written)
    with replacing(ready) as part:
        part.write_bytes(data)
    with replacing(directory / PROGRAM) as part:
        part.write_text(_text(written), encoding="utf-8")
    os.replace(ready, directory / WEIGHTS)


def named_weights(content: dict[str, Any]) -> str:
    """Returns the name of the weights file while a program is being saved."""
    return f"weights.{content['weights_sha256'][:_DIGITS]}.safetensors"


def _remove_left(directory: Path) -> None:
    """Remove the remains of incompletely saved programs."""
    remove_parts(directory, ".json", ".safetensors")
    used = None
    with contextlib.suppress(FileNotFoundError):
        content = (directory / PROGRAM).read_text(encoding="utf-8")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            used = named_weights(json.loads(content))
    for path in directory.glob(f"weights.{'[0-9a-f]' * _DIGITS}.safetensors"):
        if path.name != used:
            path.unlink(missing_ok=True)


def _text(written: dict[str, Any]) -> str:
    """Returns JSON with a line for each input, operator and weight."""

    def shown(value: object) -> str:
        if isinstance(value, list):
            return "[\n" + ",\n".join(f"  {_line(part)}" for part in value) + "\n]"
        if isinstance(value, dict) and len(value) > 1:
            parts = (f"  {_line(key)}: {_line(part)}" for key, part in value.items())
            return "{\n" + ",\n".join(parts) + "\n}"
        return _line(value)

    parts = (f"{_line(key)}: {shown(value)}" for key, value in written.items())
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _line(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


class _Writer:
    def __init__(self, graph: GraphModule) -> None:
        self._graph = graph
        self._weights: dict[str, Any] = {}
        self._inputs: dict[Node, str] = {}

    def written(self) -> dict[str, Any]:
        """Returns the content of `program.json`; `arguments` describes how the inputs are
        passed.
        """
        inputs, operators, outputs = [], [], None
        for node in self._graph.graph.nodes:
            if node.op == "output":
                outputs = self._value(node.args[0])
            elif node.target in _NO_OPERATORS or node.op == "get_attr" or is_label(node):
                continue
            elif node.op == "placeholder" or self._is_part_of_input(node):
                self._inputs[node] = node.name
                if isinstance(node.meta.get("val"), torch.Tensor):
                    inputs.append({"name": node.name, **_looks(node)})
            elif is_read(node):
                operators += self._reads(node)
            elif node.target is operator.getitem:
                operators.append(self._operator(node, "getitem"))
            else:
                operators.append(self._operator(node, self._name(node)))
        names = [entry["name"] for entry in inputs]
        arguments = written(self._graph.graph.find_nodes(op="placeholder"), names)
        return {
            "format": FORMAT,
            "version": VERSION,
            **({"arguments": arguments} if arguments is not None else {}),
            "inputs": inputs,
            "operators": operators,
            "outputs": outputs,
            "weights": self._weights,
        }

    def _is_part_of_input(self, node: Node) -> bool:
        """Returns True for an item or a field of an argument."""
        return node.target in (operator.getitem, getattr) and node.args[0] in self._inputs

    def _name(self, node: Node) -> str:
        target: Any = node.target
        if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
            place = f"{origin_of(node)}: " if origin_of(node) else ""
            name = target if isinstance(target, OpOverload) else getattr(target, "__name__", target)
            raise ConversionError(
                f"{place}{node.name} calls {name}, which is not a PyTorch operator.\nThis format "
                "cannot assign attributes or run the program's own Python code."
            )
        if target._schema.is_mutable:
            place = f"{origin_of(node)}: " if origin_of(node) else ""
            raise ConversionError(
                f"{place}{target} writes to a tensor, which this format cannot express.\nCall "
                "model.eval() for layers that update their buffers, and disable_observer() of "
                "fake quantization; otherwise return the new value instead."
            )
        return str(target)

    def _reads(self, node: Node) -> list[dict[str, Any]]:
        """Returns the checks that a value read by the program is unchanged."""
        read = read_of(self._graph, node)
        made = {"op": READ, "args": [self._value(read.tensor)], "source": str(origin_of(node))}
        if read.spec is not None:
            made["format"] = read.spec
        names = [
            f"{node.name}_{number}" if number else node.name for number in range(len(read.answers))
        ]
        return [
            {"name": name, **made, "gave": self._value(gave)}
            for name, gave in zip(names, read.answers)
        ]

    def _operator(self, node: Node, name: str) -> dict[str, Any]:
        made: dict[str, Any] = {"name": node.name, "op": name}
        made["args"] = [self._value(part) for part in node.args]
        if node.kwargs:
            made["kwargs"] = {key: self._value(part) for key, part in node.kwargs.items()}
        made.update(_looks(node))
        if origin_of(node) is not None:
            made["source"] = str(origin_of(node))
        return made

    def _value(self, value: object) -> Any:
        if isinstance(value, Node):
            return self._node(value)
        if isinstance(value, dict):
            return {"dict": [[key, self._value(part)] for key, part in value.items()]}
        if isinstance(value, tuple):
            return {"tuple": [self._value(part) for part in value]}
        if isinstance(value, list):
            return [self._value(part) for part in value]
        if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
            return {"number": repr(value)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        for kind, key in ATTRIBUTES.items():
            if isinstance(value, kind):
                return {key: str(value).removeprefix("torch.")}
        raise ConversionError(f"{value!r} cannot be saved")

    def _node(self, node: Node) -> Any:
        if node.op == "get_attr":
            name = str(node.target)
            if not isinstance(_member(self._graph, name), torch.Tensor):
                raise ConversionError(f"{name} is not a tensor and cannot be saved")
            self._weights[name] = None
            return {"weight": name}
        if node.target is rebuilt:  # an object becomes its tensors, in order
            return {"tuple": [self._value(part) for part in node.args[1:]]}
        return {"value": node.name}


def _looks(node: Node) -> dict[str, Any]:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return {}
    return {"shape": list(value.shape), "dtype": dtype_name(value.dtype)}


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name of a dtype: `float32`."""
    return str(dtype).removeprefix("torch.")


def _member(root: object, target: str) -> Any:
    for part in target.split("."):
        root = getattr(root, part)
    return root
