"""`calque.lower`: turns a graph of calls into a graph of ATen operators."""
