"""Reads recordings: the graph, or the calls themselves if no graph would be correct."""

from collections.abc import Iterator
from typing import Any

import torch

from calque.tracing.record import Recording
from calque.tracing.record.events import Begin, ModuleCall, ModuleEnd, RecordedCall
from calque.tracing.record.recording import Level
from calque.tracing.record.values import RunValue, values_in
from calque.view.families import family_of
from calque.view.graph import TensorLook, ViewEdge, ViewGraph, ViewNode
from calque.view.readers import fx
from calque.view.readers.fx_groups import Groups


def read(recording: Recording, *, level: Level = "function") -> ViewGraph:
    """Reads the graph of a recording, or only its calls if it has `problems`."""
    if recording.problems:
        return _Calls(recording).read()
    try:
        graph = recording.graph(level)
    except SyntaxError:  # a parameter's name is invalid in generated code
        return _Calls(recording).read()
    found = fx.read(graph)
    name = _name(recording)
    return ViewGraph(name, "a recording", found.nodes, found.edges, found.groups)


def _name(recording: Recording) -> str:
    root = recording._tape.root
    return type(root).__name__ if isinstance(root, torch.nn.Module) else recording._tape.name


class _Calls:
    """The calls of a run, each a node, with edges from the calls that returned their arguments."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._maker: dict[int, str] = {}
        self._count: dict[str, int] = {}
        self._groups = Groups()
        self._edges: dict[ViewEdge, None] = {}

    def read(self) -> ViewGraph:
        nodes = tuple(self._nodes())
        name = _name(self._recording)
        return ViewGraph(
            name, "a recording without a graph", nodes, tuple(self._edges), self._groups.all()
        )

    def _nodes(self) -> Iterator[ViewNode]:
        for name, given in self._recording._tape.arguments.items():
            yield self._made(name, "input", given)
        for event in self._recording._tape.events:
            if isinstance(event, RecordedCall):
                yield self._call(event)
            elif isinstance(event, Begin | ModuleEnd):
                self._group(event.call)
        yield self._taking("output", self._recording._tape.result)

    def _made(self, name: str, kind: Any, given: Any) -> ViewNode:
        id = self._id(name.lstrip("*"))
        values = values_in(given)
        self._maker.update((number, id) for number in map(_number, values))
        return ViewNode(id, name, name, kind, family=kind, outputs=_looks(values))

    def _call(self, call: RecordedCall) -> ViewNode:
        id = self._id(call.name)
        self._link(id, (call.args, call.kwargs))
        values = values_in(call.result)
        self._maker.update((number, id) for number in map(_number, values))
        origin = call.origin()
        line = origin and fx.source_line(origin.file, origin.line, origin.function)
        served = "escape" if call.what or call.reads else ""
        group = self._group(call.module)
        family = family_of(call.name)
        return ViewNode(
            id, call.name, call.name, "call", group, family, served, _looks(values), source=line
        )

    def _taking(self, name: str, given: object) -> ViewNode:
        id = self._id(name)
        self._link(id, given)
        return ViewNode(id, name, name, "output", family="output")

    def _link(self, id: str, given: object) -> None:
        makers = (self._maker.get(_number(value)) for value in values_in(given))
        self._edges.update((ViewEdge(m, id), None) for m in makers if m is not None and m != id)

    def _id(self, name: str) -> str:
        count = self._count[name] = self._count.get(name, -1) + 1
        return f"{name}_{count}" if count else name

    def _group(self, call: ModuleCall | None) -> str:
        if call is None or not call.path:
            return ""
        id, kind = "", type(call.module).__name__
        parts = call.path.split(".")
        for count, part in enumerate(parts, start=1):
            last = (kind, call.number) if count == len(parts) else ("", 0)
            id = self._groups.add(id, part, ".".join(parts[:count]), *last)
        return id


def _number(value: RunValue) -> int:
    return id(value)


def _looks(values: list[RunValue]) -> tuple[TensorLook, ...]:
    looks = (value.looks for value in values)
    return tuple(TensorLook(str(k.dtype).removeprefix("torch."), k.shape) for k in looks if k)
