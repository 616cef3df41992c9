"""The variables of a closure."""

from types import CellType
from typing import Any

from calque.state import MISSING


def read_cell(cell: CellType) -> Any:
    """Returns a variable's value; MISSING if it is unbound."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING
