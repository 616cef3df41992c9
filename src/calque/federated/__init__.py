"""Federated computations: typed, traced to a small AST, compiled to one XLA program.

>>> from calque import federated
>>> @federated.computation("{float32}@CLIENTS")
... def average(temperatures):
...     return federated.federated_mean(temperatures)
>>> average([20.0, 22.0, 27.0])
Array(23., dtype=float32)
"""

from calque.errors import ClientError, FederatedTypeError
from calque.federated import building_blocks, intrinsics, learning, transformations, types
from calque.federated.computation import Computation, PolymorphicComputation
from calque.federated.decorators import computation, local
from calque.federated.intrinsics import *  # noqa: F403  (the operators are named there)
from calque.federated.ragged import Ragged
from calque.federated.representation import Sequence
from calque.federated.tracing import Value, type_of
from calque.federated.types import (
    CLIENTS,
    SERVER,
    AbstractType,
    FederatedType,
    FunctionType,
    PlacementType,
    SequenceType,
    Struct,
    StructType,
    TensorType,
    Type,
    at_clients,
    at_server,
    is_assignable,
    parse_type,
    to_type,
    unify,
)

__all__ = [
    "CLIENTS",
    "SERVER",
    "AbstractType",
    "ClientError",
    "Computation",
    "FederatedType",
    "FederatedTypeError",
    "FunctionType",
    "PlacementType",
    "PolymorphicComputation",
    "Ragged",
    "Sequence",
    "SequenceType",
    "Struct",
    "StructType",
    "TensorType",
    "Type",
    "Value",
    "at_clients",
    "at_server",
    "building_blocks",
    "computation",
    "is_assignable",
    "learning",
    "local",
    "parse_type",
    "to_type",
    "transformations",
    "type_of",
    "types",
    "unify",
]
__all__ += intrinsics.__all__
