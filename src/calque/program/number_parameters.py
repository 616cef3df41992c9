"""Numbers that differ between calls, as parameters of functions that want plain floats: the `p` of
`F.dropout`, the `std` of `torch.normal`.

PyTorch's C++ reads the value of such a parameter, forwards or in the formula of the gradient. Where
a function is the same as others of tensors or of scalars, these are called instead, which take the
number as an input of the program. What PyTorch decides by the value (its range, a special exponent)
is guarded. Random functions draw the same numbers as before.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F
from torch.nn import init

from calque.program.moving_indexes import may_move
from calque.program.traced_numbers import TracedFloat
from calque.program.whole_operands import is_single, tensor_of

Tensor = torch.Tensor
_WIDE = (torch.float32, torch.float64)
_HALF = (torch.float16, torch.bfloat16)
_SELU_END = 1.7580993408473766  # minus the limit of `F.selu`
_LEAST = torch.finfo(torch.float32).tiny
_SPECIAL = (0, 0.5, 1, 2, 3, -0.5, -1, -2)
"""Exponents for which PyTorch computes a power in other ways."""


class Parameters(NamedTuple):
    """How a function takes traced numbers.

    Attributes:
        names: the names of its parameters, in order.
        numbers: those that may be traced numbers.
        run: computes it, given the function and its arguments by name; None if it cannot for these.
    """

    names: tuple[str, ...]
    numbers: tuple[str, ...]
    run: Callable[..., Any]


def _of_python(function: Callable[..., Any], run: Callable[..., Any], *numbers: str) -> Parameters:
    return Parameters(tuple(inspect.signature(function).parameters), numbers, run)


def _is_traced(value: object) -> bool:
    return type(value) is TracedFloat and value.node.in_python and value.node.known


def taken(parameters: Parameters, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Returns the result of a function with traced numbers as parameters; None if it cannot."""
    if len(args) > len(parameters.names):
        return None
    given = dict(zip(parameters.names, args)) | kwargs
    if parameters.names[0] == "self" and "input" in kwargs:  # a function's name for it
        given["self"] = given.pop("input")
    if len(given) < len(args) + len(kwargs) or parameters.names[0] not in given:
        return None
    if not any(_is_traced(given.get(name)) for name in parameters.numbers):
        return None
    return parameters.run(func, given)


def _is_wide(*tensors: Any) -> bool:
    """Returns True for tensors of the trace with the same dtype, which holds all digits that
    PyTorch computes with.
    """
    if not all(map(may_move, tensors)):
        return False
    return tensors[0].dtype in _WIDE and all(t.dtype == tensors[0].dtype for t in tensors)


def _asked(number: Any, question: Callable[[Any], bool]) -> bool:
    """Answers a question about a number, and guards the answer if the number is traced."""
    if type(number) is TracedFloat:
        return number.node.watch.ask_of(question, number.node)
    return question(number)


def _is_share(number: Any) -> bool:
    return 0 <= number <= 1


def _is_width(number: Any) -> bool:
    """Returns True for positive numbers by which float32 can divide."""
    return _LEAST <= number <= 1 / _LEAST


def _operand(number: Any, like: Tensor) -> Tensor | None:
    """Returns a number as a tensor of no dimensions; None if the dtype cannot hold it."""
    if like.dtype == torch.float32 and not _asked(number, is_single):
        return None
    return tensor_of(number, like.dtype, like.device)


# Random numbers -----------------------------------------------------------------------------------


def _dropout(func: Any, given: dict[str, Any]) -> Any:
    x, p = given["input"], given["p"]
    dtypes = _WIDE if given.get("inplace") else (*_WIDE, *_HALF)
    if not may_move(x) or x.dtype not in dtypes or not _asked(p, _is_share):
        return None
    if not given.get("training", True) or x.numel() == 0:
        return func(**(given | {"p": 0.5}))
    for end in (0.0, 1.0):
        if _asked(p, lambda value, end=end: value == end):
            return func(**(given | {"p": end}))
    kept = _kept(x, x.shape, p)
    wide = _wide(x)
    scale = 1 / tensor_of(1 - p, wide, x.device)
    if given.get("inplace"):
        return x.mul_(torch.where(kept, scale, 0.0))
    return torch.where(kept, (x.to(wide) * scale).to(x.dtype), 0.0)


