"""The interfaces that PyTorch expects of a device.

Its module, accelerator, hooks, moves, DLPack, forks, signals.
"""
