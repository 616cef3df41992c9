"""`to_onnx`: converts a recorded program to an ONNX model, operator by operator."""

import contextlib
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import torch
from torch.fx.graph_module import GraphModule

from calque.convert.calls import Calls, leaves
from calque.convert.errors import ConversionError
from calque.convert.onnx_calls import NARROW, WIDE, kind_of, library
from calque.convert.onnx_opening import opened
from calque.convert.onnx_operators import converters_for, table
from calque.convert.tensor_infos import TensorInfo, WeightInfo
from calque.errors import with_user_frames
from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.lowering.own_leaves import without_marks
from calque.tracing.record import Recording

OPSET = 20


@with_user_frames
def to_onnx(recording: Recording) -> Any:
    """Converts the program to an `onnx.ModelProto` that contains its weights.

    The operators are those of convolutional networks and transformers
    (`calque.convert.onnx_operators`), and what PyTorch decomposes into these; sizes are those of
    the recorded inputs. A result in nested containers becomes a flat list of outputs.

    Raises:
        ConversionError: an operator has no form in ONNX here; all of them are listed, with lines.
        TraceError: no graph of the recording would be right, or it cannot be lowered to operators.
        ImportError: onnx is not installed.
    """
    onnx = library()
    program = opened(_operators_of(recording), table())
    calls = Calls(program)
    graph = OnnxGraph(
        {info.name for info in (*calls.inputs, *(o for c in calls for o in c.outputs))}
    )
    for info in calls.inputs:
        graph.widen(info)
    converters = converters_for(graph)
    coverage = converters.coverage(program)
    if not coverage.is_complete:
        raise ConversionError(
            f"not every operator can be converted to ONNX: {coverage}\nWrite these lines with "
            "other operators, or compute what they return outside and pass it as an argument."
        )
    converted = converters.convert(program)
    for failed in converted.placeholders:
        raise ConversionError(f"{failed.call.source}: {failed.call.op}: {failed.reason}")
    found = list(leaves(calls.results))
    outputs = [leaf for leaf in found if isinstance(leaf, TensorInfo)]
    if not outputs:
        raise ConversionError("the program returns no tensor that it computes")
    for leaf in found:
        if isinstance(leaf, WeightInfo):
            raise ConversionError(
                f"the program returns {leaf.name}, which it does not compute; leave it out of "
                "the result, or return a copy (clone)"
            )
    results = [graph.output(info) for info in outputs]
    graph.prune([info.name for info in results], {info.name for info in converted.inputs})
    helper = onnx.helper
    made = helper.make_graph(
        graph.nodes,
        "calque",
        [_value(info) for info in converted.inputs],
        [_value(info) for info in results],
        [onnx.numpy_helper.from_array(array, name) for name, array in graph.constants.items()],
    )
    model = helper.make_model(
        made, producer_name="calque", opset_imports=[helper.make_opsetid("", OPSET)]
    )
    model.ir_version = 10
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ConversionError(
            f"an operator cannot be expressed in ONNX with these dtypes or shapes: {error}"
        ) from None
    return model


def _operators_of(recording: Recording) -> GraphModule:
    """Returns the graph of operators. ONNX has no gradients, so where the gradient is what cannot
    be lowered (that of an `autograd.Function`, for instance), it is lowered without.
    """
    try:
        return without_marks(recording.graph("aten"))
    except SymbolicTraceError:
        if not recording.problems:
            with torch.no_grad(), contextlib.suppress(SymbolicTraceError):
                return without_marks(recording.graph("aten"))
        raise


def _value(info: TensorInfo) -> Any:
    onnx = library()
    kind = onnx.helper.np_dtype_to_tensor_dtype(dtype_of(info.dtype))
    return onnx.helper.make_tensor_value_info(info.name, kind, info.shape)


def dtype_of(name: str | None) -> np.dtype:
    """Returns the array dtype for the name of a PyTorch dtype.

    Raises:
        ConversionError: ONNX has none.
    """
    try:
        return np.dtype(str(name))
    except TypeError:
        raise ConversionError(f"{name} cannot be expressed in ONNX") from None


class OnnxGraph:
    """The nodes and constants of a model that converters have added.

    bfloat16 is computed in float32, and the results of operators are rounded, as on PyTorch's CPU,
    because runtimes support few operators for bfloat16.

    Args:
        taken: the names of the program's inputs and its operators' results.

    Attributes:
        nodes: the nodes, in order.
        constants: arrays by name.
    """

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._taken = set(taken)
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self._outputs = 0
        self._wide: dict[str, str] = {}

    def add(self, kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        """Append a node; attributes that are None are omitted."""
        onnx = library()
        given = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(onnx.helper.make_node(kind, inputs, outputs, **given))

    def value(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        """Append a node for an intermediate value, and return its name."""
        name = self.fresh()
        self.add(kind, inputs, [name], **attributes)
        return name

    def fresh(self) -> str:
        """Returns an unused name for a result of the next node."""
        return f"calque.value.{len(self.nodes)}"

    def constant(self, array: Any, dtype: Any = None) -> str:
        """Returns the name of a constant."""
        name = f"calque.constant.{len(self.constants)}"
        self.constants[name] = _widened(np.asarray(array, dtype=dtype))
        return name

    def widen(self, info: TensorInfo) -> None:
        """Make a bfloat16 value look like a float32 value to converters."""
        if info.dtype == NARROW:
            kind = kind_of(WIDE)
            self._wide[info.name] = self.value("Cast", [info.name], to=kind)

    def rounded(self, infos: Iterable[TensorInfo]) -> None:
        """Round an operator's result to its dtype."""
        made = {name for node in self.nodes for name in node.output}
        for info in infos:
            if info.dtype == NARROW and info.name in made:
                narrow = self.value("Cast", [info.name], to=kind_of(NARROW))
                self._wide[info.name] = self.value("Cast", [narrow], to=kind_of(WIDE))

    def prune(self, results: list[str], inputs: set[str]) -> None:
        """Remove nodes and constants that no result needs.

        Raises:
            ConversionError: a result needs a value that no node computes.
        """
        needed, kept = set(results), []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.output):
                kept.append(node)
                needed.update(node.input)
        self.nodes = kept[::-1]
        given = {"", *inputs, *self.constants, *(n for node in kept for n in node.output)}
        for name in sorted(needed - given):
            raise ConversionError(
                f"{name}, a secondary result of an operator, cannot be expressed in ONNX"
            )
        self.constants = {name: a for name, a in self.constants.items() if name in needed}

    def named(self, name: str) -> str:
        """Returns the ONNX value that represents a tensor of the program."""
        return self._wide.get(name, name)

    def weight(self, name: str, array: np.ndarray) -> str:
        """Returns the name of a parameter of the program,
        prefixed with `weight.` if it is taken.
        """
        while name in self._taken:
            name = f"weight.{name}"
        self.constants[name] = _widened(array)
        return name

    def output(self, info: TensorInfo) -> TensorInfo:
        """Returns a separate name for an output, because a tensor may be several outputs, or an
        input.
        """
        name = f"output_{self._outputs}"
        while name in self._taken or name in self.constants:
            name += "_"
        self._outputs += 1
        if info.dtype == NARROW:
            self.add("Cast", [self.named(info.name)], [name], to=kind_of(NARROW))
        else:
            self.add("Identity", [info.name], [name])
        return TensorInfo(name, info.shape, info.dtype)


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(WIDE) if array.dtype.name == NARROW else array
