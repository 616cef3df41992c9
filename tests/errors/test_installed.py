"""Which files installed packages own, in folders of any name."""

import importlib
import os
import sys

import pytest
import torch

import calque
from calque.errors.frames import is_library
from calque.errors.installed import package_of
from calque.state.ownership import Owner, owner_of_file

_CLAMP = """
def clamp(x):
    if x.abs().max() > 10:
        return x.clamp(-10, 10)
    return x * 2
"""


def _install(folder, *files, name):
    """Writes what `pip install --target` does."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(_CLAMP)
    lines = [f"{file},sha256=a,{len(_CLAMP)}" for file in files]
    (info / "RECORD").write_text("\n".join(["../../bin/tool,,", *lines, f"{info.name}/RECORD,,"]))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of any name in which Python looks for modules."""
    folder = tmp_path / "drive"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


def test_a_package_in_a_target_folder_is_installed(folder):
    _install(folder, "clamping_a/__init__.py", "clamping_a/inner/code.py", name="clamping-a")
    _install(folder, "clamping_b.py", name="clamping-b")
    _install(folder, "spaces_of_many/clamping_c/code.py", name="clamping-c")
    for name, top in (
        ("clamping_a.inner.code", "clamping_a"),
        ("clamping_b", "clamping_b"),
        ("spaces_of_many.clamping_c.code", "spaces_of_many"),
    ):
        file = importlib.import_module(name).clamp.__code__.co_filename
        assert (package_of(file), owner_of_file(file), is_library(file)) == (
            top,
            Owner.PACKAGE,
            True,
        )


def test_what_no_installer_has_listed_is_the_users(folder):
    _install(folder, "clamping_d/__init__.py", "spaces_of_more/clamping_e.py", name="clamping-d")
    # A handler beside its packages, a part of a shared namespace, a file added to a package.
    own = ["handling_f.py", "spaces_of_more/handling_g.py", "clamping_d/added_h.py"]
    # A checkout, beside what its build has left.
    (folder / "checkout_i.egg-info").mkdir()
    (folder / "checkout_i.egg-info" / "top_level.txt").write_text("checkout_i\n")
    for file in [*own, "checkout_i/__init__.py"]:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(_CLAMP)
        module = importlib.import_module(
            file.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
        )
        found = module.clamp.__code__.co_filename
        assert (package_of(found), owner_of_file(found), is_library(found)) == (
            "",
            Owner.USER,
            False,
        )


def test_a_folder_that_python_has_never_searched_is_the_users(tmp_path):
    _install(tmp_path, "unpacked_j/__init__.py", name="unpacked-j")
    assert package_of(str(tmp_path / "unpacked_j" / "__init__.py")) == ""


def test_a_package_that_is_installed_later(folder):
    (folder / "handling_k.py").write_text(_CLAMP)
    assert package_of(importlib.import_module("handling_k").__file__) == ""
    _install(folder, "clamping_l.py", name="clamping-l")
    os.utime(folder, ns=(0, folder.stat().st_mtime_ns + 1_000_000_000))
    importlib.invalidate_caches()
    assert package_of(importlib.import_module("clamping_l").__file__) == "clamping_l"


def test_branches_on_values_in_a_package_of_a_target_folder_are_assumed(folder):
    _install(folder, "clamping_m.py", name="clamping-m")
    (folder / "handling_n.py").write_text(_CLAMP)
    package, own = importlib.import_module("clamping_m"), importlib.import_module("handling_n")
    clamped = calque.jit(lambda x: package.clamp(x) + 1)
    for start in (1.0, 1.0, 30.0, 1.0):
        x = torch.full((3,), start)
        assert torch.equal(clamped(x.to("jax")).cpu(), package.clamp(x) + 1)
    with pytest.raises(calque.TraceError):
        calque.jit(lambda x: own.clamp(x) + 1)(torch.ones(3, device="jax"))
