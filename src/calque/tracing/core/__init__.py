"""The foundations of every tracer.

The running trace, its place in the program, and what it refuses and patches.
"""