def _wide(x: Tensor) -> torch.dtype:
    return x.dtype if x.dtype in _WIDE else torch.float32


def _kept(x: Tensor, shape: Sequence[int], p: Any) -> Tensor:
    """Returns which elements a dropout keeps."""
    with torch.no_grad():
        coins = torch.empty(shape, dtype=torch.bool, device=x.device)
        return coins.bernoulli_(tensor_of(1 - p, torch.float32, x.device))


def _dropped_channels(func: Any, given: dict[str, Any]) -> Any:
    x, p = given["input"], given["p"]
    fits = may_move(x) and x.dtype in (*_WIDE, *_HALF) and x.dim() >= 2 and x.numel()
    if not fits or not given["train"] or not _asked(p, lambda value: 0 < value < 1):
        return None
    kept = _kept(x, (*x.shape[:2], *[1] * (x.dim() - 2)), p)
    scale = (1 / tensor_of(1 - p, _wide(x), x.device)).to(x.dtype)
    noise = torch.where(kept, scale, 0.0)
    return x.mul_(noise) if func is torch.feature_dropout_ else x * noise


def _alpha_dropout(func: Any, given: dict[str, Any]) -> Any:
    x, p = given["input"], given["p"]
    fits = _is_wide(x) and given.get("training") and x.numel() > 0 and not given.get("inplace")
    if not fits or not _asked(p, lambda value: 0 < value < 1):
        return None
    a = 1 / ((_SELU_END * _SELU_END * p + 1) * (1 - p)) ** 0.5
    kept = _kept(x, x.shape, p).to(x.dtype)
    return x * (kept * a) + ((kept - 1) * (_SELU_END * a) + _SELU_END * a * p)


def _coins(func: Any, given: dict[str, Any]) -> Any:
    if not may_move(given["self"]) or not _asked(given["p"], _is_share):
        return None
    p = tensor_of(given["p"], torch.float32, given["self"].device)
    return func(given["self"], p, generator=given.get("generator"))


def _normal(func: Any, given: dict[str, Any]) -> Any:
    mean, std = given.get("mean"), given.get("std", 1.0)
    tensors = [one for one in (mean, std) if isinstance(one, Tensor)]
    if not isinstance(std, Tensor) and not _asked(std, lambda value: value >= 0):
        return None
    if len(tensors) == 1 and _is_wide(*tensors):
        like = tensors[0]
        found = [one if one is like else _operand(one, like) for one in (mean, std)]
        if any(one is None for one in found):
            return None
        return func(*found, **{k: v for k, v in given.items() if k not in ("mean", "std")})
    if tensors or "out" in given or torch.device(given.get("device") or "cpu").type != "jax":
        return None
    if (given.get("dtype") or torch.get_default_dtype()) not in _WIDE:
        return None
    with torch.no_grad():
        drawn = func(**(given | {"mean": 0.0, "std": 1.0, "requires_grad": False}))
        drawn = _spread(drawn, mean, std)
    return drawn.requires_grad_(bool(given.get("requires_grad")))


def _spread(drawn: Tensor, start: Any, width: Any) -> Tensor:
    return drawn.mul_(width).add_(start)


def _normal_(func: Any, given: dict[str, Any]) -> Any:
    tensor, mean, std = given["self"], given.get("mean", 0.0), given.get("std", 1.0)
    if not _is_wide(tensor) or not _asked(std, lambda value: value >= 0):
        return None
    return _spread(tensor.normal_(generator=given.get("generator")), mean, std)


