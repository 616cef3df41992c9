"""Compares the settings of the layers of two graphs, such as rates, strides and modes."""

from collections.abc import Iterator
from typing import Any

import torch

from calque.tracing.graph.training_modes import reads_training

_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device)


def settings_of(layer: torch.nn.Module) -> dict[str, Any]:
    """Returns the plain values among the attributes of a layer and its sublayers, by name, with
    `training` for layers that read it.

    >>> settings_of(torch.nn.Dropout(0.1).eval())
    {'p': 0.1, 'inplace': False, 'training': False}
    """
    found = {}
    for path, module in layer.named_modules():
        for name, value in _attributes(module):
            found[f"{path}.{name}".lstrip(".")] = value
    return found


def _attributes(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if not name.startswith("_") and name != "training" and _is_plain(value):
            yield name, value
    if reads_training(type(module)):
        yield "training", module.training


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, _PLAIN)


def other_settings(a: torch.nn.Module, b: torch.nn.Module) -> str | None:
    """Describes how the settings of two layers of one class differ; None if they do not.

    >>> other_settings(torch.nn.Dropout(0.1), torch.nn.Dropout(0.5))
    'p=0.1 against p=0.5'
    """
    first, second = settings_of(a), settings_of(b)
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    if not names:
        return None
    texts = [", ".join(f"{n}={each.get(n)!r}" for n in names) for each in (first, second)]
    return " against ".join(texts)
