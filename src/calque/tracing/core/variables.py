"""The variables of a closure."""

from types import CellType
from typing import Any

from calque.state import MISSING


def read_cell(cell: CellType) -> Any:
    """What a variable means; MISSING while it has no value."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING
