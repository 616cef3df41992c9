"""The examples in the docstrings of calque.trace run."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import calque
from calque.tracing import fx

MODULES = [
    info.name
    for info in pkgutil.walk_packages(calque.tracing.__path__, "calque.tracing.")
    if str(getattr(info.module_finder, "path", "")).startswith(calque.__path__[0])
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    module = importlib.import_module(name)
    names = {"torch": torch, "calque": calque, "fx": fx, **vars(module)}
    failed, _ = doctest.testmod(
        module, extraglobs=names, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert failed == 0
