"""The examples in the docstrings of `calque.view` run."""

import doctest
import importlib
import pkgutil

import pytest

import calque.view

MODULES = [m.name for m in pkgutil.walk_packages(calque.view.__path__, "calque.view.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=options).failed == 0
