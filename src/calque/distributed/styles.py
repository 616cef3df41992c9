"""PyTorch's parallel styles (`ColwiseParallel`, ...) on a mesh of JAX devices.

A style places the parameters of a module and pins the placements of its inputs and outputs; XLA
inserts the necessary communication. `use_local_output` has no effect, because all tensors are
global.
"""

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.tensor.parallel import style as styles
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from calque.distributed.layouts import spec_of
from calque.distributed.meshes import JaxDeviceMesh
from calque.distributed.sharding_constraints import Pin, first_input_pinned, laid, output_pinned
from calque.distributed.tensors import place

Placed = Callable[[str], Placement]


def _colwise(style: Any, module: nn.Module, mesh: JaxDeviceMesh) -> nn.Module:
    _check(style, module)
    dim = 0 if isinstance(module, nn.Linear) else 1
    _place(module, mesh, lambda name: Shard(dim))
    _pin_first_input(module, mesh, style.desired_input_layouts[0])
    return pin_output(module, mesh, style.output_layouts[0])


def _rowwise(style: Any, module: nn.Module, mesh: JaxDeviceMesh) -> nn.Module:
    _check(style, module)
    linear = isinstance(module, nn.Linear)
    split = Shard(1) if linear else Shard(0)
    _place(module, mesh, lambda name: split if name == "weight" else Replicate())
    _pin_first_input(module, mesh, Shard(-1) if linear else Replicate())
    return pin_output(module, mesh, style.output_layouts[0])


def _sequence(style: Any, module: nn.Module, mesh: JaxDeviceMesh) -> nn.Module:
    (layout,) = style.sequence_sharding
    _place(module, mesh, lambda name: Replicate())
    _pin_first_input(module, mesh, layout)
    return pin_output(module, mesh, layout)


def _input(style: Any, module: nn.Module, mesh: JaxDeviceMesh) -> nn.Module:
    wanted = style.desired_input_layouts
    pins = None if wanted is None else [laid(one, mesh) for one in wanted]
    named = {n: laid(one, mesh) for n, one in style.desired_input_kwarg_layouts.items()}
    prepare = partial(_inputs_prepared, pins, named)
    module.register_forward_pre_hook(prepare, with_kwargs=True)
    return module


def _inputs_prepared(
    pins: list[Pin] | None,
    named: dict[str, Pin],
    module: nn.Module,
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if pins is not None:
        _check_count(inputs, pins, "inputs and input_layouts")
        inputs = tuple(pin(value) for pin, value in zip(pins, inputs, strict=True))
    return inputs, {n: named[n](v) if n in named else v for n, v in kwargs.items()}


def _output(style: Any, module: nn.Module, mesh: JaxDeviceMesh) -> nn.Module:
    layouts = zip(style.output_layouts, style.desired_output_layouts, strict=True)
    pins = [laid(None if has is None else wanted, mesh) for has, wanted in layouts]
    module.register_forward_hook(partial(_outputs_prepared, pins))
    return module


def _outputs_prepared(pins: list[Pin], module: nn.Module, inputs: object, outputs: object) -> Any:
    found = outputs if isinstance(outputs, tuple) else (outputs,)
    _check_count(found, pins, "outputs and output_layouts")
    made = tuple(pin(value) for pin, value in zip(pins, found, strict=True))
    return made if isinstance(outputs, tuple) else made[0]


def _both(style: Any, module: nn.Module, mesh: JaxDeviceMesh) -> nn.Module:
    _input(style.prepare_module_input, module, mesh)
    return _output(style.prepare_module_output, module, mesh)


def _check(style: Any, module: nn.Module) -> None:
    if not isinstance(module, nn.Linear | nn.Embedding):
        raise NotImplementedError(
            f"{type(style).__name__} currently only support nn.Linear and nn.Embedding!"
        )


def _check_count(values: Sequence[Any], layouts: Sequence[Any], what: str) -> None:
    if len(values) != len(layouts):
        raise ValueError(f"module {what} should have same length!")


def _place(module: nn.Module, mesh: JaxDeviceMesh, layout: Placed) -> None:
    for name, parameter in list(module.named_parameters()):
        place(module, name, spec_of([layout(name)], mesh, parameter.ndim), mesh)


def _pin_first_input(module: nn.Module, mesh: JaxDeviceMesh, layout: Placement) -> None:
    module.register_forward_pre_hook(partial(first_input_pinned, laid(layout, mesh)))


def pin_output(module: nn.Module, mesh: JaxDeviceMesh, layout: Placement) -> nn.Module:
    """Split or replicate a module's output over a mesh of one dimension."""
    module.register_forward_hook(partial(output_pinned, laid(layout, mesh)))
    return module


STYLES: dict[str, Callable[[Any, nn.Module, JaxDeviceMesh], nn.Module]] = {
    "ColwiseParallel": _colwise,
    "RowwiseParallel": _rowwise,
    "SequenceParallel": _sequence,
    "PrepareModuleInput": _input,
    "PrepareModuleOutput": _output,
    "PrepareModuleInputOutput": _both,
}


def install() -> None:
    """Make the styles annotate modules if the mesh is of type "jax"."""
    for name, ours in STYLES.items():
        kind = getattr(styles, name, None)
        if kind is not None:
            kind._apply = _in_front(kind._apply, ours)


def _in_front(theirs: Any, ours: Any) -> Any:
    @functools.wraps(theirs)
    def apply(self: Any, module: nn.Module, device_mesh: Any) -> nn.Module:
        if not isinstance(device_mesh, JaxDeviceMesh):
            return theirs(self, module, device_mesh)
        if device_mesh.ndim != 1:
            raise ValueError("a parallel style needs a mesh of one dimension: mesh['tp']")
        return ours(self, module, device_mesh)

    return apply
