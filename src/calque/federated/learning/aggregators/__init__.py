"""How the server joins what clients send: each a function of values, to be used while tracing.

An aggregator takes what clients send, `{T}@CLIENTS`, their weights, `{float32}@CLIENTS`, and raw
bits of a key, `uint32[2]@SERVER`; it gives `T@SERVER`. One with a state has `initial()`, the arrays
that the server keeps for it; it takes them, `S@SERVER`, as a fourth argument, and gives a pair with
the new ones. See
`adaptive_clipped`.
"""

from calque.federated.learning.aggregators.adaptive import adaptive_clipped, adaptive_dp_gaussian
from calque.federated.learning.aggregators.basic import (
    clipped,
    dp_gaussian,
    mean,
    median,
    quantized,
    secure,
    trimmed_mean,
)
from calque.federated.learning.aggregators.kinds import (
    Aggregator,
    StatefulAggregator,
    is_stateful,
)

__all__ = [
    "Aggregator",
    "StatefulAggregator",
    "adaptive_clipped",
    "adaptive_dp_gaussian",
    "clipped",
    "dp_gaussian",
    "is_stateful",
    "mean",
    "median",
    "quantized",
    "secure",
    "trimmed_mean",
]
