"""The foundations of every tracer.

Which trace runs, where in the program it is, what it refuses and patches.
"""
