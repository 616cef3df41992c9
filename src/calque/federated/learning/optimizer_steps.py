"""Steps of PyTorch's optimizers that choose by numbers, computed with tensors instead."""

from collections.abc import Callable
from typing import Any

import torch


def adafactor(optimizer: torch.optim.Optimizer) -> None:
    """A step of Adafactor (Shazeer and Stern 2018), with the state that PyTorch's keeps.

    Its sizes of steps are the least and the greatest of a constant and a number of a tensor.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                _adafactor_step(parameter, optimizer.state[parameter], group)


def _adafactor_step(parameter: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    assert parameter.grad is not None
    gradient = -parameter.grad if group["maximize"] else parameter.grad
    rate, (least, scale) = group["lr"], group["eps"]
    least = torch.finfo(parameter.dtype).eps if least is None else least
    count = state.get("step", gradient.new_zeros(())) + 1
    keep = 1 - count ** group["beta2_decay"]
    size = _root_mean_square(parameter).clamp(min=scale) * count.rsqrt().clamp(max=rate)

    def averaged(name: str, new: torch.Tensor) -> torch.Tensor:
        before = state.get(name, torch.zeros_like(new))
        state[name] = keep * before + (1 - keep) * new
        return state[name]

    squares = gradient * gradient
    if gradient.dim() > 1:
        rows = averaged("row_var", squares.mean(-1, keepdim=True))
        columns = averaged("col_var", squares.mean(-2, keepdim=True))
        variance = rows @ columns / rows.mean(-2, keepdim=True).clamp(min=least)
    else:
        variance = averaged("variance", squares)
    update = gradient * variance.clamp(min=least * least).rsqrt()
    update = update / (_root_mean_square(update) / group["d"]).clamp(min=1.0)
    state["step"] = count
    with torch.no_grad():
        parameter.copy_(parameter * (1 - rate * group["weight_decay"]) - size * update)


def _root_mean_square(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor * tensor).mean().sqrt()


STEPS: dict[type, Callable[[torch.optim.Optimizer], None]] = {torch.optim.Adafactor: adafactor}
"""By the class of an optimizer, what is done in the place of its `step`."""
