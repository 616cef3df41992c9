"""Compiles the AST to one jitted JAX function in which the clients are an axis."""

from calque.federated.compiler.program import CompileOptions, ComputationProgram

__all__ = ["CompileOptions", "ComputationProgram"]
