"""The tensors whose values after the forward pass the backward pass of a program needs.

A program keeps the arrays that it needs, so nothing can change them. But eager PyTorch raises if a
saved tensor is written to before the backward pass, and so does a program.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jax.extend.core import Literal

from calque.device.memory.cell import Cell, cell_of
from calque.program.jaxprs import live, variables
from calque.program.results import Description, Existing, Made, OwnTensor

if TYPE_CHECKING:
    from calque.jitting.recording import TraceRecording


def watch(recording: "TraceRecording", late: int, made: Mapping[int, Description]) -> None:
    """Find the tensors that the parts of the backward pass read.

    Tensors from outside that get a new history are excluded.

    Args:
        recording: the trace, with its jaxpr and its backward.
        late: the index of the first equation of the backward pass in the jaxpr.
        made: the cells created in the trace, by the index of their output.
    """
    backward = recording.backward
    assert backward is not None
    inner = recording.jaxpr.jaxpr
    sources = _sources(recording, made)
    first = recording.n_outputs
    for part in backward.parts:
        gradients = inner.outvars[first : first + len(part.gradients)]
        first += len(part.gradients)
        read = variables(live(inner.eqns[late:], gradients))
        part.watched = [place for variable, place in sources if variable in read]
        for place in part.watched:
            if isinstance(place, Made):
                place.shared = True


def _sources(
    recording: "TraceRecording", made: Mapping[int, Description]
) -> list[tuple[Any, Description]]:
    """Returns the variables of tensors after the call, and the tensors."""
    inner = recording.jaxpr.jaxpr
    targets = [one.target for one in recording.rewritten]
    rewritten = {cell_of(t.tensor) if isinstance(t, Existing) else t.index for t in targets}
    rows: dict[Any, Any] = {}
    for one, variable in zip(recording.inputs, inner.invars, strict=True):
        if one.source.memory is not None:
            rows[variable] = one.source.memory
    rows.update(zip(inner.outvars, (sink.memory for sink in recording.sinks), strict=False))
    found: list[tuple[Any, Description]] = []
    for variable, source in rows.items():
        if isinstance(variable, Literal) or source in rewritten:
            continue
        if isinstance(source, Cell):
            if source in recording.handles:
                found.append((variable, Existing(recording.handles[source])))
        elif source < recording.count:
            found.append((variable, OwnTensor(source)))
    behind = inner.outvars[len(recording.sinks) :]
    return found + [(v, made[i]) for i, v in enumerate(behind) if i in made]
