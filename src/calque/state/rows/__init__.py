"""Rows, each of which records one container and its contents when it was found.

A program's Python state is in containers: a dict, a list, a closure variable, the attributes of an
object. A row reads one of these, reports its changes, and restores it.
"""

from calque.state.rows.attributes import (
    HOOKS_OF_TENSORS,
    AttributeRow,
    SlotsRow,
    StateRow,
    TensorHooksRow,
    function_row,
    is_made_in_python,
    set_attribute,
    slots_of,
)
from calque.state.rows.containers import (
    BytesRow,
    CacheRow,
    CellRow,
    ContextRow,
    ListRow,
    SetRow,
)
from calque.state.rows.dicts import (
    ClassRow,
    DictRow,
    HooksRow,
    InstanceRow,
    LibraryClassRow,
    NamedRow,
    TracedDefaultsRow,
    is_own_hook,
)
from calque.state.rows.row import Row

__all__ = [
    "AttributeRow",
    "BytesRow",
    "CacheRow",
    "CellRow",
    "ClassRow",
    "ContextRow",
    "DictRow",
    "HOOKS_OF_TENSORS",
    "HooksRow",
    "InstanceRow",
    "LibraryClassRow",
    "ListRow",
    "NamedRow",
    "Row",
    "SetRow",
    "SlotsRow",
    "StateRow",
    "TensorHooksRow",
    "TracedDefaultsRow",
    "function_row",
    "is_made_in_python",
    "is_own_hook",
    "set_attribute",
    "slots_of",
]
