"""Runs a graph of AOTAutograd as one XLA program for each set of shapes.

The modules handle inputs, outputs, aliases and writes.
"""
