"""Steps of PyTorch optimizers that branch on values, rewritten with tensors."""

import math
from collections.abc import Callable
from typing import Any

import torch

ParameterStep = Callable[[torch.Tensor, dict[str, Any], dict[str, Any]], None]
"""A step of one parameter, given its gradient, its state and its group's settings."""


def _for_each_parameter(
    step: ParameterStep,
) -> Callable[[torch.optim.Optimizer], None]:
    """Returns the step of an optimizer, which runs `step` for each parameter with a gradient."""

    def whole_step(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    step(parameter, optimizer.state[parameter], group)

    return whole_step


def _adafactor_step(parameter: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """A step of Adafactor (Shazeer and Stern 2018), with PyTorch's state.

    PyTorch computes its step sizes by Python's min and max of a constant and a tensor's value.
    """
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


def _radam_step(parameter: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """A step of RAdam (Liu et al. 2020), with PyTorch's state.

    It branches on a function of the step count, which naive float32 would compute to three digits.
    """
    assert parameter.grad is not None
    gradient = -parameter.grad if group["maximize"] else parameter.grad
    rate, decay, (beta1, beta2) = group["lr"], group["weight_decay"], group["betas"]
    start = parameter * (1 - rate * decay) if group["decoupled_weight_decay"] else parameter
    if not group["decoupled_weight_decay"]:
        gradient = gradient + decay * parameter
    count = state.get("step", gradient.new_zeros(())) + 1
    zeros = torch.zeros_like(parameter)
    mean = state.get("exp_avg", zeros).lerp(gradient, 1 - beta1)
    squares = beta2 * state.get("exp_avg_sq", zeros) + (1 - beta2) * gradient * gradient
    state |= {"step": count, "exp_avg": mean, "exp_avg_sq": squares}

    longest, length = 2 / (1 - beta2) - 1, _averaged_length(count, beta2)
    scale = longest / ((longest - 4) * (longest - 2))
    rectified = ((length - 4) * (length - 2) * scale / length).clamp(min=0).sqrt()
    adapted = _one_minus_power(beta2, count).sqrt() / (squares.sqrt() + group["eps"])
    step = rate * mean / _one_minus_power(beta1, count)
    with torch.no_grad():
        parameter.copy_(start - step * torch.where(length > 5.0, rectified * adapted, 1.0))


def _one_minus_power(base: float, count: torch.Tensor) -> torch.Tensor:
    """Returns `1 - base**count`, to full precision."""
    return -torch.expm1(count * math.log(base)) if base > 0 else torch.ones_like(count)


def _averaged_length(count: torch.Tensor, beta: float) -> torch.Tensor:
    """Returns `2/(1-beta) - 1 - 2*count*beta**count/(1-beta**count)`, to full precision.

    With `a = -count*log(beta)`, the last term is `-2/log(beta) * a/(exp(a)-1)`. For small `a`, its
    series avoids the subtraction in float32.
    """
    rate = -math.log(beta)
    a = (count * rate).clamp(max=80.0)
    square = a * a
    series = square * (1 / 12 - square * (1 / 720 - square * (1 / 30240 - square / 1209600)))
    near = (2 / (1 - beta) - 1 - 2 / rate) + count - 2 / rate * series
    far = 2 / (1 - beta) - 1 - 2 * count / torch.expm1(a)
    return torch.where(a < 1.0, near, far)


def _root_mean_square(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor * tensor).mean().sqrt()


STEPS: dict[type, Callable[[torch.optim.Optimizer], None]] = {
    torch.optim.Adafactor: _for_each_parameter(_adafactor_step),
    torch.optim.RAdam: _for_each_parameter(_radam_step),
}
"""The functions that replace `step`, by the class of the optimizer."""
