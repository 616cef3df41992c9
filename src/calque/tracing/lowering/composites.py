"""Calls for which PyTorch uses different operators while lowering than at run time.

- Under `torch.func.functionalize`, dropout draws in the order of indices; at run time, in the order
of memory. So it is written here as it runs, and operators that fill a non-contiguous tensor
fill one in the order of its memory.
- Recurrent layers are a single CPU operator, or write to their own intermediate results. Their
  decompositions in `torch._decomp` do neither.
- `fill_diagonal_` has no functional form, and is implemented here as a write to a view.
- `cov` and `corrcoef` read a number on which no value depends, and so does `istft` (`spectra`).
"""

import contextlib
import functools
import importlib
import math
import threading
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from calque.tracing.core.errors import SymbolicTraceError
from calque.tracing.core.patching import Patches
from calque.tracing.lowering import sharing
from calque.tracing.lowering.spectra import istft
from calque.upstream import torch_c
from calque.upstream.rms_norm import rms_norm
from calque.upstream.torch_internals import VariableFunctions

_local = threading.local()


@contextlib.contextmanager
def held(functional: bool) -> Iterator[None]:
    """A context manager in which this thread uses the replacements of this module.

    Args:
        functional: whether to replace operators that write.
    """
    table = {**RECURRENT, **READING}
    methods: dict[str, Any] = {}
    if functional:
        table |= {**RANDOM, **NORMALIZATION, **sharing.FUNCTIONS}
        methods = METHODS
    _fills_in_order_of_memory()  # cached here, while tensors have values
    before = getattr(_local, "table", None)
    with Patches() as patches:
        for name in table:
            owner = torch if name in _CALLED_AS_TORCHS else VariableFunctions
            patches.hold(owner, name, functools.partial(_chosen, name))
        _local.table = {**table, **methods}
        try:
            yield
        finally:
            _local.table = before


