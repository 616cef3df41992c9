"""What every tracer stands on.

Which trace runs, where in the program it is, what it refuses and patches.
"""
