"""Symbolic values, and the scopes in which their calls are bound."""

from calque.federated.tracing.calls import intrinsic_call, map_call, member_type, unnamed, zip_call
from calque.federated.tracing.scopes import current, fresh, outside, required, scope
from calque.federated.tracing.values import Value, bind, to_block, trace, type_of

__all__ = [
    "Value",
    "bind",
    "current",
    "fresh",
    "intrinsic_call",
    "map_call",
    "member_type",
    "outside",
    "required",
    "scope",
    "to_block",
    "trace",
    "type_of",
    "unnamed",
    "zip_call",
]
