"""The AST of federated computations: its building blocks, their text, and their scopes."""

from calque.federated.building_blocks.blocks import (
    Block,
    BuildingBlock,
    Call,
    CompiledComputation,
    Data,
    Intrinsic,
    Lambda,
    Literal,
    Placement,
    Reference,
    Selection,
    Struct,
)
from calque.federated.building_blocks.intrinsics import INTRINSICS, zip_result
from calque.federated.building_blocks.scopes import free_references, same, verify
from calque.federated.building_blocks.text import compact, formatted, structural

__all__ = [
    "INTRINSICS",
    "Block",
    "BuildingBlock",
    "Call",
    "CompiledComputation",
    "Data",
    "Intrinsic",
    "Lambda",
    "Literal",
    "Placement",
    "Reference",
    "Selection",
    "Struct",
    "compact",
    "formatted",
    "free_references",
    "same",
    "structural",
    "verify",
    "zip_result",
]
