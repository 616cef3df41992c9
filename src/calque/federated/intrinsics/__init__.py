"""The operators of the language, as functions of values."""

from calque.federated.intrinsics.federated import (
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
)
from calque.federated.intrinsics.sequences import sequence_map, sequence_reduce, sequence_sum

__all__ = [
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
    "sequence_map",
    "sequence_reduce",
    "sequence_sum",
]
