"""Generates the lines that create the results of a call and assign gradients."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import torch

from calque.device.memory.cell import Cell
from calque.device.memory.geometry import contiguous_strides
from calque.device.runtime.dtypes import to_torch
from calque.jitting.generated.source import Source
from calque.program.gradients.carrying import Carried
from calque.program.result_views import apart, viewed
from calque.program.results import Argument, Constant, Description, Existing, Fresh
from calque.upstream import torch_c

if TYPE_CHECKING:
    from calque.jitting.program import JittedProgram

_create = torch_c.acc.create_empty_tensor
_storage_of = torch.Tensor.untyped_storage
_LEAF = jax.tree_util.tree_structure(0)


def are_simple(program: "JittedProgram") -> bool:
    """Returns True if the lines of this module can make the results of a program."""
    recording, carrying = program.recording, program.carrying
    if carrying is not None:
        if not (torch.is_grad_enabled() and carrying.has_errors_only):
            return False
        if not all(spent.make() for spent in carrying.errors.values()):
            return False
    if not all(type(target) is Existing for target, _ in recording.gradients):
        return False
    made = [one for one in _described(program) if type(one) not in _GIVEN]
    fresh = [_bare(program, one) for one in made]
    outputs = [one.output for one in dict.fromkeys(fresh) if one is not None]
    return None not in fresh and len(set(outputs)) == len(outputs)


_GIVEN = (Constant, Existing, Argument)


def _described(program: "JittedProgram") -> Iterator[Any]:
    recording = program.recording
    yield from (one for _, one in recording.gradients if one is not None)
    yield from recording.results


def _bare(program: "JittedProgram", one: Description) -> Fresh | None:
    """Returns a function that creates a tensor's storage; None if it needs more than one array."""
    if isinstance(one, Carried):
        if not one.is_bare:
            return None
        assert program.carrying is not None
        bare = program.carrying.bare[one.slot]
    else:
        bare = one
    known = (
        bare.attributes is not None or bare.subclass is not None if type(bare) is Fresh else True
    )
    if type(bare) is not Fresh or known or not (bare.leaf is None is bare.inference):
        return None
    return bare if bare.stride is None and 0 not in _form(program, bare)[0] else None


def _form(program: "JittedProgram", one: Fresh) -> tuple[tuple[int, ...], Any]:
    """Returns the shape and dtype of the array of a tensor."""
    aval = program.forms[program.n_written + one.output]
    return aval.shape, to_torch(aval.dtype)


def write_gradients(source: Source, program: "JittedProgram") -> None:
    """Write the lines that assign the gradients that the function leaves."""
    for target, one in program.recording.gradients:
        assert isinstance(target, Existing)
        found = "None" if one is None else _written(source, program, one)
        source.line(f"{{}}.grad = {found}", target.tensor)


def write_results(source: Source, program: "JittedProgram") -> None:
    """Write the lines that make the result of a call from the `outputs` of the program."""
    recording = program.recording
    names = [_written(source, program, one) for one in recording.results]
    if recording.spec == _LEAF:
        source.line(f"result = {names[0]}")
    else:
        source.line(f"result = {{}}([{', '.join(names)}])", program.rebuild)


def _written(source: Source, program: "JittedProgram", one: Any) -> str:
    """Write the lines that create a described value; returns its name."""
    if isinstance(one, Constant):
        return source.name(one.value)
    if isinstance(one, Existing):
        return source.name(one.tensor)
    if isinstance(one, Argument):
        return f"a{one.index}"
    bare = _bare(program, one)
    assert bare is not None
    name = f"t{bare.output}"
    if not source.is_first(name):
        return name
    shape, dtype = _form(program, bare)
    array = f"outputs[{program.n_written + bare.output}]"
    view = bare.view
    if view is None or (bare.creation is None and _is_reshaped(shape, dtype, bare)):
        source.line(f"{name} = {{}}({{}}, {{}})", _create, view.size if view else shape, dtype)
        source.line(f"{{}}({name}).cell = cell = {{}}({array})", _storage_of, Cell)
        if view is not None:
            source.line("cell.viewed = True")
    else:
        source.line(f"{name} = {{}}({{}}, {{}})", _create, shape, dtype)
        source.line(f"{{}}({name}).cell = {{}}({array})", _storage_of, Cell)
        if bare.creation is None:
            source.line(f"{name} = {{}}({name}, {{}}, {{}})", apart, bare.dtype, view)
        else:
            how = bare.dtype, view, bare.creation
            source.line(f"{name} = {{}}({name}, {{}}, {{}}, {{}})", viewed, *how)
    if isinstance(one, Carried):
        spent = program.carrying.errors[one.slot]  # type: ignore[union-attr]
        source.line(f"{{}}({name})", spent.push)
        source.line(f"{name} = {{}}({{}})", spent.take, spent.node)
        source.line("{}()", spent.pop)
    return name


def _is_reshaped(shape: tuple[int, ...], dtype: torch.dtype, one: Fresh) -> bool:
    """Returns True if a view sees the whole of an array, in its order."""
    view = one.view
    if view is None or view.offset or one.dtype != dtype or 0 in view.size:
        return False
    same = _count(view.size) == _count(shape)
    return same and view.stride == contiguous_strides(view.size)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
