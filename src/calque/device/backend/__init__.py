"""The interfaces that PyTorch expects of a device.

These are its module, accelerator, hooks, moves, DLPack, forks and signals.
"""
