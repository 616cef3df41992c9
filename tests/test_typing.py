"""A user's file that uses every public name: it runs here, and `make lint` checks its types."""

import ast
import runpy
from pathlib import Path

import calque

FILE = Path(__file__).parent / "typing" / "public_names.py"


def test_the_file_uses_every_public_name() -> None:
    nodes = [n for n in ast.walk(ast.parse(FILE.read_text())) if isinstance(n, ast.Attribute)]
    used = {n.attr for n in nodes if isinstance(n.value, ast.Name) and n.value.id == "calque"}
    assert used == set(calque.__all__)


def test_the_file_runs() -> None:
    runpy.run_path(str(FILE), run_name="__main__")
