"""Federated computations: typed, traced to a small AST, compiled to one XLA program.

>>> from calque import federated
>>> @federated.computation("{float32}@CLIENTS")
... def average(temperatures):
...     return federated.federated_mean(temperatures)
>>> average([20.0, 22.0, 27.0])
Array(23., dtype=float32)
"""

from calque.errors import ClientError, FederatedTypeError
from calque.federated import learning
from calque.federated.computation import (
    Computation,
    PolymorphicComputation,
    computation,
    local,
)
from calque.federated.intrinsics import (
    data,
    federated_aggregate,
    federated_broadcast,
    federated_collect,
    federated_eval,
    federated_map,
    federated_max,
    federated_mean,
    federated_min,
    federated_reduce,
    federated_secure_sum,
    federated_select,
    federated_sum,
    federated_value,
    federated_zip,
    sequence_map,
    sequence_reduce,
    sequence_sum,
)
from calque.federated.representation import Sequence
from calque.federated.tracing import Value, type_of
from calque.federated.types import (
    CLIENTS,
    SERVER,
    FederatedType,
    FunctionType,
    SequenceType,
    Struct,
    StructType,
    TensorType,
    Type,
    at_clients,
    at_server,
    to_type,
)

__all__ = [
    "CLIENTS",
    "SERVER",
    "ClientError",
    "Computation",
    "FederatedType",
    "FederatedTypeError",
    "FunctionType",
    "PolymorphicComputation",
    "Sequence",
    "SequenceType",
    "Struct",
    "StructType",
    "TensorType",
    "Type",
    "Value",
    "at_clients",
    "at_server",
    "computation",
    "data",
    "federated_aggregate",
    "federated_broadcast",
    "federated_collect",
    "federated_eval",
    "federated_map",
    "federated_max",
    "federated_mean",
    "federated_min",
    "federated_reduce",
    "federated_secure_sum",
    "federated_select",
    "federated_sum",
    "federated_value",
    "federated_zip",
    "learning",
    "local",
    "sequence_map",
    "sequence_reduce",
    "sequence_sum",
    "to_type",
    "type_of",
]
