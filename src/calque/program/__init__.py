"""Compiled programs: the parts that jit, torch.compile and functional share.

Lifted state, a jaxpr, and a compiled program.
"""
