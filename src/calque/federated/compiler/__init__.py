"""From the AST to one jitted function of JAX in which the clients are an axis."""

from calque.federated.compiler.program import Options, Program

__all__ = ["Options", "Program"]
