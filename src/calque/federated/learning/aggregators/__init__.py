"""Aggregators: functions that combine the clients' messages on the server.

An aggregator takes the clients' values, `{T}@CLIENTS`, their weights, `{float32}@CLIENTS`, and the
raw bits of a key, `uint32[2]@SERVER`; it returns `T@SERVER`. A client without examples has the
weight 0, and sends zeros. An aggregator with a state also has `initial()`, which returns the arrays
that the server keeps for it. It takes these, `S@SERVER`, as a fourth argument, and returns a pair
of its result and the new arrays. See `adaptive_clipped`.
"""

from calque.federated.learning.aggregators.adaptive import adaptive_clipped, adaptive_dp_gaussian
from calque.federated.learning.aggregators.basic import (
    clipped,
    dp_gaussian,
    mean,
    quantized,
    secure,
)
from calque.federated.learning.aggregators.kinds import (
    Aggregator,
    StatefulAggregator,
    is_private,
    is_stateful,
)
from calque.federated.learning.aggregators.robust import median, trimmed_mean

__all__ = [
    "Aggregator",
    "StatefulAggregator",
    "adaptive_clipped",
    "adaptive_dp_gaussian",
    "clipped",
    "dp_gaussian",
    "is_private",
    "is_stateful",
    "mean",
    "median",
    "quantized",
    "secure",
    "trimmed_mean",
]
