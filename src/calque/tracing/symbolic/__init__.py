"""The tracer of `calque.trace`, which raises where a graph could not repeat the program."""
