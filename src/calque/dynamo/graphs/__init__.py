"""A graph of AOTAutograd as one XLA program for each set of shapes.

Inputs, outputs, aliases, writes.
"""
