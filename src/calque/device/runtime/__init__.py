"""Foundations of the device: executables and their caches, dtypes, sizes, placements, signals,
threads, callbacks.
"""
