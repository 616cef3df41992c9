"""Effects of a step on tensors that others can see, and tensors that share memory."""

import functools
import operator
from typing import Any

import torch

from calque.tracing.graph.checks import CHECKS, unpack
from calque.tracing.graph.ir import Choice, Step, StepValue
from calque.tracing.graph.purity import has_effect
from calque.tracing.proxies.proxy import assert_fn
from calque.upstream import torch_c
from calque.upstream.torch_internals import enter_autocast, exit_autocast

_HARMLESS = CHECKS | {unpack, assert_fn, torch_c.set_grad_enabled}
_HARMLESS |= {enter_autocast, exit_autocast}
_VIEWS = frozenset((operator.getitem, getattr))


def step_has_effect(step: Step | Choice, resolve: Any) -> bool:
    """Returns True if a step has side effects.

    Args:
        resolve: returns the module that a `call_module` names.
    """
    if isinstance(step, Choice):
        steps = (*step.true.steps, *step.false.steps)
        return any(step_has_effect(inner, resolve) for inner in steps)
    if step.op in ("placeholder", "output") or step.node is None:
        return True
    if step.op == "call_module":
        module = resolve(step.target)
        return not _is_pure_module(module)
    return has_effect(step.node)


def _is_pure_module(module: torch.nn.Module) -> bool:
    own = type(module).__module__.startswith("torch.nn")
    return own and not any(True for _ in module.buffers()) and not writes_to_input(module)


def writes_to_input(module: torch.nn.Module) -> bool:
    """Returns True if a PyTorch module works in place."""
    return any(getattr(m, "inplace", False) for m in module.modules())


def writes(step: Step | Choice, resolve: Any) -> bool:
    """Returns True if a step may write to a tensor from an earlier step."""
    if isinstance(step, Choice):
        steps = (*step.true.steps, *step.false.steps)
        return any(writes(inner, resolve) for inner in steps)
    if step.op == "call_module":
        module = resolve(step.target)
        return writes_to_input(module) or not type(module).__module__.startswith("torch.nn")
    if step.op == "call_function" and step.target in _HARMLESS:
        return False
    return step.op.startswith("call") and (step.node is None or has_effect(step.node))


def may_share_memory(value: StepValue) -> bool:
    """Returns True if a value may be an argument of its step, or a view of one."""
    if not isinstance(value, Step):
        return True
    if value.op == "call_method":
        return may_return_view(str(value.target))
    if value.op == "call_function" and value.target not in _VIEWS and is_of_torch(value):
        return may_return_view(getattr(value.target, "__name__", "").strip("_"))
    return True


def is_of_torch(step: Step) -> bool:
    """Returns True if a step calls a PyTorch function or a tensor method."""
    module = getattr(step.target, "__module__", None) or ""
    return step.op == "call_method" or module.startswith(("torch", "_operator", "operator"))


@functools.lru_cache(maxsize=4096)
def may_return_view(name: str) -> bool:
    """Returns True if the result of a PyTorch function may share memory with its arguments."""
    schemas = torch_c.jit_get_schemas_for_operator(f"aten::{name}")
    schemas = [s for s in schemas if any("Tensor" in str(a.type) for a in s.arguments)]
    written = any(a.alias_info is not None for schema in schemas for a in schema.returns)
    if written and not _only_out(schemas):
        return True
    return not schemas


def _only_out(schemas: list[Any]) -> bool:
    return all(
        all(a.alias_info is None for a in schema.returns)
        or any(a.name.startswith("out") for a in schema.arguments)
        for schema in schemas
    )
