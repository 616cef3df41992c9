"""What an installed package is set to, by objects that its own code names."""

import importlib
import sys

import pytest
import torch

import calque

_SOURCE = """
import threading

class Config:
    def __init__(self):
        self.gain = 2.0
        self.served = 0

config, local = Config(), threading.local()

def scaled(x):
    return x * config.gain * getattr(local, "gain", 1.0)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "package_with_settings.py").write_text(_SOURCE)
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("package_with_settings")
    del sys.modules["package_with_settings"]


def test_settings_in_a_packages_own_objects_are_compared(package):
    f = calque.jit(lambda x: package.scaled(x), verify=False)
    x = torch.ones(2, device="jax")
    assert [f(x)[0].item() for _ in range(3)] == [2, 2, 2]
    package.config.gain = 3.0
    assert [f(x)[0].item() for _ in range(2)] == [3, 3]
    package.local.gain = 10.0
    assert [f(x)[0].item() for _ in range(2)] == [30, 30]
    assert len(f.history) <= 4


def test_what_a_package_counts_is_not_compared_where_the_program_computes_names(package):
    class Own:
        bias = 1.0

    def bias():  # runs after the package's state was found
        return getattr(Own(), "bi" + "as")

    f = calque.jit(lambda x: package.scaled(x) + bias())
    x = torch.ones(2, device="jax")
    for _ in range(3):
        assert f(x)[0].item() == 3
        package.config.served += 1
    assert f.history == ["first call"]