def _chosen(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        table = getattr(_local, "table", None) or {}
        return table.get(name, original)(*args, **kwargs)

    return call


def written_here(target: object) -> Any:
    """Returns the replacement of a function in a graph, or the function itself."""
    table = getattr(_local, "table", None) or {}
    name = getattr(target, "__name__", "")
    if name in sharing.FUNCTIONS and isinstance(target, FunctionType):
        return target  # a function of `torch.functional`, which calls the replaced ones
    owner: Any = torch.nn.functional if name in NORMALIZATION else torch_c.VariableFunctions
    known = name in table and target in (getattr(owner, name, None), getattr(torch, name, None))
    return table[name] if known else target


def method_here(method: object) -> Any:
    """Returns the replacement of a method of tensors, or the method itself."""
    table = getattr(_local, "table", None) or {}
    name = getattr(method, "__name__", "")
    return table[name] if name in METHODS and name in table else method


# Methods


def _fill_diagonal_(input: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    height, *others = input.shape
    if not others:
        raise RuntimeError("dimensions must larger than 1")
    if len(others) > 1 and set(others) != {height}:
        raise RuntimeError("all dimensions of input must be of equal length")
    step = others[0] + 1
    if wrap and len(others) == 1 and height > step:
        if not input.is_contiguous():  # here the operator writes to other elements
            raise SymbolicTraceError(
                "fill_diagonal_ with wrap=True cannot be lowered for a tensor that is not "
                "contiguous.\nCall it on x.contiguous(), or use the graph as it is, without "
                "lowering."
            )
        for first in range(0, height, step):
            input[first : first + step].diagonal().fill_(fill_value)
        return input
    diagonal = input
    for _ in others:
        diagonal = diagonal.diagonal(0, 0, -1)
    diagonal.fill_(fill_value)
    return input


def _cov(input: Tensor, *, correction: int = 1, **weights: Tensor | None) -> Tensor:
    """Computes `torch.cov` without reading the degrees of freedom and the weights as values, which
    PyTorch's function does to decide whether to raise.
    """
    whole = input.dim() <= 2 and input.dtype != torch.bool
    if not whole or any(each is not None for each in weights.values()):
        return torch.ops.aten.cov.default(input, correction=correction, **weights)
    rows = input if input.dim() == 2 else input.view(1, -1)
    centered = rows - (rows.sum(1) / rows.size(1)).unsqueeze(1)
    freedom = max(rows.size(1) - correction, 0)
    products = torch.mm(centered, centered.t().conj())
    return torch.true_divide(products, torch.scalar_tensor(freedom, dtype=rows.dtype)).squeeze()


def _corrcoef(input: Tensor) -> Tensor:
    covariances = _cov(input)
    if not covariances.dim():
        return covariances / covariances
    diagonal = covariances.diag()
    deviations = (diagonal.real if diagonal.is_complex() else diagonal).sqrt()
    scaled = covariances / deviations.view(-1, 1) / deviations.view(1, -1)
    if not scaled.is_complex():
        return scaled.clip(-1, 1)
    return torch.complex(scaled.real.clip(-1, 1), scaled.imag.clip(-1, 1))


def _randint_like(x: Any, *args: Any, **kwargs: Any) -> Any:
    """As `torch.randint_like`, whose operator has no gradient, not even zero."""
    return torch.ops.aten.randint_like(x.detach(), *args, **kwargs)


READING: dict[str, Callable[..., Any]] = {
    "cov": _cov,
    "corrcoef": _corrcoef,
    "istft": istft,
    "randint_like": _randint_like,
}
METHODS: dict[str, Callable[..., Any]] = {
    "fill_diagonal_": _fill_diagonal_,
    **READING,
    **sharing.METHODS,
}


# Lists of tensors


def in_turn(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_graded: bool
) -> list[Tensor] | None:
    """Calls a function that writes to a list of tensors separately for each tensor, if it reads
    some tensors after it has written to them; otherwise returns None.

    Args:
        is_graded: whether autograd records the call.

    Raises:
        TraceError: autograd records such a call, whose gradient in PyTorch uses the values before
            the writes.

    The functional form of such a function would read everything before it writes.
    """
    name = getattr(function, "__name__", "")
    if not (name.startswith("_foreach_") and name.endswith("_") and args):
        return None
    lists = [part for part in (*args, *kwargs.values()) if _is_list(part)]
    written = [_memory(tensor) for tensor in args[0]]
    read = [(i, _memory(t)) for part in lists[1:] for i, t in enumerate(part) if _is_tensor(t)]
    is_shared = len(set(written)) < len(written)
    if not (is_shared or any(m in written[:i] + written[i + 1 :] for i, m in read)):
        return None
    if is_graded:
        raise SymbolicTraceError(
            f"{name} reads one tensor and writes to another that share memory, and PyTorch takes "
            "its gradient from the values before the write.\nWrite a loop over the tensors, or "
            "use the graph as it is, without lowering."
        )
    for i in range(len(written)):
        one = [[part[i]] if _is_list(part) else part for part in args]
        function(*one, **{key: [p[i]] if _is_list(p) else p for key, p in kwargs.items()})
    return list(args[0])


def _is_list(part: object) -> bool:
    return isinstance(part, (list, tuple))


def _is_tensor(part: object) -> bool:
    return isinstance(part, Tensor)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


# Random numbers


def _noise(input: Tensor, p: float) -> Tensor:
    return torch.empty_like(input).bernoulli_(1 - p)


def _kept(input: Tensor, p: float, train: bool) -> bool:
    return not train or p == 0 or input.numel() == 0


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    if _kept(input, p, train):
        return input
    if p == 1:
        return input * torch.zeros((), dtype=input.dtype, device=input.device)
    return input * _noise(input, p).div_(1 - p)


def _dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    if _kept(input, p, train):
        return input
    if p == 1:
        return input.mul_(torch.zeros((), dtype=input.dtype, device=input.device))
    return input.mul_(_noise(input, p).div_(1 - p))


def _alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    if _kept(input, p, train) or p == 1:
        return _dropout(input, p, train)
    noise, shift = _alpha_noise(input, p)
    return (input * noise).add_(shift)


def _alpha_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    if _kept(input, p, train) or p == 1:
        return _dropout_(input, p, train)
    noise, shift = _alpha_noise(input, p)
    return input.mul_(noise).add_(shift)


def _alpha_noise(input: Tensor, p: float) -> tuple[Tensor, Tensor]:
    alpha = 1.7580993408473766
    scale = 1 / math.sqrt((alpha * alpha * p + 1) * (1 - p))
    noise = _noise(input, p)
    shift = noise.add(-1).mul_(alpha * scale).add_(alpha * scale * p)
    return noise.mul_(scale), shift


def _rrelu_(x: Any, *args: Any, **kwargs: Any) -> Any:
    return x.copy_(torch.rrelu(x, *args, **kwargs))


RANDOM: dict[str, Callable[..., Any]] = {
    "dropout": _dropout,
    "dropout_": _dropout_,
    "alpha_dropout": _alpha_dropout,
    "alpha_dropout_": _alpha_dropout_,
    "rrelu_": _rrelu_,
}


def bernoulli(x: Any, p: float, generator: Any = None) -> Any:
    """Computes `x.bernoulli_(p)` without a write, by an operator that draws in the order of
    indices.
    """
    if x.device.type != "cpu" or x.is_contiguous() or not _fills_in_order_of_memory():
        return NotImplemented
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    if not x.permute(order).is_contiguous():
        return NotImplemented
    back = sorted(range(x.dim()), key=order.__getitem__)
    run = torch.ops.aten.bernoulli.p
    return run(x.permute(order), p, generator=generator).permute(back)


@functools.cache
def _fills_in_order_of_memory() -> bool:
    """Returns True if this CPU's kernels draw in the order of memory; some fill a buffer, and copy
    it.
    """
    drawn = []
    for x in (torch.empty(8, 8, device="cpu"), torch.empty(8, 8, device="cpu").t()):
        drawn.append(x.bernoulli_(0.5, generator=torch.Generator().manual_seed(0)))
    return torch.equal(drawn[0], drawn[1].t())


# Normalization


NORMALIZATION: dict[str, Callable[..., Any]] = {"rms_norm": rms_norm}
_CALLED_AS_TORCHS = ("randint_like", "rrelu_", *NORMALIZATION)


# Recurrent layers


def _recurrent(name: str) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            return getattr(torch_c.VariableFunctions, name)(*args, **kwargs)
        if isinstance(args[3], (list, tuple)):  # a packed sequence, with the sizes of its batches
            return _layers(name, "data", args[:2], *args[2:])
        input, *rest, batch_first = args
        input = input.transpose(0, 1) if batch_first else input
        result, *states = _layers(name, "input", (input,), *rest)
        return (result.transpose(0, 1) if batch_first else result, *states)

    return run


def _layers(
    name: str,
    overload: str,
    given: tuple[Any, ...],
    hx: Any,
    weights: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> Any:
    """Runs the layers in sequence, with dropout in between."""
    operator = getattr(getattr(torch.ops.aten, name), overload)
    decomposed = importlib.import_module("torch._decomp").get_decompositions([operator])[operator]
    directions = 2 if bidirectional else 1
    hidden = list(hx) if isinstance(hx, (tuple, list)) else [hx]
    each = len(weights) // num_layers
    result, sizes = given[0], given[1:]
    after: list[tuple[Any, ...]] = []
    last = (False,) if overload == "input" else ()
    for i in range(num_layers):
        if i and train and dropout:
            result = _dropout(result, dropout, True)
        states = [state[i * directions : (i + 1) * directions] for state in hidden]
        state = states if isinstance(hx, (tuple, list)) else states[0]
        own = weights[i * each : (i + 1) * each]
        with _without_mkldnn():
            result, *states = decomposed(
                result, *sizes, state, own, has_biases, 1, 0.0, False, bidirectional, *last
            )
        after.append(tuple(states))
    return (result, *(torch.cat(states) for states in zip(*after)))


@contextlib.contextmanager
def _without_mkldnn() -> Iterator[None]:
    """Like `torch.backends.mkldnn.flags(enabled=False)`, without its warning about absent GPUs."""
    before = torch_c.get_mkldnn_enabled()
    torch_c.set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch_c.set_mkldnn_enabled(before)


RECURRENT: dict[str, Callable[..., Any]] = {
    name: _recurrent(name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
}
