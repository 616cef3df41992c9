"""The examples in the docstrings of all modules run."""

import doctest
import importlib
from pathlib import Path

import pytest
import torch

import calque

HOME = Path(calque.__file__).parent
ON_DEVICES = HOME / "sharding"
"""Its examples need several devices: they run in `tests/sharding/on_devices/test_examples.py`."""


def name_of(path: Path) -> str:
    """The name of the module in a file."""
    return ".".join([HOME.name, *path.relative_to(HOME).with_suffix("").parts])


MODULES = sorted(
    name_of(path).removesuffix(".__init__")
    for path in HOME.rglob("*.py")
    if ">>> " in path.read_text() and not path.is_relative_to(ON_DEVICES)
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    module = importlib.import_module(name)
    names = {"torch": torch, "calque": calque, "fx": calque.tracing.fx, **vars(module)}
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testmod(module, extraglobs=names, optionflags=options)
    assert failed == 0
    assert tried > 0
