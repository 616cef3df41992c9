"""The tracer of `calque.trace`, which raises if a graph could not repeat the program."""
