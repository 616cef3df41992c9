"""Compare a compiled function with the eager one on the CPU, call by call."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch._dynamo
from torch.utils import _pytree as pytree

Make = Callable[[Any], Iterable[tuple[Any, ...]]]
"""Gives the arguments of each call, for a device. A list among them is memory that is looked at."""


def agree(function: Callable[..., Any], calls: Make, device: str, **settings: Any) -> None:
    """Call a function compiled and eagerly.

    Compared are the results, what is written to arguments, which tensors share memory, gradients,
    and what is seen by the others of a write to each result.
    """
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="calque", **settings)
    pairs = zip(calls(device), calls("cpu"), strict=True)
    for number, (given, expected) in enumerate(pairs):
        found = list(_events(compiled, given))
        wanted = list(_events(function, expected))
        for (kind, *one), (expected_kind, *other) in zip(found, wanted, strict=True):
            assert kind == expected_kind
            if not all(isinstance(value, torch.Tensor) for value in other):
                assert one == other, (number, kind)
                continue
            said = partial("call {}, {}: {}".format, number, kind)
            torch.testing.assert_close(one, other, equal_nan=True, msg=said)


def _events(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    memory = [t for a in arguments if isinstance(a, list) for t in a]
    results = function(*(a for a in arguments if not isinstance(a, list)))
    given = [*memory, *_tensors([a for a in arguments if not isinstance(a, list)])]
    made = _tensors(results)
    every = given + made
    yield ("numbers", [n for n in pytree.tree_leaves(results) if not isinstance(n, torch.Tensor)])
    yield ("values", *map(_value, every))
    yield ("layouts", [(t.dtype, t.stride() if t.numel() else (), t.requires_grad) for t in made])
    yield ("memory", _classes([_memory(t) for t in every if t.numel()]))
    yield ("identity", _classes(list(map(id, every))))
    weighted = [t.cpu().abs().double().square().sum() * (i + 1) for i, t in enumerate(made)]
    weighted = [one for one in weighted if one.requires_grad]
    if weighted:
        torch.stack(weighted).sum().backward()
        leaves = [t for t in given if t.is_leaf and t.requires_grad]
        yield ("gradients", *(_value(t.grad) for t in leaves if t.grad is not None))
    for place, one in list(enumerate(made))[:2]:
        with torch.no_grad():
            one.detach().mul_(2)
        yield (f"a write to result {place}", *map(_value, every))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _value(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().cpu().clone().contiguous()


def _memory(tensor: torch.Tensor) -> int:
    storage: Any = tensor.untyped_storage()
    return id(storage.cell) if tensor.device.type == "jax" else storage._cdata


def _classes(keys: list[int]) -> list[int]:
    known: dict[int, int] = {}
    return [known.setdefault(key, len(known)) for key in keys]
