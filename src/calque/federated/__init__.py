"""Federated computations: typed, traced to a small AST, compiled to one XLA program."""

from calque.federated.types import (
    CLIENTS,
    SERVER,
    FederatedType,
    FunctionType,
    SequenceType,
    StructType,
    TensorType,
    at_clients,
    at_server,
    to_type,
)

__all__ = [
    "CLIENTS",
    "SERVER",
    "FederatedType",
    "FunctionType",
    "SequenceType",
    "StructType",
    "TensorType",
    "at_clients",
    "at_server",
    "to_type",
]
