"""What a branch of the traced program becomes in a graph: a call of `cond`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.graph_module import GraphModule

from calque.trace.checks import recorded

Implementation = Callable[[Any, "Branch", "Branch", Sequence[Any]], tuple]
implementations: dict[str, Implementation] = {}
"""What runs `cond` where the condition is a tensor of a device that needs a way of its own."""


class Branch(GraphModule):
    """One way of a choice.

    The modules it calls belong to the graph module around it, which has them in its state under
    their own names; here they are left out.
    """

    def state_dict(self, *args: Any, destination: Any = None, **kwargs: Any) -> Any:
        """Nothing; see the class."""
        return {} if destination is None else destination

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        for members in (self.named_parameters, self.named_buffers):
            for name, member in members():
                state_dict.setdefault(prefix + name, member.detach())


@recorded
def cond(condition: Any, true: Branch, false: Branch, operands: Sequence[Any]) -> tuple:
    """The results of `true` or of `false`, called with the operands.

    As `torch.cond`, but outside of a compiler just one of the two runs, as Python would run it:
    with autograd's own graph, on the operands themselves, with effects.

    Args:
        condition: a tensor of one element, or a Python value, whose truth decides.
        true, false: take the operands, and return tuples of one structure.
        operands: the values that either of them uses.

    Raises:
        RuntimeError: the condition is a tensor that has not one element.
    """
    if isinstance(condition, torch.Tensor):
        if _is_staged(condition):
            flag = condition.reshape(()).bool()
            if torch.compiler.is_dynamo_compiling():
                return torch.cond(flag, true, false, tuple(operands))
            return torch.ops.higher_order.cond(flag, true, false, tuple(operands))
        own = implementations.get(condition.device.type)
        if own is not None:
            return own(condition, true, false, operands)
    return (true if condition else false)(*operands)


def _is_staged(condition: torch.Tensor) -> bool:
    """Whether a compiler looks at the program now, rather than the program run."""
    if torch.compiler.is_dynamo_compiling():
        return True
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    kinds = (torch.fx.experimental.proxy_tensor.ProxyTorchDispatchMode,)
    return any(isinstance(mode, kinds) for mode in modes) or isinstance(
        condition,
        torch._subclasses.FakeTensor | torch._subclasses.functional_tensor.FunctionalTensor,
    )
