"""The interfaces that PyTorch expects of a device.

These include its module, accelerator, hooks, moves, DLPack, forks and signals.
"""