def _uniform_(func: Any, given: dict[str, Any]) -> Any:
    tensor, low, high = given["self"], given.get("from", 0.0), given.get("to", 1.0)
    if not _is_wide(tensor) or not low <= high:
        return None
    if not (_asked(low, is_single) and _asked(high, is_single) and _asked(high - low, is_single)):
        return None
    return _spread(tensor.uniform_(generator=given.get("generator")), low, high - low)


def _initialized(run: Callable[..., Any], names: dict[str, str]) -> Callable[..., Any]:
    """Returns how a function of `torch.nn.init` runs, from how the tensor's method does."""

    def found(func: Any, given: dict[str, Any]) -> Any:
        with torch.no_grad():
            return run(func, {names.get(name, name): value for name, value in given.items()})

    return found


# Operators whose gradient wants the value --------------------------------------------------------


def _with_gradient(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _lerp(func: Any, given: dict[str, Any]) -> Any:
    tensors = given["self"], given["end"]
    if not _is_wide(*tensors) or not _with_gradient(*tensors) or len(given) != 3:
        return None
    weight = _operand(given["weight"], tensors[0])
    return None if weight is None else func(*tensors, weight)


def _power(func: Any, given: dict[str, Any]) -> Any:
    base, exponent = given["self"], given["exponent"]
    if len(given) == 2 and _is_traced(base):
        return _power_of_number(func, {"self": exponent, "base": base})
    if len(given) != 2 or not _is_wide(base) or not _with_gradient(base):
        return None
    if _asked(exponent, lambda value: value in _SPECIAL):
        return func(base, exponent.node.pin())
    found = _operand(exponent, base)
    return None if found is None else func(base, found)


def _power_of_number(func: Any, given: dict[str, Any]) -> Any:
    exponent = given["self"]
    if not _is_wide(exponent) or not _with_gradient(exponent):
        return None
    base = _operand(given["base"], exponent)
    return None if base is None else torch.pow(base, exponent)


def _celu(func: Any, given: dict[str, Any]) -> Any:
    alpha = given["alpha"]
    if not _is_wide(given["input"]) or not _asked(alpha, _is_width):
        return None
    return torch.ops.aten.elu(given["input"], alpha, 1.0, 1 / alpha)


def _quantile(func: Any, given: dict[str, Any]) -> Any:
    if not _is_wide(given["self"]) or not _asked(given["q"], _is_share):
        return None
    q = tensor_of(given["q"], given["self"].dtype, given["self"].device)
    rest = {name: value for name, value in given.items() if name not in ("self", "q")}
    return func(given["self"], q, **rest)


# Losses and layers --------------------------------------------------------------------------------


def _batch_norm(func: Any, given: dict[str, Any]) -> Any:
    kept: list[Any] = [given.get(name) for name in ("running_mean", "running_var")]
    if not given.get("training"):
        return func(**(given | {"momentum": 0.1})) if may_move(given["input"]) else None
    if any(one is None for one in kept) or not _is_wide(*kept):
        return None
    found = [torch.zeros_like(one) for one in kept]
    given = given | {"running_mean": found[0], "running_var": found[1]}
    momentum = given["momentum"]
    output = func(**(given | {"momentum": 1.0}))
    with torch.no_grad():
        for one, new in zip(kept, found, strict=True):
            one.mul_(1 - momentum).add_(new, alpha=momentum)
    return output


def _cross_entropy(func: Any, given: dict[str, Any]) -> Any:
    """A loss is linear in the share of the smooth labels."""
    share = given["label_smoothing"]
    if not _is_wide(given["input"]) or not _asked(share, _is_share):
        return None
    sharp = func(**(given | {"label_smoothing": 0.0}))
    if not _asked(share, lambda value: value > 0):
        return sharp
    return (1 - share) * sharp + share * func(**(given | {"label_smoothing": 1.0}))


def _reduced(losses: Tensor, given: dict[str, Any]) -> Tensor:
    reduction = given.get("reduction", "mean")
    return losses if reduction == "none" else getattr(losses, reduction)()


def _is_plain_loss(given: dict[str, Any]) -> bool:
    tensors = given["input"], given["target"]
    if not _is_wide(*tensors) or tensors[0].shape != tensors[1].shape:
        return False
    if any(given.get(name) is not None for name in ("weight", "size_average", "reduce")):
        return False
    return given.get("reduction", "mean") in ("none", "mean", "sum")


def _huber(func: Any, given: dict[str, Any]) -> Any:
    delta = given["delta"]
    if not _is_plain_loss(given) or not _asked(delta, _is_width):
        return None
    gap = given["input"] - given["target"]  # whose infinite and NaN elements have gradients, too
    near = gap.clamp(-delta, delta)
    return _reduced(near * (gap - 0.5 * near), given)


def _smooth_l1(func: Any, given: dict[str, Any]) -> Any:
    beta = given["beta"]
    if not _is_plain_loss(given) or not _asked(beta, _is_width):
        return None
    gap = given["input"] - given["target"]
    slope = (gap / beta).clamp(-1, 1)
    return _reduced(slope * (gap - 0.5 * beta * slope), given)


_OF_NORMAL = ("mean", "std")
_OF_UNIFORM = ("self", "from", "to")
_OF_LERP = Parameters(("self", "end", "weight"), ("weight",), _lerp)
_OF_POWER = Parameters(("self", "exponent"), ("self", "exponent"), _power)
_OF_CHANNELS = Parameters(("input", "p", "train"), ("p",), _dropped_channels)
_OF_QUANTILE = Parameters(("self", "q", "dim", "keepdim"), ("q",), _quantile)
PARAMETERS: dict[Any, Parameters] = {
    F.dropout: _of_python(F.dropout, _dropout, "p"),
    F.alpha_dropout: _of_python(F.alpha_dropout, _alpha_dropout, "p"),
    torch.feature_dropout: _OF_CHANNELS,
    torch.feature_dropout_: _OF_CHANNELS,
    Tensor.bernoulli_: Parameters(("self", "p"), ("p",), _coins),
    torch.normal: Parameters((*_OF_NORMAL, "size"), _OF_NORMAL, _normal),
    Tensor.normal_: Parameters(("self", *_OF_NORMAL), _OF_NORMAL, _normal_),
    Tensor.uniform_: Parameters(_OF_UNIFORM, _OF_UNIFORM[1:], _uniform_),
    init.normal_: _of_python(init.normal_, _initialized(_normal_, {"tensor": "self"}), *_OF_NORMAL),
    init.uniform_: _of_python(
        init.uniform_,
        _initialized(_uniform_, {"tensor": "self", "a": "from", "b": "to"}),
        *("a", "b"),
    ),
    **dict.fromkeys((torch.lerp, Tensor.lerp, Tensor.lerp_), _OF_LERP),
    **dict.fromkeys((torch.pow, Tensor.pow, Tensor.pow_, Tensor.__pow__), _OF_POWER),
    Tensor.__rpow__: Parameters(("self", "base"), ("base",), _power_of_number),
    **dict.fromkeys(
        (torch.quantile, torch.nanquantile, Tensor.quantile, Tensor.nanquantile), _OF_QUANTILE
    ),
    torch.celu: Parameters(("input", "alpha"), ("alpha",), _celu),
    F.batch_norm: _of_python(F.batch_norm, _batch_norm, "momentum"),
    F.cross_entropy: _of_python(F.cross_entropy, _cross_entropy, "label_smoothing"),
    F.huber_loss: _of_python(F.huber_loss, _huber, "delta"),
    F.smooth_l1_loss: _of_python(F.smooth_l1_loss, _smooth_l1, "beta"),
}
"""Functions with parameters that may be traced numbers."""
