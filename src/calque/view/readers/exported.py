"""Reads programs of `torch.export`, whose parameters and buffers are inputs of the graph."""

from torch.export import ExportedProgram

from calque.interop.export import Exported
from calque.view.graph import ViewGraph
from calque.view.readers import fx

_MEMBERS = ("PARAMETER", "BUFFER", "CONSTANT_TENSOR", "CUSTOM_OBJ")


def read(program: ExportedProgram) -> ViewGraph:
    """Reads an exported program, with its parameters and buffers in their modules."""
    specs = program.graph_signature.input_specs
    members = {s.arg.name: str(s.target) for s in specs if s.kind.name in _MEMBERS}
    found = fx.read(program.graph_module, members=members)
    return ViewGraph(found.name, "an ExportedProgram", found.nodes, found.edges, found.groups)


def read_exported(program: Exported) -> ViewGraph:
    """Reads the result of `calque.export`.

    Raises:
        TypeError: it was loaded from bytes, which contain no graph.
    """
    if program.exported_program is None:
        raise TypeError("a loaded program has no graph; see its stablehlo()")
    return read(program.exported_program)
