"""PyTorch's parallel styles (`ColwiseParallel`, ...) on a mesh of JAX's devices.

A style places the parameters of a module and pins how its inputs and outputs lie; what has to be
gathered or summed for that, XLA puts in. `use_local_output` has no meaning: all tensors are global.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.distributed.tensor.parallel import style as styles
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from calque.distributed.layouts import spec_of
from calque.distributed.meshes import JaxDeviceMesh
from calque.distributed.tensors import constrained, place

Placed = Callable[[str], Placement]


def _colwise(style: Any, module: nn.Module, mesh: JaxDeviceMesh) -> nn.Module:
    _check(style, module)
    dim = 0 if isinstance(module, nn.Linear) else 1
    _place(module, mesh, lambda name: Shard(dim))
    _pin_first_input(module, mesh, style.desired_input_layouts[0])
    return _pin_output(module, mesh, style.output_layouts[0])


def _rowwise(style: Any, module: nn.Module, mesh: JaxDeviceMesh) -> nn.Module:
    _check(style, module)
    linear = isinstance(module, nn.Linear)
    split = Shard(1) if linear else Shard(0)
    _place(module, mesh, lambda name: split if name == "weight" else Replicate())
    _pin_first_input(module, mesh, Shard(-1) if linear else Replicate())
    return _pin_output(module, mesh, style.output_layouts[0])


def _sequence(style: Any, module: nn.Module, mesh: JaxDeviceMesh) -> nn.Module:
    (layout,) = style.sequence_sharding
    _place(module, mesh, lambda name: Replicate())
    _pin_first_input(module, mesh, layout)
    return _pin_output(module, mesh, layout)


def _input(style: Any, module: nn.Module, mesh: JaxDeviceMesh) -> nn.Module:
    wanted = style.desired_input_layouts
    named = style.desired_input_kwarg_layouts

    def prepare(_: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if wanted is not None:
            _check_count(inputs, style.input_layouts, "inputs and input_layouts")
            inputs = tuple(constrained(i, w, mesh) for i, w in zip(inputs, wanted, strict=True))
        kwargs = {name: constrained(v, named.get(name), mesh) for name, v in kwargs.items()}
        return inputs, kwargs

    module.register_forward_pre_hook(prepare, with_kwargs=True)
    return module


def _output(style: Any, module: nn.Module, mesh: JaxDeviceMesh) -> nn.Module:
    def prepare(_: nn.Module, inputs: Any, outputs: Any) -> Any:
        found = outputs if isinstance(outputs, tuple) else (outputs,)
        _check_count(found, style.output_layouts, "outputs and output_layouts")
        wanted = zip(found, style.output_layouts, style.desired_output_layouts, strict=True)
        made = tuple(o if has is None else constrained(o, w, mesh) for o, has, w in wanted)
        return made if isinstance(outputs, tuple) else made[0]

    module.register_forward_hook(prepare)
    return module


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
    def prepare(_: nn.Module, inputs: tuple[Any, ...]) -> Any:
        return (constrained(inputs[0], layout, mesh), *inputs[1:]) if inputs else inputs

    module.register_forward_pre_hook(prepare)


def _pin_output(module: nn.Module, mesh: JaxDeviceMesh, layout: Placement) -> nn.Module:
    module.register_forward_hook(lambda _, inputs, output: constrained(output, layout, mesh))
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
    """Have the styles annotate modules where the mesh is of type "jax"."""
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
            raise ValueError("a parallel style takes a mesh of one dimension: mesh['tp']")
        return ours(self, module, device_mesh)

    return apply
