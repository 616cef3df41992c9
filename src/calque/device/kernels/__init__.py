"""The kernels that PyTorch's dispatcher calls.

Rules bound to operators, views, copies, fallbacks.
"""
