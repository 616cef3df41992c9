"""Private names of PyTorch and JAX are in `calque.upstream`, where a new version is read first."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
OWN = ("calque/upstream", "calque/tracing/fx", "calque_hint.py")
"""Where they are allowed: the adapters, torch.fx's own names, and what loads nothing of calque."""
DYNAMO_KNOWS = {"torch._dynamo.graph_break"}  # Dynamo recognizes it by this name in compiled code


def private_names(source: str) -> Iterator[str]:
    """The names of PyTorch and JAX with a private part that a module imports or reads."""
    tree = ast.parse(source)
    known: dict[str, str] = {}  # the full names of a module's own names
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            imported = [(one, f"{node.module}.{one.name}") for one in node.names]
        elif isinstance(node, ast.Import):
            imported = [(one, one.name) for one in node.names]
        else:
            continue
        for one, name in imported:
            if name.split(".")[0] not in ("torch", "jax"):
                continue
            if is_private(name):
                yield name
            own = one.asname or one.name.split(".")[0]
            known[own] = name if one.asname or isinstance(node, ast.ImportFrom) else own
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id in known:
            name = ".".join([known[node.id], *reversed(parts)])
            if is_private(name) and not name.startswith("torch.ops."):
                yield name


def is_private(name: str) -> bool:
    """Whether a part of a name has one underscore in front."""
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch\ntorch._ops.OpOverload", {"torch._ops.OpOverload", "torch._ops"}),
        ("from torch.utils import _pytree as tree\ntree.tree_map", {"torch.utils._pytree"}),
        ("import jax._src.core", {"jax._src.core"}),
        ("from jax import lax\nlax._convert(1)", {"jax.lax._convert"}),
        ("import torch\ntorch.ops.aten._softmax\ntorch.Tensor.__add__", set()),
    ],
)
def test_private_names_are_found(source: str, names: set[str]) -> None:
    found = set(private_names(source))
    assert names <= found
    assert bool(found) == bool(names)


def test_they_stand_in_upstream_alone() -> None:
    elsewhere = {
        f"{file.relative_to(SOURCE)}: {name}"
        for file in SOURCE.rglob("*.py")
        if not str(file.relative_to(SOURCE)).startswith(OWN)
        for name in private_names(file.read_text())
        if name not in DYNAMO_KNOWS and name != "torch._dynamo"
    }
    assert elsewhere == set()


def test_every_name_of_upstream_is_used() -> None:
    adapters = SOURCE / "calque" / "upstream"
    rest = "\n".join(f.read_text() for f in SOURCE.rglob("*.py") if f.parent != adapters)
    unused = [
        name
        for file in adapters.glob("*.py")
        for node in ast.parse(file.read_text()).body
        for name in bound(node)
        if name not in rest and not name.startswith("_")
    ]
    assert unused == []


def bound(node: ast.stmt) -> list[str]:
    """The names that a statement binds, but for modules that are imported for their names."""
    if isinstance(node, ast.ImportFrom):
        return [one.asname or one.name for one in node.names]
    if isinstance(node, ast.Assign):
        return [one.id for one in node.targets if isinstance(one, ast.Name)]
    return []
