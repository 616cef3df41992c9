"""Compiled programs: the parts that jit, torch.compile and functional share.

State that is lifted, a jaxpr, and a compiled program that is run.
"""
