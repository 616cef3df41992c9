"""Compiled programs: what jit, torch.compile and functional share.

This includes lifting state, transforming jaxprs, and running programs.
"""
